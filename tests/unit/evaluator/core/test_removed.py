"""A name that was removed is refused with its replacement, wherever it stands."""

import pytest
from typer.testing import CliRunner

from evaluator.core.config import Frozen, Registry, validated
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


@pytest.mark.parametrize("name", REMOVED)
def test_names_the_replacement(name: str) -> None:
    """As a command, a key at any depth and a registered name."""
    assert str(unknown("command", name, COMMANDS)).endswith(REMOVED[name])
    with pytest.raises(InputError, match="was removed") as error:
        validated(_Outer, {"inner": {name: 1}}, "sweep.yaml")
    assert str(error.value).startswith(f"sweep.yaml: inner.{name}: ")
    with pytest.raises(InputError, match="was removed"):
        Registry("probe")[name]


@pytest.mark.parametrize("name", [name for name in REMOVED if name.startswith("--")])
def test_options(name: str) -> None:
    command = "prune" if name in ("--push", "--run") else "sweep"
    result = CliRunner().invoke(app, [command, name], standalone_mode=False)
    assert result.exception is not None
    assert REMOVED[name] in explained(result.exception)


def test_nothing_removed_is_there() -> None:
    names = {
        *COMMANDS,
        *PROBES.names,
        *METHODS.names,
        *TABLES.names,
        *SweepConfig.model_fields,
    }
    assert not REMOVED.keys() & names
