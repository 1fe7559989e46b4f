"""What a checkpoint is said to be, and the directories, configurations and manifests
that are refused."""

import json
from pathlib import Path

import pytest
import torch

from evaluator.checkpoints import info as described
from evaluator.checkpoints.info import MANIFEST, inspect_checkpoint, recognise
from evaluator.checkpoints.tensors import SINGLE
from tests.support.checkpoint_files import (
    CONFIG,
    only_error,
    tensors,
    write,
    write_sharded,
)
from tests.support.quantised import (
    LAYOUTS,
    compressed_tensors,
    floats,
    with_quantisation,
)
from tests.support.sweeps import refused

pytestmark = pytest.mark.usefixtures("any_tensors")

PRUNED = {
    "method": "wanda",
    "pattern": "unstructured",
    "sparsity": 0.5,
    "measured_sparsity": 0.4977,
    "config": {"calibration": {"source": "gazetteer", "samples": 128}},
    "files": {"config.json": "9f", SINGLE: "3c"},
}


@pytest.fixture
def checkpoint(tmp_path):
    return write(tmp_path / "dense")


def test_keys_given_twice_are_refused(checkpoint):
    (checkpoint / "config.json").write_text(
        json.dumps(CONFIG)[:-1] + ', "vocab_size": 5}'
    )
    assert (
        only_error(checkpoint)
        == f"{checkpoint / 'config.json'}: key 'vocab_size' occurs twice"
    )


def test_a_dense_and_a_pruned_checkpoint(checkpoint, monkeypatch):
    info = inspect_checkpoint(checkpoint)
    assert (info.name, info.path, info.tensors, info.bytes, info.dtype) == (
        "dense",
        checkpoint,
        3,
        72,
        "bfloat16",
    )
    assert (info.method, info.pattern, info.sparsity, info.calibration) == (
        None,
        None,
        None,
        None,
    )
    assert inspect_checkpoint(checkpoint, "base").name == "base"
    monkeypatch.chdir(checkpoint)
    assert inspect_checkpoint(Path()).name == "dense"
    (checkpoint / MANIFEST).write_text(json.dumps(PRUNED))
    info = inspect_checkpoint(checkpoint)
    assert (info.method, info.pattern, info.calibration) == (
        "wanda",
        "unstructured",
        "gazetteer",
    )
    assert (info.sparsity, info.requested_sparsity) == (0.4977, 0.5)
    (checkpoint / MANIFEST).write_text(
        json.dumps({**PRUNED, "method": "magnitude", "config": {"calibration": None}})
    )
    assert inspect_checkpoint(checkpoint).calibration is None
    (checkpoint / MANIFEST).write_text(
        json.dumps({**PRUNED, "repair": "least_squares"})
    )
    assert inspect_checkpoint(checkpoint).method == "wanda + least_squares"


def test_the_digest_tells_weights_apart_however_they_are_cut_and_called(
    checkpoint, tmp_path
):
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
    assert {
        inspect_checkpoint(sharded).weights_digest,
        inspect_checkpoint(reordered).weights_digest,
    } == {digest}
    weights = tensors()
    head = weights.pop("lm_head.weight")
    head[0, 0] = 0.0
    minus, more = head.clone(), head.clone()
    minus[0, 0] = -0.0
    more[3, 2] += 1
    heads = [head, more, head.reshape(3, 4), head.view(torch.float16), minus]
    sets = [weights | {"lm_head.weight": each} for each in heads]
    sets += [
        weights | {"lm_head.weights": head},
        sets[0] | {"z": torch.zeros(0, dtype=torch.bfloat16)},
    ]
    assert len(
        {
            inspect_checkpoint(write(tmp_path / "a", each)).weights_digest
            for each in sets
        }
    ) == len(sets)


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (
            {
                "_name_or_path": "elsewhere",
                "transformers_version": "4.0",
                "use_cache": False,
            },
            True,
        ),
        ({"dtype": None, "torch_dtype": "bfloat16"}, True),
        ({"dtype": "float32"}, False),
        ({"rope_theta": 1e6}, False),
        ({"model_type": "mistral"}, False),
        ({"num_local_experts": 0, "text_config": {}}, False),
    ],
)
def test_the_architecture_is_what_a_swap_depends_on(checkpoint, tmp_path, change, same):
    weights = tensors()
    made = (
        write(tmp_path / str(seed), tensors(seed=seed), CONFIG | change)
        for seed in (1, 2)
    )
    other, alike = map(inspect_checkpoint, made)
    assert (inspect_checkpoint(checkpoint).architecture == other.architecture) is same
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
def test_no_engine_holds_two_quantised_checkpoints_or_two_mixtures_of_experts(
    tmp_path, said
):
    one, other = (
        write(tmp_path / str(seed), tensors(seed=seed), CONFIG | said)
        for seed in range(2)
    )
    assert (
        inspect_checkpoint(one).architecture != inspect_checkpoint(other).architecture
    )


def test_the_dtype_is_the_configuration_s_and_own_code_is_not_run_unless_trusted(
    tmp_path,
):
    found = []
    for config in (
        {"dtype": "float16"},
        {"torch_dtype": "torch.float32"},
        {},
        {"dtype": "auto"},
    ):
        directory = write(
            tmp_path / "m",
            tensors() | {"norm": torch.ones(3)},
            {"model_type": "qwen3"} | config,
        )
        found.append(inspect_checkpoint(directory).dtype)
    assert found == ["float16", "float32", "bfloat16", "bfloat16"]
    code = {"auto_map": {"AutoModelForCausalLM": "m.M"}}
    directory = write(
        tmp_path / "m", config=CONFIG | code | {"model_type": "of_its_own"}
    )
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
        ('{"model_type": 3}', "field 'model_type' must be a string, not 3"),
    ],
)
def test_directories_and_configurations_of_no_whole_checkpoint(
    checkpoint, content, part
):
    (checkpoint / "config.json").unlink()
    if content is not None:
        (checkpoint / "config.json").write_text(content)
    assert part in only_error(checkpoint)
    assert "is not a directory" in only_error(checkpoint / SINGLE)
    assert "half-written" in only_error(
        checkpoint.rename(checkpoint.with_name("out.partial"))
    )


def test_a_quantised_checkpoint_says_how_also_if_it_was_pruned_before(checkpoint):
    gptq = {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": 128,
        "desc_act": False,
        "sym": True,
        "dataset": "c4",
    }
    info = inspect_checkpoint(with_quantisation(checkpoint, gptq))
    assert (info.method, info.pattern, info.sparsity) == (
        "gptq",
        "W4A16 (gptq, group 128)",
        None,
    )
    assert info.calibration == "c4"
    assert info.quantisation is not None
    info = inspect_checkpoint(with_quantisation(checkpoint, LAYOUTS["w8a8"].config))
    assert (info.method, info.pattern, info.calibration) == (
        "quantised",
        "W8A8 (per channel)",
        None,
    )
    # as they were called before
    files = {**PRUNED["files"], "model-00001-of-00002.safetensors": "77"}
    (checkpoint / MANIFEST).write_text(json.dumps({**PRUNED, "files": files}))
    fp8 = compressed_tensors(
        "float-quantized", floats("channel"), floats("token", dynamic=True)
    )
    info = inspect_checkpoint(with_quantisation(checkpoint, fp8))
    assert (info.method, info.pattern) == (
        "wanda + quantised",
        "unstructured + FP8 (per channel)",
    )
    assert (info.sparsity, info.requested_sparsity, info.calibration) == (
        0.4977,
        0.5,
        "gazetteer",
    )


@pytest.mark.parametrize(
    ("manifest", "part"),
    [
        ("", "not JSON"),
        (
            {**PRUNED, "files": {"tokenizer.json": "aa"}},
            "lists tokenizer.json, which is missing",
        ),
        ({**PRUNED, "method": None}, "field 'method' must be a string, not null"),
        (
            {**PRUNED, "sparsity": "half"},
            "field 'sparsity' must be a number, not 'half'",
        ),
        (
            {**PRUNED, "config": {"calibration": {}}},
            "config.calibration: field 'source' is missing",
        ),
        *(
            ({k: v for k, v in PRUNED.items() if k != name}, f"field '{name}'")
            for name in (
                "method",
                "pattern",
                "sparsity",
                "measured_sparsity",
                "config",
                "files",
            )
        ),
    ],
)
def test_bad_manifests(checkpoint, manifest, part):
    (checkpoint / MANIFEST).write_text(
        manifest if isinstance(manifest, str) else json.dumps(manifest)
    )
    message = only_error(checkpoint)
    assert MANIFEST in message
    assert part in message


def test_files_that_were_not_written_since_are_not_read_again_and_others_are_refused(
    checkpoint, monkeypatch
):
    info = inspect_checkpoint(checkpoint)
    with monkeypatch.context() as patched:
        patched.setattr(described, "read_tensors", lambda _: pytest.fail("read again"))
        assert recognise(info) == info.files
    assert set(info.files) == {"config.json", SINGLE}
    (checkpoint / SINGLE).write_bytes((checkpoint / SINGLE).read_bytes())
    (checkpoint / "notes.json").write_text("{}")
    assert info.files != recognise(info) == inspect_checkpoint(checkpoint).files
    info = inspect_checkpoint(checkpoint)
    for other in (
        {"config": {**CONFIG, "rope_theta": 7.0}},
        {"weights": tensors(seed=1)},
    ):
        write(checkpoint, **other)
        assert "was replaced while the run went on" in refused(recognise, info)
        write(checkpoint)
        recognise(info)
    read = described.read_tensors

    def meanwhile(path):
        (path / SINGLE).write_bytes((path / SINGLE).read_bytes())
        return read(path)

    monkeypatch.setattr(described, "read_tensors", meanwhile)
    assert f"{checkpoint / SINGLE}: was written while it was read" in only_error(
        checkpoint
    )
