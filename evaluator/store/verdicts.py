"""The verdicts of matcher models on a run's responses and on control pairs, and what
still needs one.

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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa

from evaluator.core.errors import InputError, parse
from evaluator.core.files import write_atomically, write_parquet
from evaluator.core.grading import strip_thinking
from evaluator.core.records import Item
from evaluator.core.reducing import by_its_rule
from evaluator.judging.controls import Control
from evaluator.judging.matcher import Claim, Match
from evaluator.store import schema
from evaluator.store.reading import read_all, read_part
from evaluator.store.records import RecordStore

# the values of KEY or CONTROL_KEY: what names a record or a control pair
Key = tuple[str | int, ...]
Part = tuple[str, str]  # checkpoint, task
CONTROL_KEY = ("language", "item_id", "control", "response")
_GRADES = ("contains", "contains_paper", "grading")
_PANEL = Path("controls/panel.json")


@dataclass(frozen=True, slots=True)
class Answered:
    """A record's key, and the claim that a matcher judges: question, gold answers
    and response."""

    key: Key
    claim: Claim


def responses(
    run_dir: Path, probes: Sequence[str], *, everything: bool
) -> dict[Part, list[Answered]]:
    """The responses to judge, thinking removed; `everything`: right ones too. Raises
    InputError for a missing item."""
    found: dict[Part, list[Answered]] = {}
    items: dict[str, dict[tuple[str, str], Item]] = {}
    for checkpoint, task, path in RecordStore(run_dir).tables():
        table = read_part(
            path, [*schema.KEY, "status", "text", *_GRADES], schema.RECORD_COLUMNS
        )
        records = by_its_rule(table.to_pandas())
        asked_of = records["probe"].isin(probes) & records["contains"].notna()
        asked_of &= (records["probe"] != "greedy") | (records["index"] == 0)  # as it is
        if not everything:
            asked_of &= records["contains"].eq(False)
        for row in records[asked_of].to_dict("records"):
            if task not in items:
                items[task] = {
                    (item.language, item.item_id): item
                    for item in read_questions(run_dir, task)
                }
            item = items[task].get((row["language"], row["item_id"]))
            if item is None:
                raise InputError(
                    f"{run_dir / 'items' / task}.parquet: item_id:"
                    f" {row['item_id']!r} is missing"
                )
            text = strip_thinking(row["text"] or "").strip()
            claim = Claim(question=item.question, answers=item.answers, response=text)
            found.setdefault((checkpoint, task), []).append(
                Answered(tuple(row[name] for name in schema.KEY), claim)
            )
    return found


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


class VerdictStore:
    """The verdicts of one matcher on one run's responses. `digest`: of the matcher's
    weights."""

    folder, key, arrow, columns = (
        "verdicts",
        schema.KEY,
        schema.VERDICTS,
        schema.VERDICT_COLUMNS,
    )

    def __init__(self, run_dir: Path, matcher: str, digest: str) -> None:
        self._root = run_dir / self.folder / matcher
        self._matcher = matcher
        self._digest = digest

    def read(self, part: tuple[str, ...]) -> dict[Key, Match]:
        """One part's verdicts. Raises InputError if unreadable or another matcher's;
        its controls are left out."""
        path = self._path(part)
        rows = (
            read_part(path, self.arrow.names, self.columns).to_pylist()
            if path.exists()
            else []
        )
        own = [row for row in rows if row["matcher_digest"] == self._digest]
        if len(own) < len(rows) and self.folder == "verdicts":
            other = next(
                row["matcher_digest"]
                for row in rows
                if row["matcher_digest"] != self._digest
            )
            raise InputError(
                f"{path}: matcher_digest: verdicts of another matcher named"
                f" {self._matcher!r} ({other[:12]}..., this one is"
                f" {self._digest[:12]}...); remove them, or give the matcher's"
                " directory another name"
            )
        return {
            tuple(row[name] for name in self.key): Match(
                verdict=row["verdict"],
                probability=row["probability"],
                status=row["status"],
            )
            for row in own
        }

    def write(self, part: tuple[str, ...], verdicts: Mapping[Key, Match]) -> Path:
        """Replace the verdicts of one checkpoint and task, whole or not at all."""
        same = {
            "task": part[-1],
            "matcher": self._matcher,
            "matcher_digest": self._digest,
        }
        rows = [
            same | dict(zip(self.key, key, strict=True)) | asdict(verdict)
            for key, verdict in sorted(verdicts.items(), key=lambda item: item[0])
        ]
        path = self._path(part)
        write_parquet(pa.Table.from_pylist(rows, schema=self.arrow), path)
        return path

    def _path(self, part: tuple[str, ...]) -> Path:
        return self._root.joinpath(*part[:-1], f"{part[-1]}.parquet")


class ControlStore(VerdictStore):
    """The same for control pairs. A part is a task alone."""

    folder, key, arrow, columns = (
        "controls",
        CONTROL_KEY,
        schema.CONTROLS,
        schema.CONTROL_COLUMNS,
    )


def control_key(control: Control) -> Key:
    return control.language, control.item_id, control.kind, control.claim.response


@dataclass(frozen=True, eq=False)
class Pending:
    """The claims of one part that a matcher still has to judge, each distinct one
    once."""

    # judged before, in this part or as the same claim elsewhere
    known: Mapping[Key, Match]
    claims: tuple[Claim, ...]
    keys: tuple[tuple[Key, ...], ...]  # for each claim, its records

    def complete(self, verdicts: Sequence[Match]) -> dict[Key, Match]:
        """All verdicts of the part, given the verdicts on `claims`."""
        new = {
            key: judged
            for keys, judged in zip(self.keys, verdicts, strict=True)
            for key in keys
        }
        return {**self.known, **new}


def pending(
    answered: Iterable[Answered],
    done: Mapping[Key, Match],
    elsewhere: dict[Claim, Match],
) -> Pending:
    """The claims without a verdict or with a failed one; adds `done` to `elsewhere`,
    all checkpoints' verdicts."""
    waiting: dict[Claim, list[Key]] = {}
    known = dict(done)
    for each in answered:
        if each.key in done and not done[each.key].failed:
            elsewhere[each.claim] = done[each.key]
        elif each.claim in elsewhere:
            known[each.key] = elsewhere[each.claim]
        else:
            waiting.setdefault(each.claim, []).append(each.key)
    return Pending(
        known, tuple(waiting), tuple(tuple(keys) for keys in waiting.values())
    )


def read_controls(run_dir: Path) -> pd.DataFrame | None:
    """The verdicts of all matchers on control pairs; None for a run without any."""
    return read_all(
        run_dir / "controls", "*/*", schema.READ_CONTROLS, schema.CONTROL_COLUMNS
    )


def write_fit_only(run_dir: Path, fit_only: bool) -> None:
    """Store whether the panel leaves unfit matchers out. Write the file only if this
    changes."""
    path, content = run_dir / _PANEL, json.dumps({"fit_only": fit_only}).encode()
    if (path.read_bytes() != content) if path.is_file() else fit_only:
        write_atomically(path, content)


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
