"""The paper's figures and tables, filled from one run: each with the paper's own
values beside ours, the difference and our interval.

    write_paper_page(Path("runs/paper"), results)     # runs/paper/report/paper.html

A place is a figure, a table or a section of the paper (`paper_places.yaml`). Its rows
differ in one thing: a language, a rung, a probe, a checkpoint. Each quantity of a
place is a column of one of our tables. Most places compare one pruned checkpoint with
its base (`main_pair`). The paper's values are in `paper_values.yaml`."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import pandas as pd
import yaml
from markupsafe import Markup

import evaluator.metrics.columns as col
from evaluator.core.errors import Document, InputError
from evaluator.core.files import csv_bytes, write_atomically
from evaluator.core.text import name_of
from evaluator.metrics import TABLES
from evaluator.metrics.columns import Column, Row, rows_with, worded
from evaluator.metrics.items import ALL
from evaluator.metrics.published import is_paper_setting, paper
from evaluator.metrics.table import Axis, Bars, Dots, Panel, Scatter, Series
from evaluator.report.drawing import asset
from evaluator.report.figures import draw_panels
from evaluator.report.page import Cell, Grid, render, words
from evaluator.report.results import Results
from evaluator.store.run_json import read_run

# the setting of the paper's main experiments, in paper_values.yaml
MAIN = "qwen3-8b, tydiqa"
_PRUNING = ("method", "pattern", "requested_sparsity", "calibration")
_AXES: Mapping[str, Axis] = {
    "percentage": "rates",
    "points": "points",
    "ratio": "changes",
    "rank": "amounts",
}
Tables = Mapping[str, Sequence[Row]]


class Quantity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    label: str
    table: str
    column: str
    colour: str
    side: str = "pruned"
    where: dict[str, str] = {}
    n: str = "n"  # the column with its number of items
    panel: str = ""
    drawn: bool = True

    @property
    def declared(self) -> Column:
        return TABLES[self.table].column(self.column)


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    section: str
    title: str
    says: str
    axis: str
    quantities: tuple[Quantity, ...]
    rows: tuple[str, ...] = ()
    settings: dict[str, str] = {}
    bars: bool = False
    by_size: bool = False


class Pair(NamedTuple):
    """A pruned checkpoint and its base on one task."""

    task: str
    base: str
    checkpoint: str


class Value(NamedTuple):
    """One quantity in one row of a place: the paper's number and our table's row, if
    there are any."""

    label: str
    quantity: Quantity
    published: float | None
    row: Row | None

    @property
    def ours(self) -> float | None:
        value = None if self.row is None else self.row.get(self.quantity.column)
        return None if value is None else float(value)


def places() -> list[Place]:
    return msgspec.convert(yaml.safe_load(asset("paper_places.yaml")), list[Place])


def render_paper_page(name: str, results: Results, run: Document) -> str:
    """The page as HTML. Raises InputError if no checkpoint was compared with its
    base."""
    tables = {key: filled.rows for key, filled in results.tables.items()}
    pair = main_pair(tables, run)
    pruned = rows_with(tables["accuracy"], _subject(pair, "pruned"))[0]
    sections = []
    missing = []
    for place in places():
        values = list(values_of(place, tables, pair))
        if any(value.ours is not None for value in values):
            section = {
                "place": place,
                "figure": Markup(_figure(place, values, tables) or ""),
                "grid": _grid(place, values),
            }
            sections.append(section)
        else:
            missing.append(place)
    return render(
        "paper.html.j2",
        {
            "name": name,
            "pair": pair,
            "pruning": [pruned[column] for column in _PRUNING if pruned[column]],
            "same": is_paper_setting(pruned, "pruned", paper()["settings"][MAIN], run),
            "paper": paper()["paper"],
            "sections": sections,
            "missing": missing,
        },
    )


def write_paper_page(run_dir: Path, results: Results) -> Path:
    """Write RUN/report/paper.html and paper.csv; return the page's path. Raises InputError as
    `render_paper_page` does."""
    page, run = run_dir / "report" / "paper.html", read_run(run_dir)
    html = render_paper_page(run_dir.resolve().name, results, run)
    write_atomically(page, html.encode())
    write_atomically(page.with_suffix(".csv"), csv_bytes(paper_table(results, run)))
    return page


def paper_table(results: Results, run: Document) -> pd.DataFrame:
    """The numbers of the page: a row for each quantity in each row of a place. Raises
    InputError as `render_paper_page` does."""
    tables = {key: filled.rows for key, filled in results.tables.items()}
    pair = main_pair(tables, run)
    rows: list[Row] = []
    for place in places():
        for value in values_of(place, tables, pair):
            column, row = value.quantity.column, value.row or {}
            numbers = {"paper": value.published, "ours": value.ours}
            for end in ("low", "high"):
                numbers[end] = row.get(f"{column}_{end}")
            if value.published is not None or value.ours is not None:
                rows.append(
                    {
                        "place": place.name,
                        "row": value.label,
                        "quantity": value.quantity.label,
                        "table": value.quantity.table,
                        "measure": column,
                        **numbers,
                    }
                )
    return pd.DataFrame(rows)


def main_pair(tables: Tables, run: Document) -> Pair:
    """The pair in the paper's main setting; without one, the run's first pair with
    fates."""
    pairs: dict[Pair, Row] = {}
    for row in tables["fates"]:
        if row["n"]:
            pair = Pair(row["task"], row["base"], row["checkpoint"])
            pairs.setdefault(pair, row)
    if not pairs:
        raise InputError(
            "no checkpoint of the run is compared with its base by the probes greedy"
            " and choice: the paper's figures need both"
        )
    main = paper()["settings"][MAIN]
    for pair, row in pairs.items():
        if is_paper_setting(row, "pruned", main, run):
            return pair
    return next(iter(pairs))


def values_of(place: Place, tables: Tables, pair: Pair) -> Iterator[Value]:
    """The values of a place, row by row."""
    if place.axis == "checkpoint":
        yield from _by_checkpoint(place, tables, pair)
        return
    for label in place.rows or _languages(place, tables, pair):
        for quantity in place.quantities:
            where = {"language": ALL, **quantity.where, place.axis: label}
            setting = place.settings.get(label, MAIN)
            named = {"language": name_of(where["language"])}
            published = _published(quantity, setting, where | named)
            row = _row(tables, quantity, _subject(pair, quantity.side) | where)
            yield Value(label, quantity, published, row)


def _row(tables: Tables, quantity: Quantity, equal: Row) -> Row | None:
    return next(iter(rows_with(tables[quantity.table], equal)), None)


def _by_checkpoint(place: Place, tables: Tables, pair: Pair) -> Iterator[Value]:
    """The checkpoints that were pruned like the main one, on every task, then the
    paper's settings. By size: on the main task alone, in the order of the
    parameters."""
    (main, *_) = rows_with(tables["fates"], _subject(pair, "pruned"))
    pruning = {column: main[column] for column in _PRUNING}
    subjects = []
    for row in rows_with(tables["fates"], {"language": ALL, **pruning}):
        subject = Pair(row["task"], row["base"], row["checkpoint"])
        if not place.by_size or subject.task == pair.task:
            subjects.append(subject)
    if place.by_size:
        subjects.sort(key=lambda subject: _parameters(tables, subject.checkpoint) or 0)
    for subject in subjects:
        label = subject.checkpoint
        if not place.by_size:
            label = f"{label} · {subject.task}"
        for quantity in place.quantities:
            equal = {**_subject(subject, "pruned"), "language": ALL, **quantity.where}
            yield Value(label, quantity, None, _row(tables, quantity, equal))
    for setting in paper()["settings"] if not place.by_size else ():
        for quantity in place.quantities:
            where = {"language": ALL, **quantity.where}
            published = _published(quantity, setting, where)
            if published is not None:
                yield Value(f"the paper: {setting}", quantity, published, None)


def _subject(pair: Pair, side: str) -> Row:
    """The columns that pick the rows of one side of a pair."""
    if side == "any":
        return {"task": pair.task, "base": pair.base}
    checkpoint = pair.base if side == "base" else pair.checkpoint
    return {"task": pair.task, "checkpoint": checkpoint}


def _languages(place: Place, tables: Tables, pair: Pair) -> list[str]:
    """The pooled row, then the languages of the run and those that only the paper
    has."""
    first = place.quantities[0]
    equal = _subject(pair, first.side)
    ours = [str(row["language"]) for row in rows_with(tables[first.table], equal)]
    theirs = []
    for entry in paper()["values"]:
        language = entry["where"]["language"]
        for quantity in place.quantities:
            where = {**quantity.where, "language": language}
            if _published(quantity, MAIN, where) is not None:
                theirs.append(language)
    # a run may name a language by its code
    names = {name_of(name): name for name in [*theirs, *ours]}
    return [ALL, *(name for name in names.values() if name not in (ALL, "mean"))]


def _published(quantity: Quantity, setting: str, where: Row) -> float | None:
    for entry in paper()["values"]:
        place = entry["table"], entry["column"], entry["setting"]
        side = "dense" if quantity.side == "base" else "pruned"
        if place == (quantity.table, quantity.column, setting) and (
            entry["side"] == side and entry["where"] == where
        ):
            return float(entry["value"])
    return None


def _parameters(tables: Tables, checkpoint: str) -> float | None:
    rows = rows_with(tables["price"], {"checkpoint": checkpoint})
    return rows[0]["parameters"] if rows else None


def _figure(place: Place, values: Sequence[Value], tables: Tables) -> str | None:
    """A row for each row of the place; over the size, a dot for each checkpoint."""
    rows: dict[str, Row] = {}
    shown: dict[str, None] = {}
    for label, quantity, published, found in values:
        row = rows.setdefault(
            label, {"task": "", "checkpoint": label, "language": ALL, "hollow": False}
        )
        key = _key(quantity)
        row |= {key: None, f"{key}_low": None, f"{key}_high": None}
        row[f"{key}_paper"] = published
        if found is not None or (published is not None and not place.bars):
            shown[label] = None
        if found is not None:
            for end in ("", "_low", "_high"):
                row[f"{key}{end}"] = found.get(f"{quantity.column}{end}")
    if place.by_size:
        for label, row in rows.items():
            row["parameters"] = _parameters(tables, label)
    frame = pd.DataFrame([rows[label] for label in shown])
    numbers = frame.columns.difference(["task", "checkpoint", "language", "hollow"])
    frame = frame.astype(dict.fromkeys(numbers, float))
    name = place.name.lower().replace(",", "").replace(" ", "-")
    return draw_panels(_panels(place), frame, f"paper-{name}", place.name)


def _key(quantity: Quantity) -> str:
    return f"{quantity.panel} {quantity.label}"


def _panels(place: Place) -> list[Panel]:
    drawn = [quantity for quantity in place.quantities if quantity.drawn]
    if place.bars:
        parts = {}
        for quantity in drawn:
            parts[_key(quantity)] = worded(quantity.label), quantity.colour, 1.0
        return [Bars("", parts)]
    if place.by_size:
        return [_over_parameters(quantity) for quantity in drawn]
    panels: list[Panel] = []
    for title in dict.fromkeys(quantity.panel for quantity in drawn):
        together = [quantity for quantity in drawn if quantity.panel == title]
        series: list[Series] = []
        for number, quantity in enumerate(together):
            key, colour, label = _key(quantity), quantity.colour, worded(quantity.label)
            shift = 0.16 * (number - (len(together) - 1) / 2)
            series.append(Series(key, colour, label, shift=shift))
            series.append(Series(f"{key}_paper", colour, "", shift=shift, hollow=True))
        axis = _AXES[together[0].declared.kind.name]
        panels.append(Dots(title, series, axis=axis))
    return panels


def _over_parameters(quantity: Quantity) -> Scatter:
    return Scatter(
        quantity.panel,
        x="parameters",
        y=_key(quantity),
        colour=quantity.colour,
        name="checkpoint",
        hollow="hollow",
        x_title="parameters",
        axis="changes" if quantity.declared.kind is col.RATIO else "points",
        log=True,
    )


def _grid(place: Place, values: Sequence[Value]) -> Grid:
    rows = []
    for value in values:
        if value.published is None and value.row is None:
            continue
        kind = value.quantity.declared.kind
        row, interval = value.row or {}, ""
        column = Column(value.quantity.column, kind, interval=True)
        if f"{column.name}_low" in row:
            interval = column.interval_of(row)
        n = row.get(value.quantity.n, row.get("n_max"))
        rows.append(
            (
                words(value.label),
                words(worded(value.quantity.label)),
                Cell(kind.shown(value.published)),
                Cell(kind.shown(value.ours), interval),
                Cell(_difference(value)),
                Cell(col.COUNT.shown(n)),
            )
        )
    headings = (place.axis, "quantity", "the paper", "this run", "difference", "n")
    return Grid(headings, tuple(rows))


def _difference(value: Value) -> str:
    """This run's value minus the paper's, in points for shares."""
    if value.ours is None or value.published is None:
        return col.MISSING
    difference = value.ours - value.published
    kind = value.quantity.declared.kind
    if kind is col.PERCENTAGE:
        kind = col.POINTS
    text = kind.shown(difference).replace("-", col.MINUS)
    signed = text.startswith(("+", col.MINUS)) or math.isclose(difference, 0)
    return text if signed else f"+{text}"
