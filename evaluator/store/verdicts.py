"""The verdicts of judges on a run's responses and on control pairs.

    RUN/verdicts/<matcher>/<checkpoint>/<task>.parquet     one row per judged record,
                                                           sorted by its key
    RUN/controls/<matcher>/<task>.parquet                  one row per control pair,
                                                           sorted by its key
    RUN/controls/panel.json                                whether the panel leaves
                                                           unfit matchers out

A file appears whole or not at all. A later command that judges more records (other
probes, all responses) adds rows. Rows of control pairs stay even if a later run no
longer makes their pair (another reference, fewer pairs requested).
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from io import BytesIO
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from evaluator.core.errors import InputError, ResurfaceError, parse
from evaluator.core.files import write_atomically, write_parquet
from evaluator.core.grading import strip_thinking
from evaluator.core.records import Item
from evaluator.core.reducing import by_its_rule
from evaluator.judging.controls import Key, controls_of
from evaluator.judging.matcher import Claim, Match
from evaluator.store import schema
from evaluator.store.reading import read_all, read_part
from evaluator.store.records import RecordStore

# a matcher's file: ("verdicts", checkpoint, task) or ("controls", task)
File = tuple[str, ...]
Wanted = dict[File, dict[Key, Claim]]
CONTROL_KEY = ("language", "item_id", "control", "response")
# by the first part of a file: its key, schema and columns
_KINDS = {
    "verdicts": (schema.KEY, schema.VERDICTS, schema.VERDICT_COLUMNS),
    "controls": (CONTROL_KEY, schema.CONTROLS, schema.CONTROL_COLUMNS),
}
_GRADES = ("contains", "contains_paper", "grading")
_PANEL = Path("controls/panel.json")


def responses(run_dir: Path, probes: Sequence[str], *, everything: bool) -> Wanted:
    """The responses to judge, thinking removed; `everything`: right ones too. Raises
    InputError for a missing item."""
    wanted: Wanted = {}
    items: dict[str, dict[tuple[str, str], Item]] = {}
    for checkpoint, task, path in RecordStore(run_dir).tables():
        table = read_part(
            path, [*schema.KEY, "status", "text", *_GRADES], schema.RECORD_COLUMNS
        )
        records = by_its_rule(table.to_pandas())
        judged = records["probe"].isin(probes) & records["contains"].notna()
        if not everything:
            judged &= records["contains"].eq(False)
        for row in records[judged].to_dict("records"):
            if task not in items:
                items[task] = {
                    (item.language, item.item_id): item
                    for item in read_questions(run_dir, task)
                }
            item = items[task].get((row["language"], row["item_id"]))
            if item is None:  # the last call asked fewer
                continue
            text = strip_thinking(row["text"] or "").strip()
            key = tuple(row[name] for name in schema.KEY)
            wanted.setdefault(("verdicts", checkpoint, task), {})[key] = Claim(
                question=item.question, answers=item.answers, response=text
            )
    return wanted


def control_pairs(run_dir: Path, per_language: int) -> Wanted:
    """The control pairs of each task with gradable answers."""
    wanted: Wanted = {}
    for path in sorted((run_dir / "items").glob("*.parquet")):
        controls = controls_of(read_questions(run_dir, path.stem), per_language)
        if controls:
            wanted["controls", path.stem] = controls
    return wanted


def read_questions(run_dir: Path, task: str) -> list[Item]:
    """The questions and gold answers of a task in RUN/items, without contexts.
    Raises InputError if there are none."""
    path = run_dir / "items" / f"{task}.parquet"
    if not path.is_file():
        raise InputError(
            f"{path}: missing: a matcher needs the questions and their answers, which a"
            " run keeps there"
        )
    rows = read_part(
        path, ["language", "item_id", "question", "answers"], schema.ITEM_COLUMNS
    ).to_pylist()
    return [
        Item(
            **row | {"answers": tuple(row["answers"])},
            task=task,
            context="",
            cluster="",
        )
        for row in rows
    ]


class Verdicts(RecordStore):
    """One judge's verdicts on a run. As the store of its records, it turns them into
    verdicts, and writes a file as soon as nothing in it is left to judge."""

    def __init__(self, run_dir: Path, judge: str, digest: str, wanted: Wanted) -> None:
        """`digest`: of the judge's weights. Raises InputError for an unreadable file
        and for responses that another judge of that name has judged."""
        super().__init__(run_dir)
        self._run_dir = run_dir
        self._measured = False  # whether any claim has a verdict now
        self._same = {"matcher": judge, "matcher_digest": digest}
        self.rows = {file: self._read(file) for file in wanted}
        self._left: defaultdict[File, set[Key]] = defaultdict(set)
        self._unsaved: set[File] = set()
        self._places: dict[Claim, list[tuple[File, Key]]] = {}
        known: dict[Claim, Match] = {}
        unknown: list[tuple[File, Key, Claim]] = []
        for file, claims in wanted.items():
            for key, claim in claims.items():
                match = self.rows[file].get(key)
                if match is None or match.failed:
                    unknown.append((file, key, claim))
                else:
                    known[claim] = match
        for file, key, claim in unknown:
            if claim in known:
                self.rows[file][key] = known[claim]
                self._unsaved.add(file)
            else:
                self._places.setdefault(claim, []).append((file, key))
                self._left[file].add(key)
        # each once, although several checkpoints may have given the response
        self.claims = tuple(self._places)

    @property
    def summary(self) -> str:
        """What this call judged, and all verdicts on responses, in one line."""
        places = self._places.values()
        now = sum(any(file[0] == "verdicts" for file, _ in each) for each in places)
        matches = [
            match
            for file, rows in self.rows.items()
            for match in rows.values()
            if file[0] == "verdicts"
        ]
        statuses = Counter(match.status for match in matches)
        verdicts = Counter(match.verdict for match in matches)
        line = (
            f"{now} pairs of item and response judged now; of"
            f" {verdicts[True] + verdicts[False]} responses with a verdict"
            f" {verdicts[True]} match the reference"
        )
        if too_long := statuses["excluded"]:
            line += f"; {too_long} are too long for the matcher's prompt"
        if failed := statuses["engine_error"]:
            line += f"; on {failed} the engine failed: the same command repeats them"
        return line

    def append(
        self, checkpoint: str, task: str, shard: str, part: pa.Table | bytes
    ) -> Path:
        assert isinstance(part, bytes)
        columns = ["item_id", "logprob", "status"]
        rows = pq.read_table(BytesIO(part), columns=columns).to_pylist()
        with self._changed:
            if self._closed:
                raise ResurfaceError("verdicts came after the judging had ended")
            for row in rows:
                match = Match.of(row["logprob"], row["status"])
                self._measured |= match.verdict is not None
                for file, key in self._places[self.claims[int(row["item_id"])]]:
                    self.rows[file][key] = match
                    self._left[file].discard(key)
                    self._unsaved.add(file)
            self._save([file for file in self._unsaved if not self._left[file]])
        return self.root

    def measured(self, checkpoint: str, task: str | None = None) -> bool:
        return self._measured

    def close(self) -> None:
        """Write what an unfinished judging has; later appends fail."""
        super().close()
        self._save(list(self._unsaved))

    def _save(self, files: Iterable[File]) -> None:
        for file in files:
            names, arrow, _ = _KINDS[file[0]]
            rows = []
            for key in sorted(self.rows[file]):
                row = dict(zip(names, key, strict=True)) | asdict(self.rows[file][key])
                rows.append(self._same | {"task": file[-1]} | row)
            table = pa.Table.from_pylist(rows, schema=arrow)
            write_parquet(table, self._path(file))
            self._unsaved.discard(file)

    def _read(self, file: File) -> dict[Key, Match]:
        names, arrow, columns = _KINDS[file[0]]
        path, digest = self._path(file), self._same["matcher_digest"]
        if not path.exists():
            return {}
        verdicts = {}
        for row in read_part(path, arrow.names, columns).to_pylist():
            other = row["matcher_digest"]
            if other == digest:
                verdicts[tuple(row[name] for name in names)] = Match(
                    verdict=row["verdict"],
                    probability=row["probability"],
                    status=row["status"],
                )
            elif file[0] == "verdicts":  # control pairs are judged again
                raise InputError(
                    f"{path}: matcher_digest: verdicts of another matcher named"
                    f" {self._same['matcher']!r} ({other[:12]}..., this one is"
                    f" {digest[:12]}...); remove them, or give the matcher's directory"
                    " another name"
                )
        return verdicts

    def _path(self, file: File) -> Path:
        folder = self._run_dir / file[0] / self._same["matcher"]
        return folder.joinpath(*file[1:-1], f"{file[-1]}.parquet")


def read_controls(run_dir: Path) -> pd.DataFrame | None:
    """The verdicts of all matchers on control pairs; None for a run without any."""
    return read_all(
        run_dir / "controls", "*/*", schema.READ_CONTROLS, schema.CONTROL_COLUMNS
    )


def write_fit_only(run_dir: Path, fit_only: bool) -> None:
    """Store whether the panel leaves unfit matchers out, which is not the default."""
    path = run_dir / _PANEL
    if fit_only or path.exists():
        write_atomically(path, json.dumps({"fit_only": fit_only}).encode())


def read_fit_only(run_dir: Path) -> bool:
    """Whether the panel leaves unfit matchers out. Raises InputError for a file
    without this value."""
    path = run_dir / _PANEL
    if not path.exists():
        return False
    found = parse(path.read_bytes(), str(path))
    fit_only = found.get("fit_only") if isinstance(found, dict) else None
    if not isinstance(fit_only, bool):
        raise InputError(
            f"{path}: field 'fit_only' must be true or false, is {fit_only!r}"
        )
    return fit_only
