"""The weights of a new checkpoint are read in full at most twice: once for their
digests, once by the engine."""

import builtins
import io
import os
import shutil
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from evaluator.checkpoints import tensors
from evaluator.checkpoints.files import digest_of_file
from evaluator.checkpoints.info import WRITTEN, inspect_checkpoint
from evaluator.core.errors import InputError
from pruning.run import prune
from quantising.config import QuantiseConfig
from quantising.run import quantise
from tests.support import pruning as tiny

SMALL = 600  # bytes; the models are tiny


@pytest.fixture
def reads(monkeypatch):
    """[bytes that were read of the weights of a checkpoint `out`]: a file that is
    mapped counts in full."""
    total = [0]

    def is_read(file: object, mode: str) -> bool:
        place = Path(str(file))
        return (
            place.parent.name in ("out", "checkpoint")
            and ".safetensors" in place.name
            and mode.startswith("r")
        )

    def counted(read):
        def call(*given):
            found = read(*given)
            total[0] += found if isinstance(found, int) else len(found)
            return found

        return call

    def opened(file, mode="r", *arguments, _open=io.open, **keywords):
        stream = _open(file, mode, *arguments, **keywords)
        if is_read(file, mode):
            stream.read, stream.readinto = (
                counted(stream.read),
                counted(stream.readinto),
            )
        return stream

    # numpy maps what it opens by this name
    def mapped(file, mode="r", *arguments, _open=builtins.open, **keywords):
        if is_read(file, mode):
            total[0] += Path(file).stat().st_size
        return _open(file, mode, *arguments, **keywords)

    monkeypatch.setattr(io, "open", opened)
    monkeypatch.setattr(builtins, "open", mapped)
    monkeypatch.setattr(tensors, "_SMALL", SMALL)
    WRITTEN.clear()
    return total


@pytest.fixture(params=["whole", "sharded"])
def source(request, checkpoints, tmp_path) -> Path:
    """A dense checkpoint of twelve layers: the order of their names is not that of
    their numbers."""
    made = checkpoints("llama", hidden_size=128, num_hidden_layers=12)
    if request.param == "whole":
        return made
    split = shutil.copytree(made, tmp_path / "split")
    (split / "model.safetensors").unlink()
    AutoModelForCausalLM.from_pretrained(made, dtype="auto").save_pretrained(
        split, max_shard_size="500KB"
    )
    assert len(list(split.glob("*.safetensors"))) > 2
    return split


def _make(name: str, source: Path, passages: Path, out: Path) -> dict[str, str]:
    if name in ("W4A16_ASYM", "W8A8"):
        group_size = 32 if name == "W4A16_ASYM" else None
        return quantise(
            QuantiseConfig(
                source=source, method="rtn", scheme=name, group_size=group_size
            ),
            out,
        ).files
    return prune(
        tiny.job(source, None if name == "magnitude" else passages, name, 4), out
    ).files


@pytest.mark.parametrize("name", ["magnitude", "wanda", "heads", "W4A16_ASYM", "W8A8"])
def test_a_new_checkpoint_is_read_once_before_the_engine_loads_it(
    name, source, passages, tmp_path, reads
):
    out = tmp_path / "out"
    files = _make(name, source, passages, out)
    info = inspect_checkpoint(out)
    size = sum(file.stat().st_size for file in out.glob("*.safetensors"))
    # headers, and what is small, are read several times
    assert info.bytes <= reads[0] < 1.25 * size
    assert files == {each: digest_of_file(out / each) for each in files}
    WRITTEN.clear()
    assert inspect_checkpoint(out) == info  # the digest is that of what is on disk


def test_a_file_that_changed_after_it_was_written_is_read_again(
    checkpoints, passages, tmp_path, reads
):
    out = tmp_path / "out"
    _make("magnitude", checkpoints("llama"), passages, out)
    before = inspect_checkpoint(out).weights_digest
    file = out / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(0, 0))
    assert inspect_checkpoint(out).weights_digest != before


def test_weights_that_are_not_finite_are_refused_by_who_inspects_them(
    checkpoints, passages, tmp_path, monkeypatch
):
    def refuses(*_):
        raise InputError("NaN")

    monkeypatch.setattr("pruning.output.export.digests", refuses)
    out = tmp_path / "out"
    files = _make("magnitude", checkpoints("llama"), passages, out)
    assert files == {each: digest_of_file(out / each) for each in files}
    assert out.absolute() not in WRITTEN


def test_tensors_that_find_no_room_to_wait_are_read_again(
    checkpoints, passages, tmp_path, monkeypatch, reads
):
    monkeypatch.setattr(tensors, "_KEPT", 0)
    out = tmp_path / "out"
    files = _make("W4A16_ASYM", checkpoints("llama", hidden_size=128), passages, out)
    assert files == {each: digest_of_file(out / each) for each in files}
