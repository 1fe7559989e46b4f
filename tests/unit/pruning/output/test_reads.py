"""The weights of a source and of a new checkpoint are read in full at most twice: once
for their digests, once for the work."""

import io
import os
import shutil
from collections import Counter
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from evaluator.checkpoints.files import digest_of_file
from evaluator.checkpoints.info import inspect_checkpoint
from evaluator.checkpoints.tensors import PROVEN
from pruning.run import prune
from quantising.config import QuantiseConfig
from quantising.run import quantise
from tests.support import pruning as tiny


@pytest.fixture
def reads(monkeypatch):
    """How many bytes of weights were read, by directory."""
    total: Counter[str] = Counter()

    def counted(read, folder):
        def call(*given):
            found = read(*given)
            total[folder] += found if isinstance(found, int) else len(found)
            return found

        return call

    def opened(file, mode="r", *arguments, _open=io.open, **keywords):
        stream = _open(file, mode, *arguments, **keywords)
        if str(file).endswith(".safetensors") and mode == "rb":
            folder = Path(str(file)).parent.name.replace("checkpoint", "out")
            stream.read = counted(stream.read, folder)
            stream.readinto = counted(stream.readinto, folder)
        return stream

    monkeypatch.setattr(io, "open", opened)
    PROVEN.clear()
    return total


@pytest.fixture(params=["whole", "sharded"])
def source(request, checkpoints, tmp_path) -> Path:
    """A dense checkpoint of twelve layers: the order of their names is not that of
    their numbers."""
    made = checkpoints("llama", hidden_size=128, num_hidden_layers=12)
    split = Path(shutil.copytree(made, tmp_path / "source"))
    if request.param == "sharded":
        (split / "model.safetensors").unlink()
        model = AutoModelForCausalLM.from_pretrained(made, dtype="auto")
        model.save_pretrained(split, max_shard_size="500KB")
        assert len(list(split.glob("*.safetensors"))) > 2
    return split


def _make(name: str, source: Path, passages: Path, out: Path) -> dict[str, str]:
    if name in ("W4A16_ASYM", "W8A8"):
        group_size = 32 if name == "W4A16_ASYM" else None
        job = QuantiseConfig(
            source=source, method="rtn", scheme=name, group_size=group_size
        )
        return quantise(job, out).files
    texts = None if name == "magnitude" else passages
    return prune(tiny.job(source, texts, name, 4), out).files


def _size(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.glob("*.safetensors"))


@pytest.mark.parametrize("name", ["magnitude", "wanda", "layers", "W4A16_ASYM", "W8A8"])
def test_weights_are_digested_once(name, source, passages, tmp_path, reads):
    """Of the source before the job, which needs no read for it then, and of the new
    checkpoint, whose inspection needs none."""
    out = tmp_path / "out"
    inspect_checkpoint(source)
    assert _size(source) <= reads["source"] < 1.25 * _size(source)
    reads.clear()
    files = _make(name, source, passages, out)
    assert reads["source"] < 1.25 * _size(source)  # copied, or headers
    info = inspect_checkpoint(out)
    # headers are read several times
    assert info.bytes <= reads["out"] < 1.25 * _size(out)
    assert files == {each: digest_of_file(out / each) for each in files}
    PROVEN.clear()
    assert inspect_checkpoint(out) == info  # the digest is that of what is on disk


def test_changed_file_is_read_again(checkpoints, passages, tmp_path):
    out = tmp_path / "out"
    _make("magnitude", checkpoints("llama"), passages, out)
    assert PROVEN[out.absolute()].written
    before = inspect_checkpoint(out).weights_digest
    file = out / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(0, 0))
    assert inspect_checkpoint(out).weights_digest != before
