"""All results of a run: tables, headline, excluded items, verdicts, and the paper's
numbers next to ours.

A run with few checkpoints has one page. A larger run has an index and several pages,
so that each page opens quickly. Each of these shows some checkpoints and their base.
All numbers are computed over the whole run: a page shows a part of them, and
tables/*.csv has all."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pandas as pd

from evaluator.core.controls import MARK
from evaluator.deciding.decision import Verdict
from evaluator.deciding.policy import Policy, spelled
from evaluator.deciding.verdicts import judge, not_in_run, not_judged
from evaluator.metrics.columns import Row, names_of
from evaluator.metrics.headline import COLUMNS as HEADLINE
from evaluator.metrics.headline import (
    headline_sentence,
    headline_with_intervals,
    partly_measured,
)
from evaluator.metrics.inputs import Inputs
from evaluator.metrics.left_out import left_out
from evaluator.metrics.published import published
from evaluator.metrics.table import FilledTable, numbers_of
from evaluator.metrics.tables import TABLES, Tell, compute_tables, untold
from evaluator.metrics.tables.length import filled_limits
from evaluator.report.figures import draw_each
from evaluator.store.run_json import Failure

MOST = 24  # checkpoints on a page, without their base
BYTES = 24 * 2**20  # of answers on a page; a single checkpoint may have more


@dataclass(frozen=True, eq=False)
class Results:
    """The numbers of a run. `left_out` is empty if everything was measured, `paper`
    if no setting is the paper's."""

    tables: Mapping[str, FilledTable]
    intervals: pd.DataFrame  # the headline's numbers, with intervals
    left_out: pd.DataFrame
    paper: pd.DataFrame
    verdicts: Sequence[Verdict] = ()  # of each compressed checkpoint on each task
    policy: Policy = field(default_factory=Policy)  # of the verdicts
    not_judged: Sequence[Failure] = ()
    notes: Sequence[str] = ()  # on the headline's numbers
    lacking: Sequence[str] = ()  # as `verdicts.not_in_run`

    @property
    def tolerances(self) -> str:
        return spelled(self.policy, self.lacking)

    @property
    def headline(self) -> pd.DataFrame:
        return self.intervals[names_of(HEADLINE)]

    @property
    def sentence(self) -> str:
        """The main finding."""
        return headline_sentence(self.headline)

    @property
    def remarks(self) -> list[str]:
        """What a reader of the headline should know."""
        return [*filter(None, (self.missed, self.noise)), *self.notes]

    @property
    def missed(self) -> str:
        """Names the checkpoints whose sparsity is not the requested one, which is
        part of their names."""
        column = TABLES["accuracy"].column("sparsity")
        if "accuracy" not in self.tables:
            return ""
        missed = dict.fromkeys(
            f"{row['checkpoint']} {column.shown(row)}"
            for row in self.tables["accuracy"].rows
            if column.missed(row)
        )
        return f"Achieved sparsity: {'; '.join(missed)}" if missed else ""

    @property
    def noise(self) -> str:
        """How far a log-probability moved at most in each control."""
        most: dict[str, float] = {}
        for row in self.tables["noise"].rows if "noise" in self.tables else ():
            moved, name = row.get("distance_max"), row["checkpoint"]
            if moved is not None:
                most[name] = max(moved, most.get(name, 0.0))
        shown = [f"{name} {moved:.3f} nats" for name, moved in most.items()]
        return f"Noise, the largest: {'; '.join(shown)}" if shown else ""

    @property
    def files(self) -> dict[str, pd.DataFrame]:
        """The frames of tables/*.csv: a table without rows has no file."""
        files = {"headline": self.headline}
        for name, table in self.tables.items():
            files[name] = table.told(table.frame)
        files |= {"left_out": self.left_out, "reference": self.paper}
        return {name: frame for name, frame in files.items() if len(frame)}

    @property
    def numbers(self) -> pd.DataFrame:
        """Every number, one a row (`evaluator.core.records.Cell`)."""
        return numbers_of(self.tables.values())

    @property
    def failures(self) -> dict[str, str]:
        return {name: table.note for name, table in self.tables.items() if table.failed}


def compute(
    inputs: Inputs, policy: Policy | None = None, tell: Tell = untold
) -> Results:
    """All results. `policy`: of the verdicts; None: the default one."""
    policy = policy or Policy()
    tables = compute_tables(inputs, tell, draw_each)
    tell("verdicts")
    rows = {name: table.rows for name, table in tables.items()}
    intervals = headline_with_intervals(rows)
    return Results(
        tables,
        intervals,
        left_out(inputs),
        published(rows, inputs.run),
        judge(inputs, policy),
        policy,
        not_judged(inputs),
        (*partly_measured(intervals), *filled_limits(inputs)),
        not_in_run(inputs, policy),
    )


@dataclass(frozen=True, slots=True)
class Page:
    """Some checkpoints of a run; `path` is relative to the report's folder."""

    path: str
    checkpoints: tuple[str, ...]


def pages_of(inputs: Inputs, sizes: Mapping[str, int]) -> list[Page]:
    """The pages of an index; none if one page shows everything. `sizes`: bytes of
    each checkpoint's answers."""
    bases: dict[str, str | None] = {}
    for subject in (*inputs.checkpoints, *inputs.readers):
        bases[subject.checkpoint] = bases.get(subject.checkpoint) or subject.base
    if len(bases) <= MOST + 1 and sum(sizes.values()) <= BYTES:
        return []
    groups: list[list[str]] = []
    needed = set(bases.values()) - {None}
    for base in dict.fromkeys(bases.values()):
        room, filled = 0, 0  # for checkpoints and bytes
        for name, own_base in bases.items():
            if own_base != base or (base is None and name in needed):
                continue
            size = sizes.get(name, 0)
            filled += size
            if not room or filled > BYTES - sizes.get(base or "", 0):
                groups.append([base] if base else [])
                room, filled = MOST, size
            groups[-1].append(name)
            room -= 1
    return [
        Page(f"pages/{number:03d}.html", tuple(names))
        for number, names in enumerate(groups, start=1)
    ]


def part_of(results: Results, checkpoints: Collection[str]) -> Results:
    tables = {}
    for name, table in results.tables.items():
        tables[name] = replace(table, rows=_only(table.rows, checkpoints))
    verdicts = [each for each in results.verdicts if each.checkpoint in checkpoints]
    failed = [each for each in results.not_judged if each.checkpoint in checkpoints]
    return replace(
        results,
        tables=tables,
        intervals=_rows_of(results.intervals, checkpoints),
        left_out=_rows_of(results.left_out, checkpoints),
        paper=_rows_of(results.paper, checkpoints),
        verdicts=verdicts,
        not_judged=failed,
    )


def without_tables(results: Results) -> Results:
    """The results on the index: the headline and the verdicts."""
    return replace(
        results,
        tables={},
        left_out=results.left_out.iloc[:0],
        paper=results.paper.iloc[:0],
    )


def _only(rows: Sequence[Row], checkpoints: Collection[str]) -> list[Row]:
    kept = {None, *checkpoints}
    part = []
    for row in rows:
        name = row["checkpoint"]
        name = name and name.partition(MARK)[0]  # of a control, its checkpoint's
        if {name, row.get("other")} <= kept:
            part.append(row)
    return part


def _rows_of(frame: pd.DataFrame, checkpoints: Collection[str]) -> pd.DataFrame:
    kept = frame["checkpoint"].isna() | frame["checkpoint"].isin(list(checkpoints))
    return frame[kept].reset_index(drop=True)
