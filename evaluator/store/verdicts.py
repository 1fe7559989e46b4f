"""The verdicts of matcher models beside a run's records: which responses to judge, and what was decided.

    RUN/verdicts/<matcher>/<checkpoint>/<task>.parquet     one row per judged record, sorted by its key

A file appears whole or not at all; judging more records later (other probes, or all of them) adds rows to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from evaluator.core.errors import InputError
from evaluator.core.records import VerdictRow
from evaluator.judging.matcher import Claim, Verdict
from evaluator.probes.grading import strip_thinking
from evaluator.store.files import write_parquet
from evaluator.store.reading import read_part
from evaluator.store.records import RecordStore
from evaluator.store.schema import ITEM_COLUMNS, KEY, RECORD_COLUMNS, VERDICT_COLUMNS, VERDICTS

Key = tuple[str | int, ...]  # the values of KEY: what names a record
Part = tuple[str, str]  # checkpoint, task


@dataclass(frozen=True, slots=True)
class Answered:
    """A record's response, and what a matcher is asked about it."""

    key: Key
    claim: Claim


def responses(run_dir: Path, probes: Sequence[str], *, everything: bool) -> dict[Part, list[Answered]]:
    """The responses of these probes to judge; unless `everything`, only those that contain no gold answer.

    Thinking spans are not part of a response. Raises InputError where RUN/items lacks what was asked.
    """
    found: dict[Part, list[Answered]] = {}
    asked: dict[str, Mapping[tuple[str, str], tuple[str, tuple[str, ...]]]] = {}
    for checkpoint, task, path in RecordStore(run_dir).tables():
        table = read_part(path, [*KEY, "status", "text", "contains"], RECORD_COLUMNS)
        keep = pc.and_(pc.is_in(table["probe"], pa.array(list(probes))), pc.is_valid(table["contains"]))
        if not everything:
            keep = pc.and_(keep, pc.invert(table["contains"]))
        for row in table.filter(keep).to_pylist():
            if task not in asked:
                asked[task] = _questions(run_dir, task)
            item = asked[task].get((row["language"], row["item_id"]))
            if item is None:
                raise InputError(f"{run_dir / 'items' / task}.parquet: item_id: {row['item_id']!r} is missing")
            claim = Claim(question=item[0], answers=item[1], response=strip_thinking(row["text"] or "").strip())
            found.setdefault((checkpoint, task), []).append(Answered(tuple(row[name] for name in KEY), claim))
    return found


def _questions(run_dir: Path, task: str) -> dict[tuple[str, str], tuple[str, tuple[str, ...]]]:
    path = run_dir / "items" / f"{task}.parquet"
    if not path.is_file():
        raise InputError(f"{path}: missing: a matcher needs the questions and their answers, which a run keeps there")
    rows = read_part(path, ["language", "item_id", "question", "answers"], ITEM_COLUMNS).to_pylist()
    return {(row["language"], row["item_id"]): (row["question"], tuple(row["answers"])) for row in rows}


class VerdictStore:
    """The verdicts of one matcher on one run. `digest` is that of the matcher's weights."""

    def __init__(self, run_dir: Path, matcher: str, digest: str) -> None:
        self._root = run_dir / "verdicts" / matcher
        self._matcher = matcher
        self._digest = digest

    def read(self, part: Part) -> dict[Key, Verdict]:
        """What was decided. Raises InputError for verdicts of another matcher with this name, or an unreadable file."""
        path = self._path(part)
        if not path.exists():
            return {}
        table = read_part(path, VERDICTS.names, VERDICT_COLUMNS)
        others = set(table["matcher_digest"].unique().to_pylist()) - {self._digest}
        if others:
            raise InputError(
                f"{path}: matcher_digest: verdicts of another matcher named {self._matcher!r} ({others.pop()[:12]}..., "
                f"this one is {self._digest[:12]}...); remove them, or give the matcher's directory another name"
            )
        return {
            tuple(row[name] for name in KEY): Verdict(
                verdict=row["verdict"], probability=row["probability"], status=row["status"]
            )
            for row in table.to_pylist()
        }

    def write(self, part: Part, verdicts: Mapping[Key, Verdict]) -> Path:
        """Replace the verdicts of one checkpoint and task, whole or not at all."""
        rows = [
            {
                **dict(zip(KEY, key, strict=True)),
                **asdict(VerdictRow(matcher=self._matcher, matcher_digest=self._digest, **asdict(verdict))),
            }
            for key, verdict in sorted(verdicts.items(), key=lambda item: item[0])
        ]
        path = self._path(part)
        write_parquet(pa.Table.from_pylist(rows, schema=VERDICTS), path)
        return path

    def _path(self, part: Part) -> Path:
        checkpoint, task = part
        return self._root / checkpoint / f"{task}.parquet"


@dataclass(frozen=True, eq=False)
class Pending:
    """What is left to ask a matcher about one part, each distinct response to an item once."""

    known: Mapping[Key, Verdict]  # judged before, or judged elsewhere as the same response to the item
    claims: tuple[Claim, ...]
    keys: tuple[tuple[Key, ...], ...]  # for each claim, the records that it stands for

    def complete(self, verdicts: Sequence[Verdict]) -> dict[Key, Verdict]:
        """All verdicts of the part, from the verdicts of its claims."""
        new = {key: judged for keys, judged in zip(self.keys, verdicts, strict=True) for key in keys}
        return {**self.known, **new}


def pending(answered: Iterable[Answered], done: Mapping[Key, Verdict], elsewhere: dict[Claim, Verdict]) -> Pending:
    """What to ask: whatever has no verdict, or one that failed in the engine.

    `elsewhere` holds the same matcher's verdicts, whichever checkpoint gave the response; those in `done` are added.
    """
    waiting: dict[Claim, list[Key]] = {}
    known = dict(done)
    for each in answered:
        if each.key in done and not done[each.key].failed:
            elsewhere[each.claim] = done[each.key]
        elif each.claim in elsewhere:
            known[each.key] = elsewhere[each.claim]
        else:
            waiting.setdefault(each.claim, []).append(each.key)
    return Pending(known, tuple(waiting), tuple(tuple(keys) for keys in waiting.values()))
