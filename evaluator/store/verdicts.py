"""The verdicts of judges on a run's responses and on control pairs.

    RUN/verdicts/<matcher>/<checkpoint>/<task>.parquet     one row per judged record,
                                                           sorted by its key
    RUN/verdicts/<matcher>/controls.parquet                one row per control pair

A file appears whole or not at all. A later command that judges more records (other
probes, all responses) adds rows.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from evaluator.core.errors import InputError, ResurfaceError
from evaluator.core.files import write_parquet
from evaluator.core.grading import strip_thinking
from evaluator.core.records import Item, Status
from evaluator.core.reducing import by_its_rule
from evaluator.judging.controls import controls
from evaluator.judging.matcher import Claim
from evaluator.store import schema
from evaluator.store.reading import cell_parts, read_part, read_records
from evaluator.store.records import RecordStore

File = tuple[str, ...]  # a matcher's file: checkpoint and task, or CONTROLS
Key = tuple[str | int, ...]  # of a record
Wanted = dict[File, dict[Key, Claim]]
CONTROLS: File = ("controls",)
_GRADES = ("contains", "contains_paper", "grading")


@dataclass(frozen=True, slots=True)
class Match:
    """A judge's verdict on one claim; None without a measurement: see `status`."""

    verdict: bool | None
    # truncated: the response was cut to fit the prompt's cap; excluded: even without
    # it, it did not fit
    status: Status


def responses(run_dir: Path, probes: Sequence[str], *, everything: bool) -> Wanted:
    """The responses to judge, thinking removed; `everything`: right ones too. Raises
    InputError for a missing item."""
    wanted: Wanted = {}
    items: dict[str, dict[tuple[str, str], Item]] = {}
    for cell, parts in cell_parts(run_dir).items():
        checkpoint, task = cell.name
        names = [*schema.KEY, "status", "text", *_GRADES]
        records = by_its_rule(read_records(cell, parts, names))
        judged = records["probe"].isin(probes) & records["contains"].notna()
        if not everything:
            judged &= records["contains"].eq(False)
        for row in records[judged].to_dict("records"):
            if task not in items:
                items[task] = _questions(run_dir, task)
            item = items[task].get((row["language"], row["item_id"]))
            if item is None:  # the last call asked fewer
                continue
            text = strip_thinking(row["text"] or "").strip()
            key = tuple(row[name] for name in schema.KEY)
            wanted.setdefault((checkpoint, task), {})[key] = Claim(
                question=item.question, answers=item.answers, response=text
            )
    return wanted


def control_pairs() -> Wanted:
    """The control pairs, named by their numbers in the columns of a record's key."""
    named: dict[str, str | int] = dict.fromkeys(schema.KEY, "")
    named |= {"task": "controls", "format": "open", "probe": "control"}
    pairs: dict[Key, Claim] = {}
    for number, claim in enumerate(controls()):
        row = named | {"item_id": f"{number:02d}", "index": 0, "seed": 0}
        pairs[tuple(row[name] for name in schema.KEY)] = claim
    return {CONTROLS: pairs}


def _questions(run_dir: Path, task: str) -> dict[tuple[str, str], Item]:
    """The questions and gold answers of a task in RUN/items, without contexts.
    Raises InputError if there are none."""
    path = run_dir / "items" / f"{task}.parquet"
    if not path.is_file():
        raise InputError(
            f"{path}: missing: a matcher needs the questions and their answers, which a"
            " run keeps there"
        )
    names = ["language", "item_id", "question", "answers"]
    found = {}
    for row in read_part(path, names, schema.ITEM_COLUMNS).to_pylist():
        row["answers"] = tuple(row["answers"])
        item = Item(**row, task=task, context="", cluster="")
        found[item.language, item.item_id] = item
    return found


class Verdicts(RecordStore):
    """One judge's verdicts on a run. As the store of its records, it turns them into
    verdicts."""

    def __init__(self, run_dir: Path, judge: str, digest: str, wanted: Wanted) -> None:
        """`digest`: of the judge's weights. Raises InputError for an unreadable file
        and for responses that another judge of that name has judged."""
        super().__init__(run_dir)
        self._folder = run_dir / "verdicts" / judge
        self._measured = False  # whether any claim has a verdict now
        self._same = {"matcher": judge, "matcher_digest": digest}
        self.rows = {file: self._read(file) for file in wanted}
        known: dict[Claim, Match] = {}
        for file, claims in wanted.items():
            for key, claim in claims.items():
                match = self.rows[file].get(key)
                if match is not None and match.status != "engine_error":
                    known[claim] = match
        self._places: dict[Claim, list[tuple[File, Key]]] = {}
        unsaved = set()
        for file, claims in wanted.items():
            for key, claim in claims.items():
                if claim not in known:
                    self._places.setdefault(claim, []).append((file, key))
                elif self.rows[file].get(key) != known[claim]:
                    self.rows[file][key] = known[claim]
                    unsaved.add(file)
        for file in unsaved:
            self._save(file)
        # each once, although several checkpoints may have given the response
        self.claims = tuple(self._places)

    @property
    def summary(self) -> str:
        """What this call judged, and all verdicts on responses, in one line."""
        places = self._places.values()
        now = sum(any(file != CONTROLS for file, _ in each) for each in places)
        matches: list[Match] = []
        for file, rows in self.rows.items():
            if file != CONTROLS:
                matches += rows.values()
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

    def append(self, key: str, part: pa.Table | bytes) -> Path:
        """A record's `logprob` is how much likelier yes is, in nats."""
        assert isinstance(part, bytes)
        columns = ["item_id", "logprob", "status"]
        rows = pq.read_table(BytesIO(part), columns=columns).to_pylist()
        with self._changed:
            if self._closed:
                raise ResurfaceError("verdicts came after the judging had ended")
            changed = set()
            for row in rows:
                odds = row["logprob"]
                match = Match(None if odds is None else odds > 0, row["status"])
                self._measured |= match.verdict is not None
                for file, of in self._places[self.claims[int(row["item_id"])]]:
                    self.rows[file][of] = match
                    changed.add(file)
            for file in changed:
                self._save(file)
        return self.root

    def measured(self, key: str) -> bool:
        return self._measured

    def _save(self, file: File) -> None:
        rows = []
        for key, match in sorted(self.rows[file].items(), key=lambda row: row[0]):
            said = {"verdict": match.verdict, "status": match.status}
            rows.append(dict(zip(schema.KEY, key, strict=True)) | self._same | said)
        table = pa.Table.from_pylist(rows, schema=schema.VERDICTS)
        write_parquet(table, self._path(file))

    def _read(self, file: File) -> dict[Key, Match]:
        path, digest = self._path(file), self._same["matcher_digest"]
        if not path.exists():
            return {}
        verdicts = {}
        table = read_part(path, schema.VERDICTS.names, schema.VERDICT_COLUMNS)
        for row in table.to_pylist():
            other = row["matcher_digest"]
            if other != digest:
                raise InputError(
                    f"{path}: matcher_digest: verdicts of another matcher named"
                    f" {self._same['matcher']!r} ({other[:12]}..., this one is"
                    f" {digest[:12]}...); remove them, or give the matcher's directory"
                    " another name"
                )
            key = tuple(row[name] for name in schema.KEY)
            verdicts[key] = Match(row["verdict"], row["status"])
        return verdicts

    def _path(self, file: File) -> Path:
        return self._folder.joinpath(*file[:-1], f"{file[-1]}.parquet")
