"""What a checkpoint is said to be, and every way in which one is refused before an engine starts."""

import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from evaluator.checkpoint import MANIFEST, inspect_checkpoint
from evaluator.errors import InputError
from evaluator.safetensors_files import _CHUNK, INDEX, SINGLE, read_tensors
from tests.tiny_models import save_tiny_model

CONFIG = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 4, "dtype": "bfloat16"}
PRUNED = {
    "method": "wanda",
    "pattern": "unstructured",
    "sparsity": 0.5,
    "config": {"calibration": {"source": "gazetteer", "samples": 128}},
    "files": {"config.json": "9f", SINGLE: "3c"},
}


def tensors(seed=0, dtype=torch.bfloat16):
    made = torch.Generator().manual_seed(seed)
    names = ("model.embed.weight", "model.a.weight", "lm_head.weight")
    return {name: torch.randn(4, 3, generator=made).to(dtype) for name in names}


def write(directory, weights=None, config=None):
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG if config is None else config))
    save_file(tensors() if weights is None else weights, directory / SINGLE)
    return directory


def write_sharded(directory, weights, parts, config=None):
    """`parts`: shard name -> tensor names."""
    write(directory, config=config)
    (directory / SINGLE).unlink()
    for shard, names in parts.items():
        save_file({name: weights[name] for name in names}, directory / shard)
    weight_map = {name: shard for shard, names in parts.items() for name in names}
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return directory


def only_error(directory, **arguments):
    with pytest.raises(InputError) as caught:
        inspect_checkpoint(directory, **arguments)
    assert "\n" not in str(caught.value)
    assert str(directory) in str(caught.value)
    return str(caught.value)


@pytest.fixture
def checkpoint(tmp_path):
    return write(tmp_path / "dense")


# ---- what it says -----------------------------------------------------------------------------------------------


def test_a_dense_checkpoint(checkpoint):
    info = inspect_checkpoint(checkpoint)
    assert (info.name, info.path, info.parameters, info.bytes, info.dtype) == ("dense", checkpoint, 3, 72, "bfloat16")
    assert (info.method, info.pattern, info.sparsity, info.calibration) == (None, None, None, None)
    assert inspect_checkpoint(checkpoint, "base").name == "base"


def test_a_real_one(tmp_path):
    info = inspect_checkpoint(save_tiny_model(tmp_path / "tiny"))
    weights = load_file(tmp_path / "tiny" / SINGLE)
    assert info.parameters == len(weights)
    assert info.bytes == sum(weight.numel() * weight.element_size() for weight in weights.values())
    assert info.dtype == "float32"


def test_the_name_of_the_working_directory(checkpoint, monkeypatch):
    monkeypatch.chdir(checkpoint)
    assert inspect_checkpoint(Path()).name == "dense"


def test_a_pruned_checkpoint(checkpoint):
    (checkpoint / MANIFEST).write_text(json.dumps(PRUNED))
    info = inspect_checkpoint(checkpoint)
    assert (info.method, info.pattern, info.sparsity, info.calibration) == ("wanda", "unstructured", 0.5, "gazetteer")
    (checkpoint / MANIFEST).write_text(json.dumps({**PRUNED, "method": "magnitude", "config": {"calibration": None}}))
    assert inspect_checkpoint(checkpoint).calibration is None


def test_the_digest_is_of_the_weights_however_they_are_cut_and_called(checkpoint, tmp_path):
    weights = tensors()
    first, *others = sorted(weights)
    digest = inspect_checkpoint(checkpoint).weights_digest
    sharded = write_sharded(tmp_path / "s", weights, {"m-1.safetensors": others, "m-2.safetensors": [first]})
    reordered = write(tmp_path / "r", dict(reversed(weights.items())), {**CONFIG, "_name_or_path": "x"})
    assert {inspect_checkpoint(sharded).weights_digest, inspect_checkpoint(reordered).weights_digest} == {digest}


@pytest.mark.parametrize("change", ["value", "name", "shape", "dtype", "sign of zero", "more"])
def test_the_digest_tells_weights_apart(tmp_path, change):
    weights = tensors()
    weights["lm_head.weight"][0, 0] = 0.0
    before = inspect_checkpoint(write(tmp_path / "a", weights)).weights_digest
    head = weights["lm_head.weight"]
    if change == "value":
        head[3, 2] += 1
    elif change == "name":
        weights["lm_head.weights"] = weights.pop("lm_head.weight")
    elif change == "shape":
        weights["lm_head.weight"] = head.reshape(3, 4)
    elif change == "dtype":
        weights["lm_head.weight"] = head.view(torch.float16)
    elif change == "sign of zero":
        head[0, 0] = -0.0
    else:
        weights["z"] = torch.zeros(0, dtype=torch.bfloat16)
    assert inspect_checkpoint(write(tmp_path / "b", weights)).weights_digest != before


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"_name_or_path": "elsewhere", "transformers_version": "4.0", "use_cache": False}, True),
        ({"dtype": None, "torch_dtype": "bfloat16"}, True),
        ({"dtype": "float32"}, False),
        ({"vocab_size": 5}, False),
        ({"rope_theta": 1e6}, False),
        ({"model_type": "mistral"}, False),
    ],
)
def test_the_architecture_is_what_a_swap_depends_on(checkpoint, tmp_path, change, same):
    other = write(tmp_path / "b", tensors(seed=1), CONFIG | change)
    assert (inspect_checkpoint(checkpoint).architecture == inspect_checkpoint(other).architecture) is same


def test_the_architecture_knows_tensors_too(checkpoint, tmp_path):
    weights = tensors()
    tied = write(tmp_path / "tied", {name: weights[name] for name in weights if name != "lm_head.weight"})
    assert inspect_checkpoint(tied).architecture != inspect_checkpoint(checkpoint).architecture


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        ({"dtype": "float16"}, "float16"),
        ({"torch_dtype": "torch.float32"}, "float32"),
        ({}, "bfloat16"),
        ({"dtype": "auto"}, "bfloat16"),
    ],
)
def test_the_dtype_is_the_configuration_s_or_that_of_most_weights(tmp_path, config, dtype):
    weights = tensors() | {"norm": torch.ones(3)}
    assert inspect_checkpoint(write(tmp_path / "m", weights, {"model_type": "qwen3"} | config)).dtype == dtype


# ---- weights that are not finite --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_weights_that_are_not_finite_are_refused_by_name(tmp_path, dtype, value):
    weights = tensors()
    bad = torch.zeros(5, 7)
    bad[4, 6] = float(value)
    weights["model.a.weight"] = bad.to(dtype)
    message = only_error(write(tmp_path / "bad", weights))
    assert "tensor 'model.a.weight' holds NaN or infinity" in message


def test_float8_without_infinities(tmp_path):
    weights = {"w": torch.full((3,), 448.0).to(torch.float8_e4m3fn)}
    assert inspect_checkpoint(write(tmp_path / "ok", weights)).parameters == 1
    weights = {"w": torch.full((3,), float("nan")).to(torch.float8_e4m3fn)}
    assert "tensor 'w'" in only_error(write(tmp_path / "bad", weights))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_largest_and_the_smallest_numbers_are_finite(tmp_path, dtype):
    limits = torch.finfo(dtype)
    weights = {"w": torch.tensor([limits.max, limits.min, limits.tiny, limits.smallest_normal, 0.0, -0.0], dtype=dtype)}
    assert inspect_checkpoint(write(tmp_path / "ok", weights)).parameters == 1


@settings(max_examples=50, deadline=None)
@given(values=st.lists(st.floats(width=32), min_size=1, max_size=20))
def test_finite_as_numpy_sees_it(tmp_path_factory, values):
    directory = write(tmp_path_factory.mktemp("checkpoint"), {"w": torch.tensor(values, dtype=torch.float32)})
    if np.isfinite(np.array(values, dtype=np.float32)).all():
        assert inspect_checkpoint(directory).parameters == 1
    else:
        assert "tensor 'w'" in only_error(directory)


@pytest.mark.parametrize("position", [0, _CHUNK // 2 - 1, _CHUNK // 2, _CHUNK // 2 + 4])
def test_a_tensor_of_more_than_one_chunk(tmp_path, position):
    weight = torch.ones(_CHUNK // 2 + 5, dtype=torch.bfloat16)
    directory = write(tmp_path / "big", {"w": weight})
    before = inspect_checkpoint(directory).weights_digest
    weight[position] = 2
    assert inspect_checkpoint(write(directory, {"w": weight})).weights_digest != before
    weight[position] = torch.inf
    assert "tensor 'w'" in only_error(write(directory, {"w": weight}))


def test_integers_and_empty_tensors_are_taken(tmp_path):
    weights = {"i": torch.tensor([2**31 - 1], dtype=torch.int32), "b": torch.tensor([True]), "e": torch.zeros(0, 3)}
    assert inspect_checkpoint(write(tmp_path / "m", weights | tensors())).parameters == 6


# ---- directories that are no whole checkpoint -------------------------------------------------------------------


def test_directories(tmp_path, checkpoint):
    assert "no such directory" in only_error(tmp_path / "gone")
    assert "is not a directory" in only_error(checkpoint / SINGLE)
    assert "half-written" in only_error(Path(shutil.copytree(checkpoint, tmp_path / "out.partial-77")))
    (checkpoint / f"{SINGLE}.partial").touch()
    assert "half-written" in only_error(checkpoint)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (None, "config.json is missing"),
        ("", "config.json: not JSON"),
        ("{", "config.json: not JSON"),
        ("[]", "config.json must be an object"),
        ("{}", "config.json: field 'model_type' is missing"),
        ('{"model_type": 3}', "field 'model_type' must be a string, not 3"),
    ],
)
def test_configurations(checkpoint, content, part):
    (checkpoint / "config.json").unlink()
    if content is not None:
        (checkpoint / "config.json").write_text(content)
    assert part in only_error(checkpoint)


def test_code_of_its_own_is_not_run_unless_trusted(tmp_path):
    directory = write(tmp_path / "m", config=CONFIG | {"auto_map": {"AutoModelForCausalLM": "m.M"}})
    assert "config.json: field 'auto_map'" in only_error(directory)
    assert inspect_checkpoint(directory, trust_remote_code=True).parameters == 3


def test_other_weight_files_are_not_read(checkpoint):
    (checkpoint / SINGLE).unlink()
    assert "holds no *.safetensors file" in only_error(checkpoint)
    (checkpoint / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    assert "safetensors only, not from pytorch_model.bin" in only_error(checkpoint)


def test_several_files_need_an_index(checkpoint):
    save_file(tensors(), checkpoint / "other.safetensors")
    assert f"2 *.safetensors files and no {INDEX}" in only_error(checkpoint)


def sharded(tmp_path):
    names = sorted(tensors())
    return write_sharded(tmp_path / "s", tensors(), {"a.safetensors": names[:2], "b.safetensors": names[2:]}), names


def test_a_missing_shard(tmp_path):
    directory, _ = sharded(tmp_path)
    (directory / "b.safetensors").unlink()
    assert f"{INDEX}: field 'weight_map' names 'b.safetensors', which is missing" in only_error(directory)


def test_a_missing_tensor(tmp_path):
    directory, names = sharded(tmp_path)
    save_file({names[0]: tensors()[names[0]]}, directory / "a.safetensors")
    assert f"a.safetensors: lacks tensor '{names[1]}'" in only_error(directory)


def test_a_tensor_in_two_shards(tmp_path):
    directory, _ = sharded(tmp_path)
    save_file(tensors(), directory / "b.safetensors")
    assert "is also in a.safetensors" in only_error(directory)


def test_an_index_beside_a_single_file(tmp_path):
    directory, _ = sharded(tmp_path)
    save_file(tensors(), directory / SINGLE)
    assert "remove one of them" in only_error(directory)


@pytest.mark.parametrize(
    ("index", "part"),
    [
        ("{", "not JSON"),
        ({}, "field 'weight_map' is missing"),
        ({"weight_map": []}, "must be an object"),
        ({"weight_map": {}}, "is empty"),
        ({"weight_map": {"w": 3}}, "weight_map['w'] must be a string"),
        ({"weight_map": {"w": "../dense/model.safetensors"}}, "names '../dense/model.safetensors', which is missing"),
    ],
)
def test_bad_indices(tmp_path, checkpoint, index, part):
    directory, _ = sharded(tmp_path)
    (directory / INDEX).write_text(index if isinstance(index, str) else json.dumps(index))
    assert part in only_error(directory)


@pytest.mark.parametrize("size", [0, 4, 8, 40, -1, -72])
def test_truncated_files(checkpoint, size):
    file = checkpoint / SINGLE
    content = file.read_bytes()
    file.write_bytes(content[:size])
    assert f"{file}: truncated" in only_error(checkpoint)


def test_trailing_bytes(checkpoint):
    with (checkpoint / SINGLE).open("ab") as stream:
        stream.write(b"\0")
    assert "bytes, but its header describes" in only_error(checkpoint)


def test_every_truncation_of_a_whole_file_is_refused(checkpoint):
    file = checkpoint / SINGLE
    content = file.read_bytes()
    for size in range(len(content)):
        file.write_bytes(content[:size])
        assert SINGLE in only_error(checkpoint)


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    ("header", "part"),
    [
        ("nonsense", "not JSON"),
        ([], "header must be an object"),
        ({}, "holds no tensor"),
        ({"__metadata__": {"format": "pt"}}, "holds no tensor"),
        ({"w": 3}, "tensor 'w' must be an object"),
        ({"w": {"dtype": "F32", "shape": [2]}}, "tensor 'w': field 'data_offsets' is missing"),
        ({"w": entry(dtype="F31")}, "field 'dtype' is 'F31'"),
        ({"w": entry(dtype=3)}, "field 'dtype' must be a string"),
        ({"w": entry(shape=(-2,))}, "not counts"),
        ({"w": entry(shape=(True, 2))}, "not counts"),
        ({"w": entry(shape=("2",))}, "not counts"),
        ({"w": entry(offsets=(0,))}, "not counts"),
        ({"w": entry(shape=(3,))}, "8 bytes do not hold shape [3] of F32"),
        ({"w": entry(offsets=(8, 0))}, "-8 bytes do not hold"),
        ({"w": entry(offsets=(4, 12))}, "starts at byte"),
        ({"w": entry(), "x": entry()}, "starts at byte"),
        ({"w": entry(), "x": entry(offsets=(4, 12))}, "starts at byte"),
        ({"w": entry(offsets=(10**15, 10**15 + 8))}, "starts at byte"),
        ({"w": entry(shape=(10**15,), offsets=(0, 4 * 10**15))}, "truncated"),
    ],
)
def test_bad_headers(checkpoint, header, part):
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    (checkpoint / SINGLE).write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * 8)
    assert part in only_error(checkpoint)


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 100_000_001, 10_000])
def test_a_header_s_length_is_not_trusted(checkpoint, length):
    (checkpoint / SINGLE).write_bytes(struct.pack("<Q", length) + b"{}")
    assert "hold no whole header" in only_error(checkpoint)


def test_tensors_lie_where_safetensors_puts_them(checkpoint):
    expected = load_file(checkpoint / SINGLE)
    found = read_tensors(checkpoint)
    assert [tensor.name for tensor in found] == sorted(expected)
    for tensor in found:
        content = b"".join(bytes(chunk) for chunk in tensor.chunks())
        assert content == expected[tensor.name].view(torch.uint8).numpy().tobytes()
        assert tensor.shape == tuple(expected[tensor.name].shape)


# ---- manifests --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("manifest", "part"),
    [
        ("", "not JSON"),
        ("[]", "must be an object"),
        ({**PRUNED, "files": {"tokenizer.json": "aa"}}, "lists tokenizer.json, which is missing"),
        ({**PRUNED, "method": None}, "field 'method' must be a string, not null"),
        ({**PRUNED, "sparsity": "half"}, "field 'sparsity' must be a number, not 'half'"),
        ({**PRUNED, "config": []}, "field 'config' must be an object"),
        ({**PRUNED, "config": {"calibration": {}}}, "config.calibration: field 'source' is missing"),
        *(
            ({k: v for k, v in PRUNED.items() if k != name}, f"field '{name}'")
            for name in ("method", "pattern", "sparsity", "config", "files")
        ),
    ],
)
def test_bad_manifests(checkpoint, manifest, part):
    (checkpoint / MANIFEST).write_text(manifest if isinstance(manifest, str) else json.dumps(manifest))
    message = only_error(checkpoint)
    assert MANIFEST in message
    assert part in message
