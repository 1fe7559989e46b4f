"""A run directory in Python and in notebooks, read through the report's own functions.
It writes nothing.

    run = evaluator.open_run("runs/grid")
    run.table("fates")                      # typed; the units of its stored values are
                                            in .attrs["units"]
    run.item("xquad", "q17")                # every checkpoint's answers
    run.figure("fates")                     # matplotlib's axes

A run that is still running shows its records so far. What was read once stays: open the
run again for newer records.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from evaluator.core.errors import InputError, mapping_at, unknown
from evaluator.deciding import comparison
from evaluator.deciding.comparison import Side, side_of_logged, side_of_run
from evaluator.deciding.decision import Verdict
from evaluator.deciding.thresholds import Thresholds, thresholds_of
from evaluator.deciding.verdicts import judge, unfinished
from evaluator.deciding.words import document, summary
from evaluator.metrics import headline, left_out, published
from evaluator.metrics.columns import COUNT, TEXT, Column, described, rows_of
from evaluator.metrics.inputs import Inputs
from evaluator.metrics.table import FilledTable
from evaluator.metrics.tables import TABLES, fill
from evaluator.report import read_inputs
from evaluator.report.figures import Axes, axes_of, parts_of
from evaluator.store.lm_eval import is_logged, read_logged
from evaluator.store.outcomes import outcome_types
from evaluator.store.reading import (
    read_items,
    read_part,
    read_records,
    read_run,
    record_parts,
)
from evaluator.store.run_json import failure_frame, failures_of, need_run
from evaluator.store.schema import PANDAS, RECORD_COLUMNS

Pairs = Mapping[str, str] | None
_OTHERS = ("headline", "left_out", "reference", "failures")  # tables of the whole run


@dataclass(frozen=True)
class OpenRun:
    """A run directory; `evaluator.open_run` makes it. Raises InputError, which lists
    the names that exist, for another name."""

    path: Path
    _filled: dict[str, FilledTable] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if not (self.path / "run.json").is_file():
            need_run(self.path)

    @cached_property
    def inputs(self) -> Inputs:
        """The outcomes of all records, as every table reads them. Raises InputError
        if there are no records yet."""
        return read_inputs(self.path)

    @cached_property
    def _run(self) -> dict[str, Any]:
        return read_run(self.path)

    @property
    def checkpoints(self) -> list[str]:
        """The checkpoints that have records, in the order of the plan."""
        found = sorted(
            {
                part.parent.parent.name
                for part in (self.path / "records").glob("*/*/*.parquet")
            }
        )
        planned = list(mapping_at(self._run, "planned"))
        return sorted(
            found,
            key=lambda name: planned.index(name) if name in planned else len(planned),
        )

    @property
    def tables(self) -> list[str]:
        """The tables with rows, without `headline`, `left_out`, `reference` and
        `failures`. Computes all of them."""
        return [each.name for each in TABLES if len(self._fill(each.name).frame)]

    def table(self, name: str) -> pd.DataFrame:
        """A table with all rows of RUN/tables/NAME.csv, computed from the records.
        Shares are fractions of 1."""
        if name in TABLES:
            filled = self._need(name)
            return described(filled.told(filled.frame), filled.table.columns)
        if name == "headline":
            return described(self._headline, headline.COLUMNS)
        if name == "left_out":
            return described(left_out.left_out(self.inputs), left_out.COLUMNS)
        if name == "reference":
            rows = {each: self._fill(each).rows for each in TABLES.names}
            return described(published.published(rows, self._run), published.COLUMNS)
        if name == "failures":
            found = failure_frame(failures_of(self._run))
            return described(
                found,
                [
                    Column(str(each), COUNT if each == "attempts" else TEXT)
                    for each in found
                ],
            )
        raise unknown("table", name, (*TABLES.names, *_OTHERS))

    def figure(self, name: str, ax: Axes | None = None) -> list[Axes]:
        """The panels of a table's figure, as axes. They replace `ax`, or belong to a
        new figure of pyplot's."""
        from matplotlib import pyplot  # late: it chooses a backend

        filled = self._need(name)
        parts = parts_of(filled.table, filled.shown)
        if ax is not None and len(parts) > 1:
            raise InputError(
                f"figure {name!r}: {len(parts)} figures"
                f" ({', '.join(filled.table.apart)}): leave out ax"
            )
        panels = [
            panel
            for part in parts
            for panel in axes_of(
                filled.table, part, pyplot.figure if ax is None else ax
            )
        ]
        if not panels:
            drawn = ", ".join(each.name for each in TABLES if each.figure)
            raise InputError(
                f"figure {name!r}: table {name!r} has nothing to draw (tables with"
                f" figures: {drawn})"
            )
        return panels

    def outcomes(self) -> pd.DataFrame:
        """A row for each checkpoint, item, format and seed: the columns of
        RUN/outcomes."""
        subjects, types = (
            (*self.inputs.checkpoints, *self.inputs.readers),
            outcome_types(),
        )
        pieces = [
            self.inputs.all_outcomes_of(each.checkpoint, each.task)[list(types)]
            for each in subjects
        ]
        return pd.concat(pieces, ignore_index=True).astype(types)

    def items(self) -> pd.DataFrame:
        """The questions: a row for each item. Raises InputError for a run that kept
        none."""
        found = read_items(self.path)
        if found is None:
            raise InputError(f"{self.path}: has no items/: the run kept no questions")
        return found

    def item(
        self, task: str, item_id: str, language: str | None = None
    ) -> pd.DataFrame:
        """All records of one item, of every checkpoint; `.attrs["items"]` has its
        question and gold answers. An id that several languages share gives all of
        them without `language`."""
        parts = [part for paths in record_parts(self.path) for part in paths]
        if task not in (tasks := {part.parent.name for part in parts}):
            raise unknown("task", task, tasks)
        parts = [part for part in parts if part.parent.name == task]
        keys = pd.concat(
            {
                part: read_part(
                    part, ["language", "item_id"], RECORD_COLUMNS
                ).to_pandas()
                for part in parts
            }
        )
        own = keys[keys["item_id"] == item_id]
        if own.empty:
            raise unknown(f"item of task {task!r}", item_id, keys["item_id"].unique())
        languages = own["language"].unique()
        if language is not None:
            if language not in languages:
                raise unknown(f"language of item {item_id!r}", language, languages)
            languages = [language]
        records = read_records(list(own.index.unique(0)))
        records = records[
            (records["item_id"] == item_id) & records["language"].isin(languages)
        ].reset_index(drop=True)
        records = records.astype(
            {name: PANDAS[name] for name in records if name in PANDAS}
        )
        records.attrs["units"] = {
            name: unit
            for name in records
            if (unit := RECORD_COLUMNS[str(name)].meaning.unit)
        }
        items = read_items(self.path)
        if items is not None:
            here = (
                (items["task"] == task)
                & (items["item_id"] == item_id)
                & items["language"].isin(languages)
            )
            records.attrs["items"] = [
                {**row, "answers": list(row["answers"])} for row in rows_of(items[here])
            ]
        return records

    def gate(self, **tolerances: object) -> dict[str, Any]:
        """The content of RUN/gate.json under these tolerances (`Thresholds`), else
        those of the run's sweep file."""
        return self.judged(
            thresholds_of(self._run, str(self.path / "run.json"), **tolerances)
        )[1]

    def judged(self, thresholds: Thresholds) -> tuple[list[Verdict], dict[str, Any]]:
        """The verdicts, and the content of RUN/gate.json. Raises InputError if no
        checkpoint names a base."""
        verdicts = judge(self.inputs, thresholds)
        if not verdicts:
            raise InputError(
                f"{self.path}: no checkpoint names a base on a task of questions:"
                " evaluate both together (--base)"
            )
        failures = [each for each in failures_of(self._run) if each.lost]
        return verdicts, document(
            verdicts, thresholds, [*failures, *unfinished(self.inputs, failures)]
        )

    def compare(
        self,
        other: "OpenRun | Path | str",
        pairs: Pairs = None,
        task_pairs: Pairs = None,
    ) -> pd.DataFrame:
        """What moved from this run (a) to another run or lm-eval's samples (b), as
        `resurface compare --csv` writes it. `.attrs` has `differences`, the settings
        that differ, and `notes`."""
        theirs = other.side if isinstance(other, OpenRun) else side_at(Path(other))
        found = comparison.compare(self.side, theirs, pairs, task_pairs)
        frame = described(found.frame, comparison.COLUMNS)
        frame.attrs |= {"differences": found.stated, "notes": list(found.notes)}
        return frame

    @property
    def side(self) -> Side:
        """This run in a comparison."""
        return side_of_run(self.inputs, str(self.path))

    @property
    def _headline(self) -> pd.DataFrame:
        return headline.headline_of(
            {each: self._fill(each).rows for each in headline.SUMMED}
        )

    def _fill(self, name: str) -> FilledTable:
        if name not in self._filled:
            self._filled[name] = fill(TABLES[name], self.inputs)
        return self._filled[name]

    def _need(self, name: str) -> FilledTable:
        filled = self._fill(name)
        if filled.frame.empty:
            lacks = filled.note or "No rows."
            raise InputError(
                f"{self.path}: table {name!r}: {lacks} The run has:"
                f" {', '.join(self.tables)}"
            )
        return filled

    def _repr_html_(self) -> str:
        """State, finding, verdicts and headline. All text is escaped."""
        lines = [
            f"{self.path}: {self._run.get('state') or 'state unknown'},"
            f" {len(self.checkpoints)} checkpoints"
        ]
        table = pd.DataFrame()
        if self.checkpoints:
            frame = self._headline
            verdicts = judge(
                self.inputs, thresholds_of(self._run, str(self.path / "run.json"))
            )
            lines += [headline.headline_sentence(frame), f"Gate: {summary(verdicts)}"]
            shown = [
                each
                for each in headline.COLUMNS
                if not each.csv_only and frame[each.names[0]].notna().any()
            ]
            table = pd.DataFrame(
                [
                    {each.heading: each.shown(row) for each in shown}
                    for row in rows_of(frame)
                ]
            )
        told = "".join(f"<p>{escape(line)}</p>" for line in lines)
        return (
            '<div class="tex2jax_ignore'
            f' mathjax_ignore">{told}{table.to_html(index=False)}</div>'
        )


def side_at(path: Path) -> Side:
    """One side of a comparison: a run directory, or lm-eval's samples. Raises
    InputError for anything else."""
    # a run may hold an export of itself
    if not (path / "records").is_dir() and is_logged(path):
        return side_of_logged(read_logged(path), str(path))
    if not path.is_dir():
        raise InputError(
            f"{path}: neither a run directory nor a file of lm-eval's (samples_*.jsonl)"
        )
    return OpenRun(path).side
