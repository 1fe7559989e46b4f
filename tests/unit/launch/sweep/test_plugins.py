"""What users register from modules of their own."""

import sys

import pytest

from evaluator.core.errors import InputError
from evaluator.tasks import TASKS
from launch.sweep.plugins import load_plugins

PLUGIN = """
from evaluator.core.records import Item
from evaluator.tasks import TASKS, Task

TASKS.register(Task(name="riddles", help="my own", read_items=lambda _: [
    Item(task="", language="english", item_id="1", context="", question="?", answers=("x",), cluster="1")]))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_module_registers_what_it_brings_and_is_imported_once(folder, monkeypatch):
    (folder / "my_riddles_plugin.py").write_text(PLUGIN)
    monkeypatch.setenv("RESURFACE_PLUGINS", " my_riddles_plugin ,")
    try:
        load_plugins()
        load_plugins()
        assert TASKS["riddles"].help == "my own"
    finally:
        TASKS._objects.pop("riddles", None)
        sys.modules.pop("my_riddles_plugin", None)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "ModuleNotFoundError: No module named 'my_plugin_{}_0'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_what_cannot_be_imported_is_one_line(folder, monkeypatch, content, reason):
    name = f"my_plugin_{content is None}_{len(content or '')}"
    if content is not None:
        (folder / f"{name}.py").write_text(content)
    monkeypatch.setenv("RESURFACE_PLUGINS", name)
    with pytest.raises(InputError) as caught:
        load_plugins()
    assert str(caught.value) == f"RESURFACE_PLUGINS: cannot import {name!r}: {reason.format(content is None)}"
