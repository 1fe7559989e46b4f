"""The cells of a run, and the keys under which their records lie.

    RUN/records/keys.json            {"keys": {key: what it is the digest of},
                                      "cells": [{checkpoint, task, key, ...}]}
    RUN/records/<key>/part-*.parquet

A cell is a checkpoint's name on a task's name. Cells of equal content have one key, and
so the same records. Parts keep the names of the call that wrote them; readers take those
of the cell.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
from pydantic import AfterValidator, BaseModel, ValidationError

from evaluator.core.errors import InputError, Json, json_text, one_line
from evaluator.core.files import write_atomically
from evaluator.core.records import Origin

_FILE = "keys.json"
Name = tuple[str, str]  # of a checkpoint and a task


def _plain(name: str) -> str:
    """Raises ValueError for what a path would leave its folder by: the file may be
    anybody's."""
    if name in ("", ".", "..") or not {"/", "\\", "\0"}.isdisjoint(name):
        raise ValueError("is no name of a file")
    return name


_Plain = Annotated[str, AfterValidator(_plain)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    checkpoint: _Plain
    task: _Plain
    key: _Plain
    # the first columns of its records; empty: as the parts have them
    origin: dict[str, Any] = field(default_factory=dict, hash=False)
    left_out: bool = False  # the last call does not name it

    @property
    def name(self) -> Name:
        return self.checkpoint, self.task


class _File(BaseModel):
    keys: dict[str, Json] = {}  # all that were ever there
    cells: list[Cell] = []


class Cells:
    """keys.json in memory; `save` writes it whole."""

    def __init__(self, run_dir: Path) -> None:
        """Raises InputError for another file of that name."""
        self.path = run_dir / "records" / _FILE
        file = _File()
        try:
            if self.path.exists():
                file = _File.model_validate_json(self.path.read_bytes())
        except (OSError, ValidationError) as error:
            raise InputError(
                f"{self.path}: no list of keys ({one_line(error)}); without it, the"
                " run's command writes it again"
            ) from error
        self.words = file.keys
        self._cells = {cell.name: cell for cell in file.cells}
        # keys, as the last call left them
        self.earlier = {cell.name: cell.key for cell in file.cells}

    def __iter__(self) -> Iterator[Cell]:
        """Those of the last call first, in its order."""
        return iter(sorted(self._cells.values(), key=lambda cell: cell.left_out))

    @property
    def left_out(self) -> set[Name]:
        return {cell.name for cell in self if cell.left_out}

    def begin(
        self, asked: Collection[Name], ends: Mapping[str, Collection[str]]
    ) -> None:
        """A call begins that names the cells `asked`. Others stay, unless their task has
        other settings now: `ends` are those that the keys of each task have."""
        self._cells = {
            cell.name: replace(cell, left_out=cell.name not in asked)
            for cell in self
            if cell.task not in ends or cell.key.endswith(tuple(ends[cell.task]))
        }

    def put(self, origin: Origin, task: str, key: str, words: Json) -> None:
        """A cell of this call. One that is left out goes if it has its key: it was
        renamed."""
        for other in [each for each in self if each.left_out and each.key == key]:
            del self._cells[other.name]
        columns = msgspec.structs.asdict(origin)
        cell = Cell(checkpoint=origin.checkpoint, task=task, key=key, origin=columns)
        self._cells.pop(cell.name, None)
        self._cells[cell.name] = cell
        self.words.setdefault(key, words)

    def unused(self) -> dict[Path, int]:
        """The folders without a cell of the last call, with the bytes of their parts."""
        used = {cell.key for cell in self if not cell.left_out}
        found: dict[Path, int] = {}
        for part in self.path.parent.glob("*/*.parquet"):
            if (folder := part.parent).name not in used:
                found[folder] = found.get(folder, 0) + part.stat().st_size
        return found

    def drop_left_out(self) -> None:
        self._cells = {cell.name: cell for cell in self if not cell.left_out}

    def save(self) -> None:
        document = {"keys": self.words, "cells": [asdict(cell) for cell in self]}
        write_atomically(self.path, json_text(document, indent=1).encode())
