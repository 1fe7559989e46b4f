"""A pruned checkpoint is complete or absent."""

import errno
import os
import shutil
import signal
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.files import digest_of_file
from evaluator.checkpoints.manifests import PruneManifest, read_manifest, to_json
from evaluator.core import lease
from evaluator.core.errors import InputError, JobError
from evaluator.core.lease import Lease, LeaseLost
from pruning.output import export
from pruning.run import prune
from pruning.verify import examine
from tests.support.pruning import magnitude


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("step", ["copyfile", "progress", "to_json"])
def test_killed_export_leaves_nothing_loadable(step, checkpoints, tmp_path):
    source, out = checkpoints("qwen3"), tmp_path / "out"
    child = os.fork()
    if not child:
        signal.alarm(60)
        die = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
        setattr(export.shutil if step == "copyfile" else export, step, die)
        try:
            prune(magnitude(source), out, progress=die if step == "progress" else print)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert not out.exists()
    (partial,) = tmp_path.glob("out.partial/.lease/*/checkpoint")
    with pytest.raises((OSError, ValueError)):
        AutoModelForCausalLM.from_pretrained(partial)
    assert not (partial / "config.json").exists()
    prune(magnitude(source), out)
    assert [file.name for file in tmp_path.iterdir()] == ["out"]
    assert examine(out).problems == []


def test_companions_go_along(checkpoints, tmp_path):
    source = Path(shutil.copytree(checkpoints("qwen3"), tmp_path / "model"))
    wanted = ["LICENSE.txt", "chat_template.jinja", "vocab.json", "tokenizer.model"]
    refused = ["README.md", "pytorch_model.bin", "modeling_own.py", "x.safetensors"]
    for name in [*wanted, *refused]:
        (source / name).write_text("{}")
    out = tmp_path / "out"
    prune(magnitude(source), out)
    present = {file.name for file in out.iterdir()}
    assert set(wanted) <= present
    assert not set(refused) & present
    assert (out / "LICENSE.txt").read_bytes() == (source / "LICENSE.txt").read_bytes()


@pytest.mark.parametrize(
    ("target", "name", "error", "raised"),
    [
        (export.Export, "write", JobError("no"), JobError),
        (
            lease,
            "this_process",
            OSError(errno.ENOSPC, "No space left on device"),
            InputError,
        ),
    ],
)
def test_a_failed_job_leaves_nothing(
    target, name, error, raised, checkpoints, tmp_path, monkeypatch
):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(target, name, fail)
    with pytest.raises(raised, match="no"):
        prune(magnitude(checkpoints("qwen3")), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_live_writer_is_left_alone(checkpoints, tmp_path):
    partial = tmp_path / "out.partial"
    partial.mkdir()
    held = Lease(partial)
    writer = rf"writing this checkpoint: process {os.getpid()} on"
    with pytest.raises(InputError, match=writer):
        prune(magnitude(checkpoints("qwen3")), tmp_path / "out")
    held.check()
    held.release()


def test_paused_writer_writes_nothing(checkpoints, tmp_path):
    """Another process takes over while weights are copied."""
    out = tmp_path / "out"

    def copy() -> None:
        with export.open_export(Checkpoint(checkpoints("qwen3")), out) as target:
            shutil.rmtree(target.partial.parent)
            target.copy_weights()

    with pytest.raises(LeaseLost, match="gone"):
        copy()
    assert not out.exists()


@pytest.fixture(scope="module")
def sound(checkpoints, tmp_path_factory):
    out = tmp_path_factory.mktemp("sound") / "out"
    prune(magnitude(checkpoints("qwen3"), pattern="2:4"), out)
    assert examine(out).problems == []
    return out


def spoil(out):
    """One group of four that holds no zero."""
    tensors = load_file(out / "model.safetensors")
    row = tensors[SPOILED][0]
    row[:4] = row[:4].flip(0) + 1
    save_file(tensors, out / "model.safetensors", {"format": "pt"})


def state(out, **changes):
    manifest = read_manifest(out, PruneManifest).model_copy(update=changes)
    (out / manifest.FILE).write_text(to_json(manifest))


SPOILED = "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("damage", "part"),
    [
        (spoil, "model.safetensors: its sha256 is not the manifest's"),
        (lambda out: (out / "x.bin").write_text("x"), "x.bin: not in the manifest"),
        (lambda out: (out / "config.json").unlink(), "config.json: missing"),
        (lambda out: (out / PruneManifest.FILE).unlink(), "no such file"),
        (lambda out: state(out, measured_sparsity=0.9), "measured_sparsity: 0.9"),
        (lambda out: state(out, matrices=()), "matrices: there are none"),
    ],
)
def test_verify_sees_damage(damage, part, sound, tmp_path):
    out = Path(shutil.copytree(sound, tmp_path / "out"))
    damage(out)
    assert part in "\n".join(examine(out).problems)


def test_verify_counts_zeros_again(sound, tmp_path):
    """A file whose digest was forged along is still found out by its zeros."""
    out = Path(shutil.copytree(sound, tmp_path / "out"))
    files = read_manifest(out, PruneManifest).files
    spoil(out)
    digest = digest_of_file(out / "model.safetensors")
    state(out, files=files | {"model.safetensors": digest})
    assert [SPOILED in problem for problem in examine(out).problems] == [True, True]
