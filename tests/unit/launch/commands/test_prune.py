"""`resurface prune`: options are checked one by one, and a finished checkpoint can
be held against its manifest."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from evaluator.core.errors import InputError
from launch.commands.cli import app
from launch.commands.prune import prune_request
from tests.support.models import save_tiny_model
from tests.support.runs import typed
from tests.support.sweeps import refused


def options(**changes):
    usual = {
        "method": "wanda",
        "sparsity": 0.5,
        "calibration": "gazetteer",
        "samples": 4,
        "sequence_length": 32,
    }
    given = {**usual, **changes}
    return {name: value for name, value in given.items() if value is not None}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"method": None},
            "Missing option '--method': one of magnitude, wanda, sparsegpt, ria",
        ),
        ({"method": "rya"}, "unknown method 'rya'; did you mean 'ria'?"),
        ({"sparsity": 1.5}, "resurface prune: sparsity: 1.5 is outside [0, 1)"),
        (
            {"sparsity": None},
            "resurface prune: sparsity: must be given (a ratio in [0, 1)) unless",
        ),
        (
            {"pattern": "4:8"},
            "resurface prune: sparsity: 0.5 cannot be combined with pattern '4:8'",
        ),
        (
            {"method": "magnitude", "allocation": "owl", "calibration": None},
            "Missing option '--calibration': --alloc",
        ),
    ],
)
def test_bad_options_are_one_line(changes, message, tmp_path):
    told = refused(prune_request, str(tmp_path), options(**changes), fetch=False)
    assert told.startswith(message)
    assert "{" not in told


def test_listed_layers_are_dropped(tmp_path):
    drop = {"method": "drop", "pattern": "5,2-3"}
    wanted = prune_request(str(tmp_path), drop, fetch=False)
    assert (wanted.pattern, wanted.sparsity, wanted.calibration) == (
        "2-3,5",
        None,
        None,
    )
    dense, out = save_tiny_model(tmp_path / "dense"), tmp_path / "out"
    done = CliRunner().invoke(
        app, f"prune {dense} --method drop --pattern 0 --out {out}"
    )
    assert (
        "drop, 0: measured sparsity 0.500000 of the weights in the layers' matrices"
        in done.stdout
    )
    assert "removed layers: 0 of 2" in done.stdout
    assert f"the rest equals {dense}" in verify(out).stdout
    shutil.rmtree(dense)
    assert "source not found here" in verify(out).stdout


@pytest.fixture(scope="module")
def pruned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pruned")
    save_tiny_model(folder / "dense")
    out = folder / "sparse"
    done = CliRunner().invoke(
        app,
        f"prune {folder / 'dense'} --method ria --sparsity 0.5 --group row --out {out}"
        " --allocation owl --calibration gazetteer --samples 4 --sequence-length 32",
    )
    assert done.exit_code == 0
    # where there is no terminal to show a line that lives
    assert "pruning: 2/2 layers\n" in done.stdout
    assert "calibration are few: give longer texts, or more samples" in done.output
    return out


def verify(directory, *more):
    return CliRunner().invoke(app, ["prune", "--verify", str(directory), *more])


def test_verify_has_line_per_problem(pruned, tmp_path):
    done = verify(pruned)
    assert (done.exit_code, done.stdout.count("\n")) == (0, 1)
    copy = shutil.copytree(pruned, tmp_path / "copy")
    (copy / "config.json").write_text((copy / "config.json").read_text() + " ")
    (copy / "more.txt").write_text("")
    done = verify(copy)
    assert (done.exit_code, len(done.stderr.splitlines())) == (1, 2)
    assert "config.json: its sha256 is not the manifest's" in done.stderr
    assert "more.txt: not in the manifest" in done.stderr


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            "--verify x m --out y",
            "--verify takes no MODEL, --out: it only checks an existing checkpoint",
        ),
        ("--verify x --samples 9 --seed 1", "--verify takes no --seed, --samples:"),
    ],
)
def test_what_would_be_ignored_is_refused(given, told, monkeypatch, capsys):
    assert typed(monkeypatch, "prune", *given.split()) == 2
    assert told in capsys.readouterr().err


def test_other_checkpoints_are_not_verified(pruned, tmp_path):
    assert isinstance(verify(tmp_path).exception, InputError)
    manifest = shutil.copytree(pruned, tmp_path / "copy") / "prune_manifest.json"
    manifest.write_text(json.dumps({"schema_version": 99}))
    error = str(verify(manifest.parent).exception)
    assert error.startswith(f"{manifest}: schema_version: 99: was written by another")
