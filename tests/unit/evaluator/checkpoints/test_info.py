"""What a checkpoint is said to be, and the directories, configurations and manifests
that are refused."""

import json

import pytest
import torch

from evaluator.checkpoints import info as described
from evaluator.checkpoints.info import inspect_checkpoint, verify_unchanged
from evaluator.checkpoints.manifests import (
    CalibrationManifest,
    PruneManifest,
    RemovedParts,
)
from evaluator.checkpoints.tensors import SINGLE
from tests.support.checkpoint_files import (
    CONFIG,
    only_error,
    tensors,
    write,
    write_manifest,
    write_sharded,
)
from tests.support.quantised import LAYOUTS
from tests.support.sweeps import refused, rows

pytestmark = pytest.mark.usefixtures("any_tensors")

TEXT = CalibrationManifest(
    source="gazetteer", samples=128, sequence_length=2048, tokens=10**5, cut=0,
    ids_sha256="", files={}, passages=(),
)  # fmt: skip
# what cannot be measured in the weights is taken from the manifest
GONE = {
    "measured_sparsity": 0.4977,
    "removed": RemovedParts(unit="layers", of=3, gone=("1",)),
    "files": {"config.json": "9f", SINGLE: "3c"},
}


@pytest.fixture
def checkpoint(tmp_path):
    return write(tmp_path / "dense")


def test_digest_tells_weights_apart(checkpoint, tmp_path):
    """However they are cut into files and called."""
    weights = tensors()
    first, *others = sorted(weights)
    digest = inspect_checkpoint(checkpoint).weights_digest
    sharded = write_sharded(
        tmp_path / "s", weights, {"m-1.safetensors": others, "m-2.safetensors": [first]}
    )
    reordered = write(
        tmp_path / "r",
        dict(reversed(weights.items())),
        {**CONFIG, "_name_or_path": "x"},
    )
    for same in (sharded, reordered):
        assert inspect_checkpoint(same).weights_digest == digest
    head = weights.pop("lm_head.weight")
    head[0, 0] = 0.0
    minus, more = head.clone(), head.clone()
    minus[0, 0] = -0.0
    more[3, 2] += 1
    heads = [head, more, head.reshape(3, 4), head.view(torch.float16), minus]
    sets = [weights | {"lm_head.weight": each} for each in heads]
    sets.append(weights | {"lm_head.weights": head})
    sets.append(sets[0] | {"z": torch.zeros(0, dtype=torch.bfloat16)})
    digests = set()
    for each in sets:
        digests.add(inspect_checkpoint(write(tmp_path / "a", each)).weights_digest)
    assert len(digests) == len(sets)


SETTINGS = """
_name_or_path: elsewhere, transformers_version: '4.0', use_cache: false | same
dtype: null, torch_dtype: bfloat16 | same
dtype: float32 | other
rope_theta: 1000000.0 | other
model_type: mistral | other
num_local_experts: 0, text_config: {} | other
"""


@pytest.mark.parametrize(("change", "key"), rows(SETTINGS))
def test_architecture_key_decides_swaps(checkpoint, tmp_path, change, key):
    weights = tensors()
    made = (
        write(tmp_path / str(seed), tensors(seed=seed), CONFIG | change)
        for seed in (1, 2)
    )
    other, alike = map(inspect_checkpoint, made)
    same = inspect_checkpoint(checkpoint).architecture == other.architecture
    assert same is (key == "same")
    del weights["lm_head.weight"]
    tied = inspect_checkpoint(write(tmp_path / "tied", weights, CONFIG | change))
    assert tied.architecture != other.architecture == alike.architecture


@pytest.mark.parametrize(
    "said",
    [
        {"quantization_config": LAYOUTS["w8a8"].config},
        {"model_type": "mixtral", "num_local_experts": 2},
        {"model_type": "mixtral", "text_config": {"num_experts": 8}},
    ],
)
def test_quantised_and_mixtures_serve_alone(tmp_path, said):
    one, other = (
        inspect_checkpoint(
            write(tmp_path / str(seed), tensors(seed=seed), CONFIG | said)
        )
        for seed in range(2)
    )
    assert one.architecture != other.architecture
    assert (one.alone, other.alone) == (True, True)


def test_dtype_is_stated_or_most_common(tmp_path):
    found = []
    for config in (
        {"dtype": "float16"},
        {"torch_dtype": "torch.float32"},
        {},
        {"dtype": "auto"},
    ):
        weights = tensors() | {"norm": torch.ones(3)}
        directory = write(tmp_path / "m", weights, {"model_type": "qwen3"} | config)
        found.append(inspect_checkpoint(directory).dtype)
    assert found == ["float16", "float32", "bfloat16", "bfloat16"]


def test_own_code_runs_only_if_trusted(tmp_path):
    code = {"auto_map": {"AutoModelForCausalLM": "m.M"}}
    own = CONFIG | code | {"model_type": "of_its_own"}
    directory = write(tmp_path / "m", config=own)
    assert "config.json: field 'auto_map'" in only_error(directory)
    assert inspect_checkpoint(directory, trust_remote_code=True).tensors == 3
    # Phi-3 as published: code that nobody needs any more
    known = write(tmp_path / "known", config=CONFIG | code | {"model_type": "phi3"})
    assert inspect_checkpoint(known).tensors == 3


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (None, "config.json is missing"),
        ("[]", "config.json must be an object"),
        ("{}", "config.json: field 'model_type' is missing"),
    ],
)
def test_no_whole_checkpoint(checkpoint, content, part):
    (checkpoint / "config.json").unlink()
    if content is not None:
        (checkpoint / "config.json").write_text(content)
    assert part in only_error(checkpoint)
    assert "no such directory" in only_error(checkpoint / SINGLE)
    partial = checkpoint.rename(checkpoint.with_name("out.partial"))
    assert "half-written" in only_error(partial)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"files": {"tokenizer.json": "a"}}, "lists tokenizer.json, which is missing"),
        ({"sparsity": "half"}, "sparsity: Input should be a valid number"),
        ({"schema_version": 2}, "schema_version: 2: was written by another version"),
        ({"calibration": {}}, "calibration.source: Field required"),
        (None, "the file: Invalid JSON"),
    ],
)
def test_bad_manifests(checkpoint, change, part):
    write_manifest(checkpoint)
    file = checkpoint / PruneManifest.FILE
    changed = (
        "" if change is None else json.dumps(json.loads(file.read_text()) | change)
    )
    file.write_text(changed)
    message = only_error(checkpoint)
    assert PruneManifest.FILE in message
    assert part in message


def test_unchanged_files_are_not_reread(checkpoint, monkeypatch):
    info = inspect_checkpoint(checkpoint)
    with monkeypatch.context() as patched:
        patched.setattr(described, "Checkpoint", lambda _: pytest.fail("read again"))
        assert verify_unchanged(info) == info.files
    assert set(info.files) == {"config.json", SINGLE}
    (checkpoint / SINGLE).write_bytes((checkpoint / SINGLE).read_bytes())
    (checkpoint / "notes.json").write_text("{}")
    again = inspect_checkpoint(checkpoint)
    assert info.files != verify_unchanged(info) == again.files
    for other in (
        {"config": {**CONFIG, "rope_theta": 7.0}},
        {"weights": tensors(seed=1)},
    ):
        write(checkpoint, **other)
        assert "was replaced while the run" in refused(verify_unchanged, again)
        write(checkpoint)
        verify_unchanged(again)
    for name in ("generation_config.json", "chat_template.jinja"):
        (checkpoint / name).write_text("{}")
        told = refused(verify_unchanged, again)
        assert "its tokenizer, chat template or generation_config.json was" in told
        (checkpoint / name).unlink()


def test_files_written_meanwhile_are_refused(checkpoint, monkeypatch):
    fit = described.check_fit

    def meanwhile(read):
        (checkpoint / SINGLE).write_bytes((checkpoint / SINGLE).read_bytes())
        return fit(read)

    monkeypatch.setattr(described, "check_fit", meanwhile)
    message = f"{checkpoint / SINGLE}: was written while it was read"
    assert message in only_error(checkpoint)
