"""The verdicts of matcher models on control pairs. They lie beside a run's verdicts on responses.

    RUN/controls/<matcher>/<task>.parquet     one row per control pair, sorted by its key
    RUN/controls/panel.json                   whether the panel leaves unfit matchers out

A file appears whole or not at all. Rows stay even if a later run no longer makes their pair (another reference, fewer
pairs requested).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import pyarrow as pa

from evaluator.core.errors import InputError, parse
from evaluator.judging.controls import Control, Posed
from evaluator.judging.matcher import Verdict
from evaluator.store.files import write_atomically, write_parquet
from evaluator.store.reading import read_part
from evaluator.store.schema import CONTROL_COLUMNS, CONTROLS, ITEM_COLUMNS, READ_CONTROLS

Key = tuple[str, str, str, str]  # the values of _KEY
_KEY = ("language", "item_id", "control", "response")


def key_of(control: Control) -> Key:
    return control.language, control.item_id, control.kind, control.claim.response


def read_posed(run_dir: Path) -> dict[str, list[Posed]]:
    """The questions and gold answers of each task in RUN/items."""
    return {path.stem: _posed(path) for path in sorted((run_dir / "items").glob("*.parquet"))}


def _posed(path: Path) -> list[Posed]:
    rows = read_part(path, ["language", "item_id", "question", "answers"], ITEM_COLUMNS).to_pylist()
    return [Posed(**{**row, "answers": tuple(row["answers"])}) for row in rows]


class ControlStore:
    """One matcher's verdicts on control pairs. `digest`: of the matcher's weights."""

    def __init__(self, run_dir: Path, matcher: str, digest: str) -> None:
        self._root = run_dir / "controls" / matcher
        self._matcher = matcher
        self._digest = digest

    def read(self, task: str) -> dict[Key, Verdict]:
        """The verdicts of these weights. Verdicts of another matcher with the same name are left out."""
        path = self._path(task)
        if not path.exists():
            return {}
        rows = read_part(path, CONTROLS.names, CONTROL_COLUMNS).to_pylist()
        return {
            (row["language"], row["item_id"], row["control"], row["response"]): Verdict(
                verdict=row["verdict"], probability=row["probability"], status=row["status"]
            )
            for row in rows
            if row["matcher_digest"] == self._digest
        }

    def write(self, task: str, said: Mapping[Key, Verdict]) -> Path:
        """Replace the verdicts on one task's pairs, whole or not at all."""
        same = {"task": task, "matcher": self._matcher, "matcher_digest": self._digest}
        rows = [
            same | dict(zip(_KEY, key, strict=True)) | asdict(verdict)
            for key, verdict in sorted(said.items(), key=lambda pair: pair[0])
        ]
        path = self._path(task)
        write_parquet(pa.Table.from_pylist(rows, schema=CONTROLS), path)
        return path

    def _path(self, task: str) -> Path:
        return self._root / f"{task}.parquet"


def read_controls(run_dir: Path) -> pd.DataFrame | None:
    """The verdicts of all matchers on control pairs; None for a run without any."""
    paths = sorted((run_dir / "controls").glob("*/*.parquet"))
    if not paths:
        return None
    tables = [read_part(path, READ_CONTROLS, CONTROL_COLUMNS) for path in paths]
    frame: pd.DataFrame = pa.concat_tables(tables, promote_options="permissive").to_pandas()
    return frame


def write_fit_only(run_dir: Path, fit_only: bool) -> None:
    """Store whether the panel leaves unfit matchers out. Write the file only if this changes."""
    path, content = _panel(run_dir), json.dumps({"fit_only": fit_only}).encode()
    if (path.read_bytes() != content) if path.is_file() else fit_only:
        write_atomically(path, content)


def read_fit_only(run_dir: Path) -> bool:
    """Whether the panel leaves unfit matchers out. Raises InputError for a file without this value."""
    path = _panel(run_dir)
    if not path.exists():
        return False
    found = parse(path.read_bytes(), str(path))
    said = found.get("fit_only") if isinstance(found, dict) else None
    if not isinstance(said, bool):
        raise InputError(f"{path}: field 'fit_only' must be true or false, is {said!r}")
    return said


def _panel(run_dir: Path) -> Path:
    return run_dir / "controls" / "panel.json"


def unanswered(controls: Iterable[Control], said: Mapping[Key, Verdict]) -> list[Control]:
    """The pairs without a verdict, and those that failed in the engine."""
    return [each for each in controls if key_of(each) not in said or said[key_of(each)].failed]
