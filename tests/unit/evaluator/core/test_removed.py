"""A name that was removed is refused with its replacement, wherever it stands."""

import pytest
from typer.testing import CliRunner

from evaluator.core.config import Frozen, validated
from evaluator.core.errors import InputError, unknown
from evaluator.core.removed import REMOVED
from evaluator.metrics.tables import TABLES
from evaluator.probes import PROBES
from launch.commands.cli import COMMANDS, app
from launch.commands.options import explained
from launch.sweep.config import SweepConfig
from pruning.methods import METHODS


class _Inner(Frozen):
    kept: int = 0


class _Outer(Frozen):
    inner: _Inner = _Inner()


OPTIONS = [name for name in REMOVED if name.split()[0] in COMMANDS]
KEYS = [name for name in REMOVED if name.startswith("key ")]
NAMES = [name for name in REMOVED if name not in OPTIONS]


@pytest.mark.parametrize("name", NAMES)
def test_names_the_replacement(name: str) -> None:
    what, _, value = name.rpartition(" ")
    assert str(unknown(what, value, ())).endswith(REMOVED[name])
    assert "was removed" not in str(unknown("language", value, ()))


@pytest.mark.parametrize("name", KEYS)
def test_keys_at_any_depth(name: str) -> None:
    key = name.removeprefix("key ")
    with pytest.raises(InputError, match="was removed") as error:
        validated(_Outer, {"inner": {key: 1}}, "sweep.yaml")
    assert str(error.value).startswith(f"sweep.yaml: inner.{key}: ")


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name: str) -> None:
    result = CliRunner().invoke(app, name.split(), standalone_mode=False)
    assert result.exception is not None
    assert REMOVED[name] in explained(result.exception)


def test_nothing_removed_is_there() -> None:
    """And its kinds are those that look a name up."""
    known = {
        "command": COMMANDS,
        "probe": PROBES.names,
        "method": METHODS.names,
        "table": TABLES.names,
        "key": SweepConfig.model_fields,
    }
    for name in REMOVED:
        kind, _, value = name.partition(" ")
        assert value not in known.get(kind, ())
    for registry in (PROBES, METHODS, TABLES):
        with pytest.raises(InputError, match="unknown"):
            registry["screen"]
