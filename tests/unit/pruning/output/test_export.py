"""A pruned checkpoint is complete or absent."""

import errno
import itertools
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from evaluator.checkpoints.files import digest_of_file
from evaluator.checkpoints.manifests import PruneManifest, read_manifest, to_json
from evaluator.core import liveness
from evaluator.core.errors import InputError, JobError
from evaluator.core.isolated import environment
from pruning.output import export
from pruning.run import prune
from pruning.verify import examine
from tests.support.pruning import magnitude

_KILLED = textwrap.dedent(
    """
    import os, signal, sys
    from pathlib import Path
    from pruning.output import export
    from pruning.config import PruneConfig
    from pruning.run import prune

    source, out, step = sys.argv[1:]
    if step == "copy":
        export.shutil.copyfile = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    elif step == "manifest":
        export.to_json = lambda *_: os.kill(os.getpid(), signal.SIGKILL)

    def progress(done, total):
        if step == str(done):
            os.kill(os.getpid(), signal.SIGKILL)

    prune(PruneConfig(source=Path(source), method="magnitude", sparsity=0.5), Path(out), progress=progress)
    """
)


@pytest.mark.parametrize("step", ["copy", "1", "manifest"])
def test_killed_export_leaves_nothing_loadable(step, checkpoints, tmp_path):
    source, out = checkpoints("qwen3"), tmp_path / "out"
    died = subprocess.run(
        [sys.executable, "-c", _KILLED, source, out, step],
        env=environment(),
        capture_output=True,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()
    assert not out.exists()
    (partial,) = tmp_path.iterdir()
    with pytest.raises((OSError, ValueError)):
        AutoModelForCausalLM.from_pretrained(partial)
    assert not (partial / "config.json").exists()
    prune(magnitude(source), out)
    assert [file.name for file in tmp_path.iterdir()] == ["out"]
    assert examine(out).problems == []


def test_companions_go_along(checkpoints, tmp_path):
    source = Path(shutil.copytree(checkpoints("qwen3"), tmp_path / "model"))
    wanted = [
        "LICENSE.txt",
        "chat_template.jinja",
        "generation_config.json",
        "vocab.json",
        "tokenizer.model",
    ]
    refused = [
        "README.md",
        "pytorch_model.bin",
        "model.gguf",
        "trainer_state.json",
        "modeling_own.py",
        "x.safetensors",
    ]
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
            export.Export,
            "write",
            OSError(errno.ENOSPC, "No space left on device"),
            InputError,
        ),
        (
            liveness,
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


@pytest.mark.parametrize("where", ["this machine", "another node"])
def test_a_live_writer_is_left_alone(where, checkpoints, tmp_path, monkeypatch):
    monkeypatch.setattr(
        liveness, "_PACE", liveness.Pace(beat_seconds=0.01, missed=4500)
    )
    partial = tmp_path / "out.partial-0123456789ab"
    with liveness.owned_directory(partial):
        if where == "another node":
            monkeypatch.setattr(liveness, "_machine", lambda: "another")
        writer = (
            rf"being written by another process: process {os.getpid()} on"
            rf" .*{partial.name}"
        )
        with pytest.raises(InputError, match=writer):
            prune(magnitude(checkpoints("qwen3")), tmp_path / "out")
        assert partial.exists()
    monkeypatch.setattr(liveness, "_PACE", liveness.Pace(beat_seconds=0.005, missed=10))
    if where == "another node":  # where it shows no more sign of life
        prune(magnitude(checkpoints("qwen3")), tmp_path / "out")
        assert [file.name for file in tmp_path.iterdir()] == ["out"]


def test_dead_leftovers_are_removed(checkpoints, tmp_path):
    partial = tmp_path / "out[1].partial-0123456789ab"  # brackets are not a pattern
    with liveness.owned_directory(partial):
        pass
    file = partial / liveness.OWNER
    file.write_text(file.read_text().replace(liveness.this_process().started, "1"))
    foreign = tmp_path / "out[1].partial-mine"
    foreign.mkdir()
    prune(magnitude(checkpoints("qwen3")), tmp_path / "out[1]")
    assert {each.name for each in tmp_path.iterdir()} == {
        "out[1]",
        "out[1].partial-mine",
    }


def test_one_of_two_starters_continues(checkpoints, tmp_path, monkeypatch):
    """Each looks for the other before both are there."""
    looks, partials = itertools.cycle([False, True]), export._partials
    monkeypatch.setattr(
        export, "_partials", lambda out: partials(out) if next(looks) else []
    )
    begun = tmp_path / "out.partial-000000000000"
    with liveness.owned_directory(begun):
        with pytest.raises(InputError, match="being written by another process"):
            prune(magnitude(checkpoints("qwen3")), tmp_path / "out")
        assert [each.name for each in tmp_path.iterdir()] == [begun.name]
        later = begun.rename(tmp_path / "out.partial-ffffffffffff")
        prune(magnitude(checkpoints("qwen3")), tmp_path / "out")
        assert later.exists()


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
        (lambda out: (out / PruneManifest.FILE).write_text("{}"), PruneManifest.FILE),
        (lambda out: (out / PruneManifest.FILE).unlink(), "no such file"),
        (lambda out: state(out, measured_sparsity=0.9), "measured_sparsity: 0.9"),
        (lambda out: state(out, pattern="4:x"), "'4:x'"),
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
