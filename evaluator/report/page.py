"""Builds the page: template, style, script, figures, tables and the item view's data, all in one HTML text.

Jinja escapes every value. The content security policy allows only the page's own script, by its hash, and forbids
loading anything. So even a model output that became markup could neither run code nor contact a server.

A cell shows a value and its interval; empty columns are left out. DEFINITIONS explains the report's terms; it is the
page's last section.
"""

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import pandas as pd
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from evaluator.core.errors import rows_at
from evaluator.deciding.words import summary, usable, why
from evaluator.metrics import TABLES, FilledTable
from evaluator.metrics.columns import COUNT, FEW, TEXT, Column, names_of, rows_of
from evaluator.metrics.counting import COLUMNS as LEFT_OUT
from evaluator.metrics.headline import COLUMNS as HEADLINE
from evaluator.metrics.inputs import ALL, MEAN
from evaluator.report.figures import draw
from evaluator.report.results import Page, Results
from evaluator.store.run_json import failures_of


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

    With `pages`, it is their index, without items or a script. `home`: the link from a page to its index, if any.
    """
    script = "" if pages else _asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    tables = [filled for filled in results.tables.values() if filled.note or len(filled.frame)]
    several = len({verdict.task for verdict in results.verdicts}) > 1
    sections = [_section(filled, results.paper) for filled in tables]
    context = {
        "name": name,
        "policy": f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        "style": Markup(_asset("page.css")),
        "script": Markup(script),
        "verdict": summary(results.verdicts) if results.verdicts else "",
        "verdicts": [
            {
                "outcome": verdict.outcome,
                "checkpoint": verdict.checkpoint,
                "task": verdict.task if several else "",
                "usable": usable(verdict),
                "why": why(verdict, most=1),
            }
            for verdict in results.verdicts
        ],
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
    """A figure as a separate file, on white. The light theme's values replace the CSS variables."""
    values: dict[str, str] = {}
    for name, value in re.findall(r"(--[a-z0-9-]+):\s*([^;]+);", _asset("page.css")):
        values.setdefault(name, value)  # the light theme comes first
    # A `var(...)` that the page's style does not define is the text of a label.
    painted = re.sub(r"var\((--[a-z0-9-]+)\)", lambda match: values.get(match[1], match[0]).replace('"', "'"), svg)
    return re.sub(r"<svg ", '<svg style="background: white" ', painted, count=1)


def engine_notes(run: Mapping[str, Any]) -> list[str]:
    """The engines' notes on how they served (`LoadReport.notes`), each once, with its checkpoints."""
    found: dict[str, list[str]] = {}
    for row in rows_at(run, "engine_stats"):
        notes = row.get("notes")
        for note in notes if isinstance(notes, list) else []:
            about = found.setdefault(str(note), [])
            if row.get("checkpoint") not in about:
                about.append(str(row.get("checkpoint")))
    return [f"{', '.join(about)}: {note}" for note, about in found.items()]


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


@dataclass(frozen=True)
class Cell:
    """One cell: its text, its interval in smaller type, and whether it is a number, which is right-aligned."""

    text: str
    interval: str = ""
    number: bool = True


@dataclass(frozen=True)
class Grid:
    """Headings and rows of cells. `pooled` rows come first; the rows of single languages are separate."""

    headings: tuple[str, ...]
    pooled: tuple[tuple[Cell, ...], ...]
    by_language: tuple[tuple[Cell, ...], ...] = ()


def grid(frame: pd.DataFrame, columns: Sequence[Column]) -> Grid:
    """A whole table without its empty columns; `task` is left out too if there is only one.

    Raises ValueError if a column of the frame is not in `columns`: it has no kind, so it cannot be shown.
    """
    unknown = set(frame) - set(names_of(columns))
    if unknown:
        raise ValueError(f"no kind is declared for {', '.join(sorted(map(str, unknown)))}")
    shown = [column for column in columns if not column.csv_only and frame[column.names[0]].notna().any()]
    if frame["task"].nunique() == 1 and len(shown) > 1:
        shown = [column for column in shown if column.name != "task"]
    headings = tuple(column.heading for column in shown)
    rows: dict[bool, list[tuple[Cell, ...]]] = {True: [], False: []}
    for row in rows_of(frame):
        cells = []
        for column in shown:
            interval = column.interval_of(row)
            if column.alone:
                cells.append(Cell(interval or column.shown({})))
            else:
                cells.append(Cell(column.shown(row), interval, column.kind.number))
        rows[row.get("language", ALL) in (ALL, MEAN)].append(tuple(cells))
    return Grid(headings, tuple(rows[True]), tuple(rows[False]))


def published_grid(paper: pd.DataFrame) -> Grid:
    """The paper's numbers next to ours, each in the format of its quantity."""
    rows = []
    for row in rows_of(paper):
        quantity = TABLES[row["table"]].column(row["quantity"])
        words = [str(row["checkpoint"]), str(row["language"]), str(row["cell"]), quantity.heading]
        interval = Column("ours", quantity.kind, interval=True).interval_of(row)
        rows.append(
            (
                *(Cell(word, number=False) for word in words),
                Cell(quantity.kind.shown(row["paper"])),
                Cell(quantity.kind.shown(row["ours"]), interval),
                Cell(COUNT.shown(row["n"])),
                Cell(TEXT.shown(row["source"]), number=False),
            )
        )
    headings = ("checkpoint", "language", "which", "quantity", "paper", "ours", "n", "source")
    keep = [at for at in range(len(headings)) if any(row[at].text for row in rows)]
    return Grid(tuple(headings[at] for at in keep), tuple(tuple(row[at] for at in keep) for row in rows))


@cache
def _asset(name: str) -> str:
    return files("evaluator.report").joinpath(name).read_text(encoding="utf-8")


DEFINITIONS: Mapping[str, str] = {
    "open / choice": "the model writes the answer, decoded greedily / it ranks given options by their log-likelihood",
    "produced": "the greedy output to the open prompt contains a gold answer, ignoring case and punctuation",
    "recognised": "the gold option has strictly the highest log-likelihood of the options after the open prompt",
    "known": "the dense model both produced and recognised the answer; only known answers have a fate",
    "kept": "a known answer that the pruned model still produces and still recognises",
    "mc_only": "a known answer that the pruned model still recognises but no longer produces. Multiple choice alone "
    "would not notice. Its share of the known answers is the dissociation rate",
    "produced_only": "a known answer that the pruned model still produces but no longer recognises",
    "lost": "a known answer that the pruned model neither produces nor recognises. Lost does not mean erased from the "
    "weights: beams, samples, another prompt or the answer's rank may still find it",
    "recoverability": "a gold answer appears in any beam (or in any sample); recovered: in items that greedy misses",
    "rank": "rank of the gold answer's first token in the next-token distribution after the open prompt; 1 is the top",
    "aligned rank": "if the base's greedy answer contains a gold answer: the rank of its first token, as the base "
    "wrote it, after the open prompt and the lead-in (the base's words before it); 1 on the base itself, up to ties "
    "and rounding",
    "margin": "log-probability of the gold answer's first token minus that of the top token, in nats",
    "drop": "dense minus pruned accuracy in percentage points (pp), on the items measured in both",
    "normalised drop": "drop / (dense accuracy - floor); the floor is 0 for generated answers and 1/K for K options",
    "Delta_PR": "normalised drop of open minus normalised drop of choice",
    "recovery": "the checkpoint's accuracy in percent of its base's, on the items measured in both",
    "flips": "items that went from right to wrong, or from wrong to right",
    "kappa": "agreement beyond chance, which is 0: of right and wrong (error consistency; 1 is complete agreement), "
    "or of the probabilities of a choice's options (CAPA)",
    "Borda / Copeland / minimax": "languages and tasks as voters: checkpoints below it, summed over the voters / "
    "checkpoints that it beats by majority, minus those that beat it / ranked by the voters of its worst defeat",
    "PASS / WARN / BLOCK": "every loss is surely within its tolerance / undecided / a loss is surely beyond it; the "
    "tolerances are those of `resurface gate`",
    "ANOMALOUS": "the base does no better than guessing, or the checkpoint gained more than compression explains",
    "fertility": "tokens per word of the answer options; per character in scripts without spaces between words",
    "perplexity": "exp of the mean negative log-likelihood per predicted token of a text",
    "hard distractors": "the three answers of a language that share most character trigrams with the gold answer",
    "re-run / noise floor": "a checkpoint whose weights equal its base's / its mc_only share, which is "
    "measurement noise",
    "matcher / panel": "a model that judges whether a response means a gold answer / several, by majority (tie: no)",
    "sensitivity / specificity": "share of the matching control pairs that a matcher accepts / of the others that it "
    "denies; unfit: the whole interval of one is below 80 %",
    "corrected": "the accuracy from a matcher's verdicts and its errors on control pairs (Rogan and Gladen); its "
    "interval resamples items and draws the error rates from their Jeffreys posteriors",
    "Scott's pi": "agreement of two graders beyond that of random verdicts with the same share of yes",
    "unpaired": "items that only one of the two compared checkpoints answered",
    "excluded": "an item that could not be posed (no gold answer, no distractor, no example left, a prompt that is "
    "too long); counted, never graded",
    "engine error": "the engine failed on this item; counted, never graded",
    "intervals": "Wilson 95 % for rates; for differences and medians a bootstrap of 2,000 draws over contexts, drawn "
    "jointly for all checkpoints and, where contexts are translations, for all languages; p values are exact McNemar; "
    "holm_p corrects them over the checkpoints that have other weights than their base",
    "all / mean": "languages pooled over items / the unweighted mean over languages",
}
