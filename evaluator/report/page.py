"""Builds the page: template, style, script, figures, tables and the item view's data, all in one HTML text.

Jinja escapes every value. The content security policy lets run only the page's own script, by its hash, and lets
nothing be loaded: a model output that reached the page as markup could neither run nor call home.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import pandas as pd
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from evaluator.metrics import Table, headline_sentence
from evaluator.report.cells import Grid, grid, reference_grid, titles
from evaluator.report.figures import draw
from evaluator.report.sections import DEFINITIONS, SECTIONS

# The CSV keeps them; in the page the sections below show them with their intervals.
_LEFT_OUT = ["base", "re_run", "recovery_n", "failures", "beam_recovered"]
_LEFT_OUT += ["open_base", "open_paired", "choice_base", "choice_paired"]  # the sentence tells them


def render_page(
    *, name: str, run: Mapping[str, Any], tables: Mapping[str, Table], headline: pd.DataFrame,
    paper: pd.DataFrame, left_out: pd.DataFrame, index: str, chunks: Mapping[str, str],
) -> str:  # fmt: skip
    """The page as HTML. `index` and `chunks` come from `embed.ItemView`, already safe inside a <script> element."""
    script = _asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    sections = [
        {
            "name": table.name,
            "title": SECTIONS[table.name].title,
            "reading": SECTIONS[table.name].reading,
            "note": table.note,
            "lacks": table.lacks,
            "paper": _beside(paper[paper["table"] == table.name]),
            "figure": Markup("" if table.note else draw(table.name, table.frame) or ""),
            "grid": None if table.frame.empty else grid(table.frame),
        }
        for table in tables.values()
    ]
    context = {
        "name": name,
        "policy": f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        "style": Markup(_asset("page.css")),
        "script": Markup(script),
        "sentence": headline_sentence(headline),
        "headline": grid(headline.drop(columns=_LEFT_OUT), counts_as_rates=True),
        "sections": sections,
        "told": [section for section in sections if not section["note"]],
        "missing": [section for section in sections if section["note"]],
        "left_out": None if left_out.empty else grid(left_out),
        "run": run,
        "definitions": DEFINITIONS,
        "index": Markup(index),
        "chunks": {key: Markup(data) for key, data in chunks.items()},
    }
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["titles"] = titles
    return environment.from_string(_asset("page.html.j2")).render(context)


def _beside(paper: pd.DataFrame) -> Grid | None:
    """The paper's numbers for one table, each beside ours."""
    return None if paper.empty else reference_grid(paper)


@cache
def _asset(name: str) -> str:
    return files("evaluator.report").joinpath(name).read_text(encoding="utf-8")
