"""Builds the page: template, style, script, figures, tables and the item view's data, all in one HTML text.

Jinja escapes every value. The content security policy lets run only the page's own script, by its hash, and lets
nothing be loaded: a model output that reached the page as markup could neither run nor call home.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import pandas as pd
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from evaluator.core.errors import rows_at
from evaluator.deciding.decision import Verdict
from evaluator.deciding.results import Results
from evaluator.deciding.words import summary, usable, why
from evaluator.metrics import FilledTable
from evaluator.metrics.columns import FEW
from evaluator.metrics.definitions import DEFINITIONS
from evaluator.metrics.headline import COLUMNS as HEADLINE
from evaluator.metrics.left_out import COLUMNS as LEFT_OUT
from evaluator.report.cells import grid, published_grid
from evaluator.report.figures import draw
from evaluator.report.pages import Page
from evaluator.store.failures import failures_of


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
    """The page as HTML. `index` and `chunks` come from `embed.ItemView`, already safe inside a <script> element.

    With `pages`, it is their index, without items and without a script; `home` is the index of a page that has one.
    """
    script = "" if pages else _asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    tables = [filled for filled in results.tables.values() if filled.note or len(filled.frame)]
    sections = [_section(filled, results.paper) for filled in tables]
    context = {
        "name": name,
        "policy": f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        "style": Markup(_asset("page.css")),
        "script": Markup(script),
        "verdict": summary(results.verdicts) if results.verdicts else "",
        "verdicts": _verdicts(results.verdicts),
        "sentence": results.sentence,
        "missed": results.missed,
        "headline": grid(results.headline, HEADLINE),
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
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_asset("page.html.j2")).render(context)


def standalone(svg: str) -> str:
    """A figure as a file of its own: the light theme's values of the page's style are written in, on white."""
    values: dict[str, str] = {}
    for name, value in re.findall(r"(--[a-z0-9-]+):\s*([^;]+);", _asset("page.css")):
        values.setdefault(name, value)  # the light theme comes first
    # What is no value of the page's style is a label that looks like one.
    painted = re.sub(r"var\((--[a-z0-9-]+)\)", lambda match: values.get(match[1], match[0]).replace('"', "'"), svg)
    return re.sub(r"<svg ", '<svg style="background: white" ', painted, count=1)


def engine_notes(run: Mapping[str, Any]) -> list[str]:
    """What engines said of how they served (`LoadReport.notes`), each once, with the checkpoints that it is about."""
    found: dict[str, list[str]] = {}
    for row in rows_at(run, "engine_stats"):
        notes = row.get("notes")
        for note in notes if isinstance(notes, list) else []:
            about = found.setdefault(str(note), [])
            if row.get("checkpoint") not in about:
                about.append(str(row.get("checkpoint")))
    return [f"{', '.join(about)}: {note}" for note, about in found.items()]


def _verdicts(verdicts: Sequence[Verdict]) -> list[dict[str, str]]:
    """Each verdict as the page shows it; with its task where there are several."""
    several = len({verdict.task for verdict in verdicts}) > 1
    return [
        {
            "outcome": verdict.outcome,
            "checkpoint": verdict.checkpoint,
            "task": verdict.task if several else "",
            "usable": usable(verdict),
            "why": why(verdict, most=1),
        }
        for verdict in verdicts
    ]


def _section(filled: FilledTable, paper: pd.DataFrame) -> dict[str, Any]:
    table, frame, rows = filled.table, filled.shown, len(filled.frame)
    beside = paper[paper["table"] == table.name]
    return {
        "name": table.name,
        "title": table.title,
        "reading": table.reading,
        "note": filled.note,
        "lacks": filled.lacks,
        "more": f"{len(frame):,} of {rows:,} rows; all are in tables/{table.name}.csv." if len(frame) < rows else "",
        "paper": None if beside.empty else published_grid(beside),
        "figure": Markup("" if filled.note else draw(table, frame) or ""),
        "grid": None if frame.empty else grid(frame, table.columns),
    }


@cache
def _asset(name: str) -> str:
    return files("evaluator.report").joinpath(name).read_text(encoding="utf-8")
