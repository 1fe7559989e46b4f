"""Weights: damaged files and NaN are refused by name; how checkpoints differ."""

import json
import shutil
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.info import inspect_checkpoint
from evaluator.checkpoints.quantisation import read_quantisation
from evaluator.checkpoints.shapes import expert_field, text_model
from evaluator.checkpoints.tensors import (
    _CHUNK,
    INDEX,
    SINGLE,
    count_weights,
    read_tensors,
)
from launch.sweep.models import vocabulary_of
from tests.support.checkpoint_files import only_error, tensors, write
from tests.support.models import VOCABULARY, save_tiny_model
from tests.support.quantised import LAYOUTS
from tests.support.sweeps import refused

pytestmark = pytest.mark.usefixtures("any_tensors")


@pytest.fixture
def checkpoint(tmp_path):
    return write(tmp_path / "dense")


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2],
)
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_infinite_weights_are_named(tmp_path, dtype, value):
    bad = torch.zeros(5, 7)
    bad[4, 6] = float(value)
    message = only_error(
        write(tmp_path / "bad", tensors() | {"model.a.weight": bad.to(dtype)})
    )
    assert "tensor 'model.a.weight' holds NaN or infinity" in message


def test_limits_are_finite(tmp_path):
    weights = {
        "i": torch.tensor([2**31 - 1], dtype=torch.int32),
        "b": torch.tensor([True]),
        "e": torch.zeros(0, 3),
    }
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn):
        limits = torch.finfo(dtype)
        weights[str(dtype)] = torch.tensor(
            [limits.max, limits.min, limits.tiny, 0.0, -0.0]
        ).to(dtype)
    assert inspect_checkpoint(write(tmp_path / "m", weights)).tensors == 7
    # which has no infinity
    float8 = {"w": torch.tensor([448.0, float("nan")]).to(torch.float8_e4m3fn)}
    assert "tensor 'w'" in only_error(write(tmp_path / "bad", float8))


@pytest.mark.parametrize("position", [_CHUNK // 2 - 1, _CHUNK // 2])
def test_tensor_of_two_chunks(tmp_path, position):
    weight = torch.ones(_CHUNK // 2 + 5, dtype=torch.bfloat16)
    directory = write(tmp_path / "big", {"w": weight})
    before = inspect_checkpoint(directory).weights_digest
    weight[position] = 2
    assert inspect_checkpoint(write(directory, {"w": weight})).weights_digest != before
    weight[position] = torch.inf
    assert "tensor 'w'" in only_error(write(directory, {"w": weight}))


def stored(header: str | dict, content: bytes = b"\0" * 8, length=None) -> bytes:
    """A safetensors file, whatever it says."""
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    length = len(text) if length is None else length
    return struct.pack("<Q", length) + text + content


def floats(first: int, end: int, shape: int = 2) -> dict:
    return {"dtype": "F32", "shape": [shape], "data_offsets": [first, end]}


def index(**weight_map: object) -> bytes:
    homes = {name: f"{shard}.safetensors" for name, shard in weight_map.items()}
    return json.dumps({"weight_map": homes}).encode()


ONE = stored({"w": floats(0, 8)})
DAMAGED = f"{SINGLE}: truncated, or not a safetensors file"
BAD_FILES = [
    ({SINGLE: ONE + b"\0"}, DAMAGED),
    ({SINGLE: ONE[:-1]}, DAMAGED),
    ({SINGLE: stored("{}", length=2**60)}, DAMAGED),
    ({SINGLE: stored({"w": floats(0, 8, shape=3)})}, DAMAGED),
    ({SINGLE: stored({"v": floats(0, 8), "w": floats(0, 8)})}, DAMAGED),
    ({SINGLE: stored({"__metadata__": {"format": "pt"}}, b"")}, "holds no tensor"),
    ({"pytorch_model.bin": b"cos\nsystem\n"}, "weights are read from safetensors only"),
    ({"a.safetensors": ONE, "b.safetensors": ONE}, f"files and no {INDEX} that lists"),
    ({INDEX: b"{"}, "not JSON"),
    ({INDEX: b'{"weight_map": {"w": "a", "w": "b"}}'}, "key 'w' occurs twice"),
    ({INDEX: b'{"weight_map": []}'}, "must be an object"),
    ({INDEX: b'{"weight_map": {}}'}, "is empty"),
    ({INDEX: b'{"weight_map": {"w": 3}}'}, "weight_map['w'] must be a string"),
    ({INDEX: index(w="../a")}, "names '../a.safetensors', which is missing"),
    ({INDEX: index(w="a")}, "names 'a.safetensors', which is missing"),
    ({INDEX: index(v="a"), "a.safetensors": ONE}, "a.safetensors: lacks tensor 'v'"),
    (
        {INDEX: index(v="a", w="b"), "a.safetensors": ONE, "b.safetensors": ONE},
        "is also in a.safetensors",
    ),
    ({INDEX: index(w="a"), "a.safetensors": ONE, SINGLE: ONE}, "remove one of them"),
]


@pytest.mark.parametrize(("files", "part"), BAD_FILES)
def test_bad_files_are_one_line(checkpoint, files, part):
    (checkpoint / SINGLE).unlink()
    for name, content in files.items():
        (checkpoint / name).write_bytes(content)
    assert part in only_error(checkpoint)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_quantised_weights_count_unpacked(tmp_path, layout):
    # the last int32 of a row is padded
    columns = 60 if layout == "w4a16-channel" else 128
    parts = LAYOUTS[layout].store(torch.randn(64, columns)).tensors
    weights = {f"model.q.{name}": tensor.contiguous() for name, tensor in parts.items()}
    save_file(weights | {"model.embed.weight": torch.zeros(7, 3)}, tmp_path / SINGLE)
    quantisation = read_quantisation(
        tmp_path, {"quantization_config": LAYOUTS[layout].config}
    )
    assert (
        count_weights(read_tensors(tmp_path), quantisation.scheme) == 64 * columns + 21
    )


@pytest.mark.parametrize(
    ("scheme", "names", "weights"),
    [
        # dense: a name means nothing
        (None, {"q.weight": (4, 6), "q.weight_scale": (4,)}, 28),
        (
            "NVFP4",
            {
                "q.weight_packed": (4, 3),
                "q.weight_scale": (4, 1),
                "q.weight_global_scale": (1,),
            },
            24,
        ),
        (
            "NF4",
            {
                "q.weight": (12, 1),
                "q.weight.absmax": (1,),
                "q.weight.quant_state.bitsandbytes__nf4": (9,),
            },
            24,
        ),
        (
            "MXFP4",
            {"experts.down_proj_blocks": (2, 6), "experts.down_proj_scales": (2,)},
            24,
        ),
    ],
)
def test_two_weights_lie_in_a_byte(tmp_path, scheme, names, weights):
    dtype = torch.float32 if scheme is None else torch.uint8
    save_file(
        {name: torch.zeros(shape, dtype=dtype) for name, shape in names.items()},
        tmp_path / SINGLE,
    )
    assert count_weights(read_tensors(tmp_path), scheme) == weights


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return save_tiny_model(
        tmp_path_factory.mktemp("models") / "one", "qwen3", eos_ids=(5, 9)
    )


@pytest.fixture
def edited(saved, tmp_path):
    return Path(shutil.copytree(saved, tmp_path / "edited"))


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_spelled_defaults_are_no_difference(saved, tmp_path, edited):
    blueprint = Checkpoint(saved)
    assert (
        blueprint.difference(Checkpoint(save_tiny_model(tmp_path / "two", "qwen3", 1)))
        is None
    )
    assert (blueprint.vocabulary, blueprint.longest) == (VOCABULARY, 2048)
    assert blueprint.shards == [saved / "model.safetensors"]
    edit(
        edited / "config.json",
        attention_dropout=0.0,
        transformers_version="0",
        use_cache=False,
    )
    config = json.loads((edited / "config.json").read_text())
    config.pop("attention_bias", None)
    (edited / "config.json").write_text(json.dumps(config))
    assert Checkpoint(saved).difference(Checkpoint(edited)) is None
    edit(edited / "config.json", rms_norm_eps=0.5, num_local_experts=4)
    assert [Checkpoint(each).is_mixture for each in (saved, edited)] == [False, True]
    edit(edited / "config.json", num_local_experts=None)
    assert (
        Checkpoint(saved).difference(Checkpoint(edited))
        == "config.json: rms_norm_eps is 0.5, not 1e-06"
    )


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("model.norm.weight", lambda _: None, "tensor model.norm.weight is missing"),
        (
            "extra",
            lambda norm: norm,
            "tensor extra is not part of the served architecture",
        ),
        (
            "model.norm.weight",
            lambda norm: norm[:32].clone(),
            "tensor model.norm.weight is F32 [32], not F32 [64]",
        ),
        (
            "model.norm.weight",
            lambda norm: norm.bfloat16(),
            "tensor model.norm.weight is BF16 [64], not F32 [64]",
        ),
    ],
)
def test_tensors_that_differ_are_named(saved, edited, name, change, message):
    tensors = load_file(edited / "model.safetensors")
    tensors[name] = change(tensors["model.norm.weight"].clone())
    save_file(
        {key: each for key, each in tensors.items() if each is not None},
        edited / "model.safetensors",
    )
    assert Checkpoint(saved).difference(Checkpoint(edited)) == message


def test_tower_sizes_are_the_text_s(saved, edited):
    config = json.loads((edited / "config.json").read_text())
    edit(edited / "config.json", vocab_size="many")
    message = refused(lambda: Checkpoint(edited).vocabulary)
    assert "vocab_size" in message.partition("config.json: ")[2]
    text = config | {"model_type": "gemma3_text", "sliding_window": 8, "num_experts": 8}
    whole = {"model_type": "gemma3", "head_dim": 1, "text_config": text}
    (edited / "config.json").write_text(json.dumps(whole))
    checkpoint = Checkpoint(edited)
    assert (checkpoint.vocabulary, checkpoint.longest) == (VOCABULARY, 2048)
    assert checkpoint.positions(unknown=1) == 2048
    assert vocabulary_of(edited) == VOCABULARY
    assert checkpoint.dtype == config["dtype"]
    assert expert_field(whole) == "num_experts"
    assert text_model(whole)["head_dim"] == config["head_dim"]
    assert text_model({"text_config": None}) == {"text_config": None}


def test_single_file_counts_alone(checkpoint):
    """Beside an index of itself, or other weights: but an engine would load them."""
    index = {"weight_map": dict.fromkeys(tensors(), SINGLE)}
    (checkpoint / INDEX).write_text(json.dumps(index))
    assert Checkpoint(checkpoint).index is None
    assert Checkpoint(checkpoint).tensors.keys() == tensors().keys()
    (checkpoint / INDEX).unlink()
    save_file({"w": torch.ones(1)}, checkpoint / "other.safetensors")
    assert Checkpoint(checkpoint).tensors.keys() == tensors().keys()
    assert f"2 *.safetensors files and no {INDEX}" in only_error(checkpoint)
