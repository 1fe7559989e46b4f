"""A run directory in Python and in notebooks, read through the report's own functions.
It writes nothing.

    run = evaluator.open_run("runs/grid")
    run.table("fates")                      # typed; the units of its stored values are
                                            in .attrs["units"]
    run.item("xquad", "q17")                # every checkpoint's answers
    run.figure("fates")                     # as SVG

A run that is still running shows its records so far. What was read once stays: open the
run again for newer records.
"""

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from itertools import chain, starmap
from pathlib import Path

import pandas as pd

from evaluator.core.config import validated
from evaluator.core.errors import InputError, Json, counted, mapping_at, unknown
from evaluator.deciding import comparison
from evaluator.deciding.comparison import Side, side_of_run
from evaluator.deciding.decision import Verdict
from evaluator.deciding.logged import side_of_logged
from evaluator.deciding.policy import Policy, need_known, policy_for
from evaluator.deciding.thresholds import Tolerances
from evaluator.deciding.verdict_text import document, summary
from evaluator.deciding.verdicts import judge, not_in_run, not_judged
from evaluator.logs import read_logged
from evaluator.metrics import headline, left_out, published
from evaluator.metrics.columns import COUNT, TEXT, Column, described, names_of, rows_of
from evaluator.metrics.inputs import Inputs
from evaluator.metrics.table import FilledTable, numbers_of
from evaluator.metrics.tables import TABLES, fill
from evaluator.report import read_inputs
from evaluator.report.figures import draw_each
from evaluator.report.item_view import ItemView
from evaluator.report.page import standalone
from evaluator.report.paper_page import paper_table
from evaluator.report.results import compute
from evaluator.store.cells import Cell
from evaluator.store.outcomes import outcome_types
from evaluator.store.reading import cell_parts, read_items, read_part, read_records
from evaluator.store.run_json import failure_frame, failures_of, need_run, read_run
from evaluator.store.schema import PANDAS, RECORD_COLUMNS

Pairs = Mapping[str, str] | None
_OTHERS = ("headline", "left_out", "reference", "failures")  # tables of the whole run


class Figures(tuple[str, ...]):
    """Figures as SVG, on white; a notebook shows them."""

    def _repr_html_(self) -> str:
        return "".join(self)


@dataclass(frozen=True)
class OpenRun:
    """A run directory; `evaluator.open_run` makes it. Raises InputError, which lists
    the names that exist, for another name."""

    path: Path
    aloud: bool = field(default=False, repr=False)  # warn of what lacks records
    # gets the records for a page, whose outcomes are written to RUN/outcomes
    view: ItemView | None = field(default=None, repr=False)
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
        folder = None if self.view is None else self.path / "outcomes"
        inputs = read_inputs(self.path, self.view, outcomes=folder)
        for note in inputs.notes if self.aloud else ():
            warnings.warn(note, stacklevel=4)
        return inputs

    @cached_property
    def _run(self) -> Json:
        return read_run(self.path)

    @property
    def _cells(self) -> Mapping[Cell, Sequence[Path]]:
        with suppress(InputError):
            return cell_parts(self.path)
        return {}  # no records yet

    @property
    def checkpoints(self) -> list[str]:
        """The checkpoints that have records, in the order of the plan."""
        found = {cell.checkpoint for cell in self._cells}
        planned = list(mapping_at(self._run, "planned"))
        unplanned = sorted(found.difference(planned))
        return [name for name in planned if name in found] + unplanned

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
            failures = failure_frame(failures_of(self._run))
            kinds = {"attempts": COUNT}
            columns = [
                Column(name, kinds.get(name, TEXT)) for name in map(str, failures)
            ]
            return described(failures, columns)
        raise unknown("table", name, (*TABLES.names, *_OTHERS))

    def numbers(self) -> pd.DataFrame:
        """Every number of every table, one a row, as in RUN/tables/numbers.parquet."""
        return numbers_of(self._fill(name) for name in TABLES.names)

    def figure(self, name: str) -> Figures:
        """A table's figure, which a notebook shows: one SVG, or one for each part
        that the table keeps apart."""
        filled = self._need(name)
        drawn = draw_each(filled.table, filled.shown)
        if not drawn:
            names = ", ".join(each.name for each in TABLES if each.figure)
            raise InputError(
                f"figure {name!r}: table {name!r} has nothing to draw (tables with"
                f" figures: {names})"
            )
        return Figures(map(standalone, drawn))

    def outcomes(self) -> pd.DataFrame:
        """A row for each checkpoint, item, format and seed: the columns of
        RUN/outcomes."""
        types, pieces = outcome_types(), []
        for subject in (*self.inputs.checkpoints, *self.inputs.readers):
            key = subject.checkpoint, subject.task
            pieces.append(self.inputs.all_outcomes_of(*key)[list(types)])
        return pd.concat(pieces, ignore_index=True).astype(types)

    def records(self) -> pd.DataFrame:
        """Every record of every checkpoint and task, under their present names
        (docs/records.md). Raises InputError if there are none yet."""
        frames = [*starmap(read_records, cell_parts(self.path).items())]
        return pd.concat(frames, ignore_index=True)

    def items(self) -> pd.DataFrame:
        """The questions: a row for each item. Raises InputError for a run that kept
        none."""
        items = read_items(self.path)
        if items is None:
            raise InputError(f"{self.path}: has no items/: the run kept no questions")
        return items

    def item(
        self, task: str, item_id: str, language: str | None = None
    ) -> pd.DataFrame:
        """All records of one item, of every checkpoint; `.attrs["items"]` has its
        question and gold answers. An id that several languages share gives all of
        them without `language`."""
        names, frames = ["language", "item_id"], {}
        parts = self._cells
        cells = {cell: parts[cell] for cell in parts if cell.task == task}
        for path in {*chain(*cells.values())}:
            frames[path] = read_part(path, names, RECORD_COLUMNS).to_pandas()
        if not frames:
            raise unknown("task", task, self.tasks)
        keys = pd.concat(frames)
        keys_of_item = keys[keys["item_id"] == item_id]
        if keys_of_item.empty:
            raise unknown(f"item of task {task!r}", item_id, keys["item_id"].unique())
        languages = keys_of_item["language"].unique()
        if language is not None:
            if language not in languages:
                raise unknown(f"language of item {item_id!r}", language, languages)
            languages = [language]

        def of_item(frame: pd.DataFrame) -> pd.DataFrame:
            same = (frame["task"] == task) & (frame["item_id"] == item_id)
            return frame[same & frame["language"].isin(languages)]

        holding = {*keys_of_item.index.unique(0)}
        found = []
        for cell, paths in cells.items():
            if some := [path for path in paths if path in holding]:
                found.append(read_records(cell, some))
        records = of_item(pd.concat(found)).reset_index(drop=True)
        records = records.astype(
            {name: PANDAS[name] for name in records if name in PANDAS}
        )
        units = {}
        for name in map(str, records):
            unit = RECORD_COLUMNS[name].meaning.unit
            if unit:
                units[name] = unit
        records.attrs["units"] = units
        items = read_items(self.path)
        if items is not None:
            rows = rows_of(of_item(items))
            records.attrs["items"] = [
                row | {"answers": list(row["answers"])} for row in rows
            ]
        return records

    def gate(self, policy: Path | str | None = None, **tolerances: object) -> Json:
        """The content of RUN/gate.json under a policy's file, else the last policy, else
        that of the run's sweep file; with these tolerances over its default
        (`Thresholds`)."""
        validated(Tolerances, tolerances, "gate")
        file = None if policy is None else Path(policy)
        chosen = self.policy(file, **tolerances)
        if file is not None:
            need_known(chosen, self.tasks | self.groups, str(file))
        return self.judged(chosen)[1]

    def paper(self) -> pd.DataFrame:
        """What `report --paper` writes as CSV. Raises InputError as it does."""
        return paper_table(compute(self.inputs), self._run)

    def policy(self, file: Path | None = None, **tolerances: object) -> Policy:
        """The policy as `policy_for` chooses it."""
        return policy_for(self.path, self._run, file, **tolerances)

    @property
    def tasks(self) -> set[str]:
        """The tasks that are planned or have records."""
        tasks = {cell.task for cell in self._cells}
        return tasks.union(*mapping_at(self._run, "planned").values())

    @property
    def groups(self) -> set[str]:
        """The user's groups of all questions."""
        items = read_items(self.path)
        return set() if items is None else {*chain(*items["groups"].dropna())}

    def judged(self, policy: Policy) -> tuple[list[Verdict], Json]:
        """The verdicts, and the content of RUN/gate.json. Raises InputError if no
        checkpoint names a base."""
        verdicts = judge(self.inputs, policy)
        failures = not_judged(self.inputs)
        if not verdicts:
            why = (
                "no checkpoint names a base on a task of questions: evaluate both"
                " together (--base)"
            )
            if failures:
                # a base may have some records
                first = min(
                    failures, key=lambda each: each.checkpoint in self.checkpoints
                )
                what = " on ".join(filter(None, (first.checkpoint, first.task)))
                why = f"{what}: {first.reason}; repeat the run's command"
            raise InputError(f"{self.path}: {why}")
        return verdicts, document(
            verdicts, policy, failures, not_in_run(self.inputs, policy)
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
        compared = comparison.compare(self.side, theirs, pairs, task_pairs)
        frame = described(compared.frame, comparison.COLUMNS)
        frame.attrs |= {"differences": compared.stated, "notes": list(compared.notes)}
        return frame

    @property
    def side(self) -> Side:
        """This run in a comparison."""
        return side_of_run(self.inputs, str(self.path))

    @property
    def _headline(self) -> pd.DataFrame:
        rows = {name: self._fill(name).rows for name in headline.SUMMED}
        every = headline.headline_with_intervals(rows)
        return every[names_of(headline.COLUMNS)]

    def _fill(self, name: str) -> FilledTable:
        if name not in self._filled:
            self._filled[name] = fill(TABLES[name], self.inputs)
        return self._filled[name]

    def _need(self, name: str) -> FilledTable:
        filled = self._fill(name)
        if filled.frame.empty:
            raise InputError(
                f"{self.path}: table {name!r}: {filled.note} The run has:"
                f" {', '.join(self.tables)}"
            )
        return filled

    def _repr_html_(self) -> str:
        """State, finding, verdicts and headline. All text is escaped."""
        lines = [
            f"{self.path}: {self._run.get('state') or 'state unknown'},"
            f" {counted(len(self.checkpoints), 'checkpoint')}"
        ]
        table = pd.DataFrame()
        if self.checkpoints:
            frame = self._headline
            verdicts = judge(self.inputs, self.policy())
            lines += [headline.headline_sentence(frame), f"Gate: {summary(verdicts)}"]
            columns = {}
            for column in headline.COLUMNS:
                if not column.csv_only and frame[column.names[0]].notna().any():
                    columns[column.heading] = [*map(column.shown, rows_of(frame))]
            table = pd.DataFrame(columns)
        text = "".join(f"<p>{escape(line)}</p>" for line in lines)
        return (
            '<div class="tex2jax_ignore'
            f' mathjax_ignore">{text}{table.to_html(index=False)}</div>'
        )


def side_at(path: Path) -> Side:
    """One side of a comparison: a run directory, or another program's logs. Raises
    InputError for anything else."""
    # a run may hold an export of itself
    if (path / "records").is_dir() or (path / "run.json").is_file():
        return OpenRun(path).side
    return side_of_logged(read_logged(path), str(path))
