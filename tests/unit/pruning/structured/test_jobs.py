"""Whole jobs that take layers out of tiny models, against the brute force; how many
go."""

import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.info import inspect_checkpoint
from evaluator.checkpoints.manifests import PruneManifest
from pruning.methods.patterns import Share, format_ranges, read_numbers
from pruning.model.decoder import Decoder
from pruning.run import check, prune
from pruning.verify import examine
from tests.support import brute_force, structured
from tests.support import pruning as tiny
from tests.support.models import load_model
from tests.support.sweeps import refused

SAMPLES = 6


def architectures(*always: str, without: Iterable[str] = ()) -> list:
    """These, and in `make test-long` all that are pruned."""
    names = [name for name in (*tiny.ARCHITECTURES, *tiny.MORE) if name not in without]
    return [
        pytest.param(name, marks=() if name in always else pytest.mark.long)
        for name in names
    ]


def config(source: Path, passages: Path, method: str, **fields):
    return tiny.job(source, passages, method, SAMPLES, **fields)


def drop(source: Path, layers: str):
    return tiny.job(source, None, "drop", pattern=layers)


def sequences(source: Path) -> list[torch.Tensor]:
    return brute_force.sequences_of(source, tiny.lines(40)[:SAMPLES], tiny.LENGTH)


def weights_of(source: Path, layer: int | None = None) -> int:
    decoder = Decoder(Checkpoint(source), torch.device("cpu"))
    prefix = "model.layers." if layer is None else f"model.layers.{layer}."
    return sum(
        rows * columns
        for name, (rows, columns) in decoder.matrices().items()
        if name.startswith(prefix)
    )


def assert_dropped(source: Path, out: Path, layers: tuple[int, ...]) -> PruneManifest:
    """`drop` gives the logits of the source without these layers."""
    manifest = prune(drop(source, ",".join(map(str, layers))), out)
    texts = sequences(source)
    assert_answers(
        out,
        structured.logits(structured.without_layers(load_model(source), layers), texts),
        texts,
    )
    assert examine(out).problems == []
    return manifest


def assert_answers(
    out: Path, expected: list[torch.Tensor], texts: list[torch.Tensor]
) -> None:
    found = structured.logits(load_model(out), texts)
    assert all(
        torch.equal(one, other) for one, other in zip(found, expected, strict=True)
    )


@pytest.mark.parametrize(
    "name", architectures("qwen3", "gemma3_text", "mixtral", without=("gemma4_text",))
)
def test_the_stillest_block_of_layers_goes(name, checkpoints, passages, tmp_path):
    source, out = checkpoints(name, torch.float32), tmp_path / "out"
    texts = sequences(source)
    # 1.2 of 3 layers
    manifest = prune(config(source, passages, "layers", sparsity=0.4), out)
    distances = structured.distances(load_model(source), texts, 1)
    removed = manifest.removed
    assert removed.distances == pytest.approx(distances, abs=1e-5)
    gone = distances.index(min(distances))
    assert (removed.unit, removed.of, removed.gone) == ("layers", 3, (str(gone),))
    assert_answers(
        out,
        structured.logits(
            structured.without_layers(load_model(source), (gone,)), texts
        ),
        texts,
    )
    assert examine(out).problems == []
    assert manifest.measured_sparsity == pytest.approx(
        weights_of(source, gone) / weights_of(source)
    )
    assert manifest.layer_sparsity == tuple(float(layer == gone) for layer in range(3))
    info = inspect_checkpoint(out)
    assert (info.method, info.pattern, info.sparsity) == (
        "layers",
        "layers",
        pytest.approx(1 / 3),
    )


def test_listed_layers_go(checkpoints, tmp_path):
    """Of shards, one loses all that it held; the index and the numbers of the others
    are new."""
    source, out = (
        checkpoints("mistral", num_hidden_layers=5, max_shard_size="70KB"),
        tmp_path / "out",
    )
    manifest = assert_dropped(source, out, (3, 1, 2))
    assert (manifest.pattern, manifest.sparsity, manifest.removed.gone) == (
        "1-3",
        0.6,
        ("1-3",),
    )
    shards = sorted(out.glob("*.safetensors"))
    assert 1 < len(shards) < len(list(source.glob("*.safetensors")))
    assert [file.name for file in shards] == [
        f"model-{number + 1:05}-of-{len(shards):05}.safetensors"
        for number in range(len(shards))
    ]
    dense, small = tiny.weights(source), tiny.weights(out)
    assert small.keys() == {
        name
        for name in dense
        if not any(f"layers.{layer}." in name for layer in (2, 3, 4))
    }
    for name, weight in small.items():
        assert torch.equal(weight, dense[name.replace("layers.1.", "layers.4.")]), name


@pytest.mark.parametrize("gone", [0, 2])
def test_layer_lists_follow_their_layers(gone, checkpoints, tmp_path):
    """Full attention in the first layer and a window in the others, which Qwen2 says
    by counting from below."""
    window = {
        "use_sliding_window": True,
        "sliding_window": 4,
        "max_window_layers": 1,
        "layer_types": None,
    }
    copy = shutil.copytree(
        checkpoints("qwen2", torch.float32, **window), tmp_path / "copy"
    )
    settings = json.loads((copy / "config.json").read_text())
    del settings["layer_types"]
    (copy / "config.json").write_text(json.dumps(settings))
    out = tmp_path / "out"
    assert_dropped(copy, out, (gone,))
    settings = json.loads((out / "config.json").read_text())
    full = [] if gone == 0 else ["full_attention"]
    assert settings["layer_types"] == full + ["sliding_attention"] * (2 - len(full))
    assert settings["max_window_layers"] == len(full)


def test_gemma4_keeps_full_attention_last(checkpoints, tmp_path):
    """What is special about a layer is listed by its number; and the library makes
    the last layer a full one."""
    source, out = checkpoints("gemma4_text", torch.float32), tmp_path / "out"
    assert_dropped(source, out, (0,))
    settings = json.loads((out / "config.json").read_text())
    assert settings["per_layer_config"].keys() == {"1"}
    told = refused(check, drop(source, "2"), tmp_path / "other")
    assert "'full_attention'" in told.partition("layer 1 would be of another kind: ")[2]


def test_verify_compares_with_the_source(checkpoints, tmp_path):
    source = shutil.copytree(checkpoints("qwen3"), tmp_path / "source")
    out = tmp_path / "out"
    prune(drop(source, "1"), out)
    assert examine(out).source == source
    file = out / PruneManifest.FILE
    manifest = file.read_text()
    gone = '"gone":["1"]' if '"gone":["1"]' in manifest else '"1"\n'
    assert manifest.count(gone) == 1
    file.write_text(manifest.replace(gone, gone.replace("1", "2")))
    problems = examine(out).problems
    assert problems
    for problem in problems:
        assert "model.layers.1." in problem
        assert "is not what stays of model.layers.1." in problem
    file.write_text(manifest.replace(gone, gone.replace("1", "0-1")))
    assert "of 3 layers 2 are left, and another number went" in examine(out).problems[0]
    file.write_text(manifest)
    shutil.rmtree(source)
    assert (examine(out).problems, examine(out).source) == ([], None)


@pytest.mark.parametrize(
    ("name", "method", "fields", "message"),
    [
        (
            "qwen3",
            "layers",
            {"sparsity": 0.3},
            "sparsity: 0.3: of the 3 layers of .* none would go",
        ),
        ("qwen3", "drop", {"pattern": "1-3"}, "pattern: 1-3: .* has layers 0 to 2"),
        ("qwen3", "drop", {"pattern": "0-2"}, "pattern: 0-2: .* one must stay"),
    ],
)
def test_impossible_removal_is_refused(
    name, method, fields, message, checkpoints, passages, tmp_path
):
    assert re.search(
        message,
        refused(
            check,
            config(checkpoints(name), passages, method, **fields),
            tmp_path / "out",
        ),
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("28,20-22", (20, 21, 22, 28)),
        ("3-3,4", (3, 4)),
        ("1,2-99999", tuple(range(1, 100_000))),  # each beside each would take minutes
    ],
)
def test_layer_list_in_any_order(text, numbers):
    assert read_numbers(text) == numbers
    assert read_numbers(format_ranges(numbers)) == numbers


@pytest.mark.parametrize(
    ("ratio", "layers", "count"),
    [
        (0.25, 30, 7),
        (0.29, 100, 29),  # 28.999999999999996 in floating point
        (0.25, 3, 0),
        (1 - 1e-12, 4, 3),  # a model without layers is none
    ],
)
def test_shares_are_rounded_down(ratio, layers, count):
    assert Share(ratio).count(layers) == count
