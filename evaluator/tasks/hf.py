"""Any data set on the hub, or in files that `datasets` reads.

    hf:ORG/NAME[@REVISION]    on the hub
    hf:DIR, hf:FILE           Parquet, JSON (also a row per line) or CSV
    hf:FILE.yaml              for the command line: a YAML file with a mapping; its `data` names the data set

That file, or the task's entry in a sweep file, maps columns to fields (`source.py`). Without a mapping, columns have
the names of the fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from evaluator.core.records import Item
from evaluator.tasks.base import Argument, Task
from evaluator.tasks.presets import DataSource, document
from evaluator.tasks.rows import read_data_set
from evaluator.tasks.source import Source


@dataclass(frozen=True, slots=True)
class _Data:
    """The data set that the argument of `hf:` names, with the mapping of its YAML file."""

    data: str
    local: bool
    said: Source


class _Reader:
    """Reads whatever the argument names."""

    def read(self, path: Path | None, said: Source) -> list[Item]:
        """Raises InputError as `read_data_set` does."""
        named = _named(path)
        return read_data_set(TASK.name, named.data, Source(), said.over(named.said), local=named.local)

    def usual(self, path: Path | None) -> Source | None:
        """The description of a data set on the hub; None for files."""
        named = _named(path)
        return None if named.local else named.said


def _named(path: Path | None) -> _Data:
    assert path is not None, "the argument is required"
    if path.suffix not in (".yaml", ".yml"):
        return _at(path)
    source = document(path, DataSource)
    beside = path.parent / source.data
    named = _at(beside if beside.exists() else Path(source.data))
    return _Data(named.data, named.local, source.over(named.said))


def _at(path: Path) -> _Data:
    if path.exists():
        return _Data(str(path), True, Source())
    repository, _, revision = str(path).partition("@")
    return _Data(repository, False, Source(revision=revision or None))


TASK = Task(
    name="hf",
    help=(
        "any data set of the hub, or in Parquet, JSON or CSV files; a sweep file or FILE.yaml maps its "
        "columns (docs/your-data.md)"
    ),
    argument=Argument("ORG/NAME", required=True),
    named_after="file",
    data=_Reader(),
)
