"""The verdicts of matcher models on a run's responses, and which responses still need one.

    RUN/verdicts/<matcher>/<checkpoint>/<task>.parquet     one row per judged record, sorted by its key

A file appears whole or not at all. A later command that judges more records (other probes, all responses) adds rows.
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
    """A record's key, and the claim that a matcher judges: question, gold answers and response."""

    key: Key
    claim: Claim


def responses(run_dir: Path, probes: Sequence[str], *, everything: bool) -> dict[Part, list[Answered]]:
    """The responses of these probes that a matcher judges: with `everything` all, else those without a gold answer.

    Thinking spans are removed from a response. Raises InputError if RUN/items lacks an item.
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
    """The verdicts of one matcher on one run. `digest`: of the matcher's weights."""

    def __init__(self, run_dir: Path, matcher: str, digest: str) -> None:
        self._root = run_dir / "verdicts" / matcher
        self._matcher = matcher
        self._digest = digest

    def read(self, part: Part) -> dict[Key, Verdict]:
        """The verdicts of one checkpoint and task.

        Raises InputError for an unreadable file, and for verdicts of another matcher with this name.
        """
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
    """The claims of one part that a matcher still has to judge, each distinct one once."""

    known: Mapping[Key, Verdict]  # judged before, in this part or as the same claim elsewhere
    claims: tuple[Claim, ...]
    keys: tuple[tuple[Key, ...], ...]  # for each claim, its records

    def complete(self, verdicts: Sequence[Verdict]) -> dict[Key, Verdict]:
        """All verdicts of the part, given the verdicts on `claims`."""
        new = {key: judged for keys, judged in zip(self.keys, verdicts, strict=True) for key in keys}
        return {**self.known, **new}


def pending(answered: Iterable[Answered], done: Mapping[Key, Verdict], elsewhere: dict[Claim, Verdict]) -> Pending:
    """The claims without a verdict, and those that failed in the engine.

    `elsewhere` holds this matcher's verdicts on the responses of all checkpoints. The function adds those in `done`.
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
