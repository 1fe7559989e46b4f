"""What a user can get wrong: one line that names file, field and value, before
anything is written."""

import gzip
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file

from evaluator.core.errors import InputError
from pruning.config import PruneConfig
from pruning.run import check, prune
from tests.support.pruning import job, magnitude
from tests.support.sweeps import rows

HALF_ZIPPED = gzip.compress(b'{"text": "w1"}\n' * 9, mtime=0)[:20]
GEMMA_4 = {"model_type": "gemma4_text", "sliding_window": 8}


@pytest.fixture
def copied(checkpoints, tmp_path) -> Path:
    return Path(shutil.copytree(checkpoints("qwen3"), tmp_path / "model"))


def refused(config: PruneConfig, out: Path, message: str, *, by=check) -> None:
    with pytest.raises(InputError, match=message) as caught:
        by(config, out)
    assert "\n" not in str(caught.value)
    assert not [file for file in out.parent.iterdir() if file.name.startswith(out.name)]


SENSELESS = """
sparsity: -0.1 | sparsity: -0.1
 | sparsity: must be given
pattern: '2:4', sparsity: 0.5 | cannot be combined
pattern: 2/4 | '2/4' is neither
sparsity: 0.5, method: wnada | unknown method
sparsity: 0.5, calibration: null | calibration: method 'wanda'
sparsity: 0.5, method: sparsegpt, group: row | group: 'row'
pattern: '2:4', allocation: owl | allocation: 'owl'
method: layers, sparsity: 1 | sparsity: 1.0: give a share of layers
method: layers, pattern: '2:4' | pattern: '2:4': of layers a share goes: give sparsity
method: drop, sparsity: 0.5 | pattern: '' is no list of layers, for example '20-25,28'
method: drop, pattern: '1', sparsity: 0.5 | sparsity: 0.5: which layers go is said by pattern
"""


@pytest.mark.parametrize(("fields", "message"), rows(SENSELESS))
def test_senseless_configuration_is_refused(fields, message, tmp_path):
    given = {
        "source": tmp_path,
        "method": "wanda",
        "calibration": {"source": "c4"},
    } | fields
    with pytest.raises(ValidationError, match=message):
        PruneConfig(**given)


def test_misfitting_parts_are_refused(checkpoints, passages, tmp_path):
    source, out = checkpoints("qwen3"), tmp_path / "out"
    other = tmp_path / "other.txt"
    other.write_text("w1 w2\n" * 9)
    config = job(checkpoints("qwen3", intermediate_size=90), passages, pattern="2:4")
    refused(
        config,
        out,
        r"2:4 does not divide the 90 columns of matrix"
        r" model.layers.0.mlp.down_proj.weight",
    )
    refused(
        job(source, passages, samples=41), out, "41 passages were requested, .* has 40"
    )
    refused(job(source, f"text:{passages},{other}"), out, "other.txt gives nothing")
    refused(
        job(checkpoints("qwen3", vocab_size=300), passages),
        out,
        "its embedding has 300 rows",
        by=prune,
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "latin.txt",
            "caf\xe9\n".encode("latin-1") * 9,
            "latin.txt, line 1: .* not UTF-8",
        ),
        (
            "a.jsonl",
            b'{"text": "w1 w2"}\n{"txet": 1}\n',
            "a.jsonl, line 2: field 'text'",
        ),
        ("d.jsonl.gz", HALF_ZIPPED, "d.jsonl.gz: calibration file cannot be read"),
    ],
)
def test_a_bad_calibration_file_is_named(name, content, message, checkpoints, tmp_path):
    (tmp_path / name).write_bytes(content)
    kind = "jsonl" if "jsonl" in name else "text"
    refused(
        job(checkpoints("qwen3"), f"{kind}:{tmp_path / name}"),
        tmp_path / "out",
        message,
    )


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("text:/nowhere/a.txt", "/nowhere/a.txt: calibration file cannot be read"),
        ("jsonl:/dev/zero", "/dev/zero: is a pipe, a socket or a device"),
        ("c5", "calibration.source: unknown source 'c5'; did you mean 'c4'?"),
        ("balanced:en,swahili,sw", "must name each language once"),
        ("balanced:en,sw,te,ar,fi", "12 cannot be the same number of each of 5"),
    ],
)
def test_a_bad_calibration_source_is_named(source, message, checkpoints, tmp_path):
    refused(job(checkpoints("qwen3"), source), tmp_path / "out", message)


def test_bad_place_is_refused(copied, tmp_path):
    config = magnitude(copied)
    refused(config, copied / "pruned", "is inside the source")
    (tmp_path / "out").mkdir()
    check(config, tmp_path / "out")
    (tmp_path / "out" / "thesis.tex").write_text("precious")
    (tmp_path / "elsewhere").mkdir()
    # nothing can be renamed onto it
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    places = (
        (copied, "is inside the source"),
        (tmp_path / "out", "exists and holds no checkpoint"),
        (tmp_path / "link", "link is"),
    )
    for place, message in places:
        with pytest.raises(InputError, match=message):
            prune(config, place)
    assert (tmp_path / "out" / "thesis.tex").read_text() == "precious"


@pytest.mark.parametrize("name", ["config.json", "prune_manifest.json", "NOTICE"])
def test_foreign_link_is_not_copied(name, copied, tmp_path):
    shutil.copyfile(copied / "config.json", tmp_path / "secret")
    (copied / name).unlink(missing_ok=True)
    (copied / name).symlink_to(tmp_path / "secret")
    message = f"{name}: is a link to {tmp_path / 'secret'}"
    for by in (check, prune):
        refused(magnitude(copied), tmp_path / "out", message, by=by)


def test_inner_links_are_copied(copied, tmp_path):
    (copied / "LICENSE").symlink_to("config.json")
    (copied / "model.safetensors").rename(tmp_path / "weights")
    # weights are read, not copied
    (copied / "model.safetensors").symlink_to(tmp_path / "weights")
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "x.jinja").write_text("secret")
    (copied / "additional_chat_templates").symlink_to(tmp_path / "templates")
    refused(magnitude(copied), tmp_path / "out", r"x\.jinja: is a link to")
    (copied / "additional_chat_templates").unlink()
    prune(magnitude(copied), tmp_path / "out")
    config = (copied / "config.json").read_bytes()
    assert (tmp_path / "out" / "LICENSE").read_bytes() == config
    assert not (tmp_path / "out" / "model.safetensors").is_symlink()


KEYS = "model.layers.2.self_attn.k_proj.weight"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (KEYS, lambda old: None, f"tensor {KEYS} is missing"),
        (KEYS, lambda old: old[:-1].clone(), f"tensor {KEYS} has shape"),
        (KEYS, lambda old: old.to(torch.int8), f"tensor {KEYS} has type I8"),
        # which no matrix is: only the whole read sees it
        ("model.norm.weight", lambda old: old / 0, "'model.norm.weight' holds NaN"),
    ],
)
def test_bad_tensors_are_named(name, change, message, copied, tmp_path):
    tensors = load_file(copied / "model.safetensors")
    tensors[name] = change(tensors[name])
    kept = {key: tensor for key, tensor in tensors.items() if tensor is not None}
    save_file(kept, copied / "model.safetensors", {"format": "pt"})
    refused(magnitude(copied), tmp_path / "out", message, by=prune)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model_type": "qwen2_moe", "num_experts": 8},
            "'qwen2_moe' is a mixture of experts.*: mixtral, olmoe, qwen3",
        ),
        (GEMMA_4, "field 'hidden_size_per_layer_input' is 256: .* cannot be pruned"),
        (
            {"quantization_config": {"quant_method": "gptq", "bits": 4}},
            "already quantised .*'gptq'.*; compress the dense model",
        ),
    ],
)
def test_other_architectures_are_named(change, message, copied, tmp_path):
    settings = json.loads((copied / "config.json").read_text()) | change
    (copied / "config.json").write_text(json.dumps(settings))
    refused(magnitude(copied), tmp_path / "out", message)


def test_missing_tokenizer_is_refused(copied, passages, tmp_path):
    for file in copied.glob("tokenizer*"):
        file.unlink()
    refused(job(copied, passages), tmp_path / "out", "the tokenizer has no vocabulary")
    (copied / "tokenizer.json").write_text("{}")
    refused(job(copied, passages), tmp_path / "out", "the tokenizer cannot be loaded")


def test_missing_gpu_or_space(checkpoints, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10))
    for device, message in (
        ("cuda", "device: 'cuda' is not on"),
        ("cpu", "no space left"),
    ):
        refused(
            magnitude(checkpoints("qwen3"), device=device), tmp_path / "out", message
        )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "generation_config.json",
            '{"eos_token_id": "</s>"}',
            "eos_token_id' must be a token id",
        ),
        ("tokenizer.json", "{", "the tokenizer cannot be loaded"),
    ],
)
def test_eval_refusals_are_not_pruned(name, content, message, copied, tmp_path):
    """Not by a method without calibration either, which encodes nothing."""
    (copied / name).write_text(content)
    refused(magnitude(copied), tmp_path / "out", message)


@pytest.mark.parametrize("pattern", [{"sparsity": 0.5}, {"pattern": "2:4"}])
def test_updates_beyond_the_dtype_are_named(pattern, checkpoints, passages, tmp_path):
    """The last layer's matrices too, whose output enters no other."""
    source = shutil.copytree(checkpoints("llama", torch.float16), tmp_path / "source")
    name = "model.layers.2.mlp.up_proj.weight"
    tensors = load_file(source / "model.safetensors")
    tensors[name] *= 65504 / tensors[name].abs().max().float()
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    message = rf"source: tensor {name}: .* which torch.float16 does not hold"
    config = job(source, passages, method="sparsegpt", **pattern)
    refused(config, tmp_path / "out", message, by=prune)
    assert not (tmp_path / "out").exists()
