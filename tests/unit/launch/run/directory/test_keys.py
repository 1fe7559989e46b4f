"""What a key of records depends on, and what it does not."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evaluator.core.config import validated
from evaluator.core.document import differences
from launch.run.directory.keys import Keys
from launch.sweep.config import SweepConfig
from launch.sweep.preflight import prepare
from tests.support.models import save_tiny_model

Change = Callable[[dict[str, Any], Path], object]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for seed, name in enumerate("ab"):
        save_tiny_model(folder / name, seed=seed)
    return folder


def _document(models: Path) -> dict[str, Any]:
    task = {"task": "gazetteer", "items": 2, "languages": ["english"]}
    paths = {name: str(models / name) for name in "ab"}
    return {"models": paths, "base": "a", "tasks": [task], "engine": {"kind": "torch"}}


def _keys(document: dict[str, Any], run: Path) -> list[str]:
    prepared = prepare(validated(SweepConfig, document, "s.yaml"), run)
    keys = Keys(prepared)
    return [keys.key(job, prepared.asked[job.name][0]) for job in prepared.jobs]


def _of_task(**settings: Any) -> Change:
    return lambda document, _: document["tasks"][0].update(settings)


def _in_file(model: str, name: str, **fields: Any) -> Change:
    def change(_: dict[str, Any], models: Path) -> None:
        file = models / model / name
        file.write_text(json.dumps(json.loads(file.read_text()) | fields))

    return change


def _renamed(document: dict[str, Any], models: Path) -> None:
    document |= {
        "models": {"y": str(models / "a"), "x": str(models / "b")},
        "base": "y",
    }


@pytest.mark.parametrize(
    "change",
    [
        _of_task(items=3, languages=["english", "korean"], seeds=[0, 1]),
        _of_task(probes=["greedy"], formats=["open", "shown"], name="other"),
        _renamed,
    ],
)
def test_growth_and_names_keep_keys(models, tmp_path, change: Change) -> None:
    document = _document(models)
    before = _keys(document, tmp_path)
    change(document, models)
    assert _keys(document, tmp_path) == before


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        (_of_task(seed=1), "ab"),
        (_of_task(beam_width=4), "ab"),
        (_of_task(formats=["open", "one_shot"]), "ab"),
        (_in_file("b", "config.json", rms_norm_eps=1e-3), "b"),
        # the base's answers are read
        (_in_file("a", "tokenizer_config.json", chat_template="x"), "ab"),
        (lambda document, _: document["engine"].update(dtype="bfloat16"), "ab"),
        (lambda document, _: document.pop("base"), "b"),
    ],
)
def test_what_numbers_depend_on_changes_keys(
    models, tmp_path, change: Change, changed: str
) -> None:
    copies = shutil.copytree(models, tmp_path / "models")
    document = _document(copies)
    before = dict(zip("ab", _keys(document, tmp_path / "run"), strict=True))
    change(document, copies)
    after = dict(zip("ab", _keys(document, tmp_path / "run"), strict=True))
    assert {name for name in "ab" if before[name] != after[name]} == {*changed}
    halves = zip(before["b"].split("-"), after["b"].split("-"), strict=True)
    assert [one == other for one, other in halves].count(True) == 1


def test_probes_that_read_the_open_answer_need_it(models, tmp_path) -> None:
    before = _keys(document := _document(models), tmp_path)
    _of_task(formats=["shown"])(document, models)
    after = _keys(document, tmp_path)
    assert before[0].split("-")[0] == after[0].split("-")[0]
    assert {*before}.isdisjoint(after)


def test_differences_are_named() -> None:
    long = "ab" * 32
    before = {"a": {"b": 1, "c": [1]}, "same": 1, "z": long}
    after = {"a": {"b": 2}, "same": 1, "z": "no"}
    told = ["a.b is 1 there, 2 here", "a.c is [1] there, null here"]
    cut = 'z is "abababababababababa…bababababababababab" there, "no" here'
    assert [*differences(before, after)] == [*told, cut]
