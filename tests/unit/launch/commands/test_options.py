"""What was typed becomes a checked sweep or benchmark: names of checkpoints, and the
base among them."""

import json
from pathlib import Path

import pytest

from evaluator.core.errors import InputError
from launch.commands.options import eval_sweep
from launch.sweep.config import SweepConfig
from tests.support.runs import typed
from tests.support.sweeps import refused


def sweep(
    *checkpoints: Path, base: Path | str | None = None, **changes: object
) -> SweepConfig:
    options = {
        "base": base and str(base),
        "task": "gazetteer",
        "formats": "open",
        "probes": "greedy,choice",
        "seed": 0,
        "engine": "torch",
        "dtype": "auto",
        "grading": "strict",
    }
    return eval_sweep(list(map(str, checkpoints)), options | changes)


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    for name in ("dense", "my sparse model", "other/dense"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def test_base_is_one_model(desk):
    config = sweep(desk / "dense", desk / "my sparse model", base=f"{desk / 'dense'}/")
    assert config.models == {
        "dense": str(desk / "dense"),
        "my-sparse-model": str(desk / "my sparse model"),
    }
    assert config.base == "dense"
    config = sweep(desk / "my sparse model", desk / "dense", base=desk / "dense")
    assert [*config.models] == ["dense", "my-sparse-model"]
    # no checkpoint, so it is evaluated too, and first
    config = sweep(desk / "my sparse model", base=desk / "dense")
    assert (list(config.models), config.base) == (["dense", "my-sparse-model"], "dense")
    with pytest.raises(
        InputError,
        match=(
            r"^CHECKPOINT and --base: .*dense' and .*other/dense' would have the same"
        ),
    ):
        sweep(desk / "other" / "dense", base=desk / "dense")


def test_link_has_own_name(desk):
    """A run that began under another name keeps that."""
    (desk / "mine").symlink_to(desk / "dense")
    for value in (desk / "mine", f"{desk}/other/../mine/"):
        assert [*sweep(value).models] == ["mine"]
    run = {"config": {"models": {"dense": str(desk / "mine")}}}
    (desk / "run.json").write_text(json.dumps(run))
    assert [*sweep(desk / "mine", out=desk).models] == ["dense"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"items": -3}, "resurface eval: --items: -3: Input should be"),
        ({"kv_cache": "auto,fp9"}, "--kv-cache-dtype: 'fp9': engine torch"),
        (
            {"probes": "fidelity"},
            "resurface eval: probe fidelity reads the base's greedy answers",
        ),
    ],
)
def test_mistakes_name_the_option(desk, changes, message):
    told = refused(sweep, desk / "dense", **changes)
    assert told.startswith(message)
    assert "{" not in told


def test_a_suite_names_all_that_its_folder_lacks(tmp_path):
    (tmp_path / "boolq").mkdir()
    line = refused(sweep, task=None, suite=f"zero-shot:{tmp_path}")
    lacking = (
        "arc_challenge, arc_easy, hellaswag, openbookqa, rte, winogrande, wikitext2"
    )
    assert line == f"--suite: {tmp_path}: has no {lacking}"
    line = refused(sweep, task=None, suite="zeroshot")
    assert "unknown suite 'zeroshot'; did you mean 'zero-shot'?" in line


def test_empty_value_is_refused(monkeypatch, capsys) -> None:
    """A shell's unset variable; as a path, it would be the directory here."""
    for words in (["prune", ""], ["sweep", "demo", "--out", ""]):
        assert typed(monkeypatch, *words) == 2
        assert f"{words[-2]}: the value is empty" in capsys.readouterr().err
