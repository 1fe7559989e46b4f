"""A run as Markdown for a model's page: the gate's verdict, the headline, a figure, and
the sweep file that repeats the run."""

import re
from pathlib import Path

import yaml

from evaluator.core.errors import Document, mapping_at
from evaluator.core.files import write_atomically
from evaluator.metrics.columns import rows_of
from evaluator.metrics.headline import COLUMNS
from evaluator.report.figures import draw_each
from evaluator.report.gate_formats import Judged, code, grid, section
from evaluator.report.notebook import OpenRun
from evaluator.report.page import standalone
from evaluator.report.results import Results, compute


def write_card(run_dir: Path, out: Path) -> list[Path]:
    """Write a card, and its figure beside it as SVG; returns the files. Raises
    InputError for a run without records."""
    run = OpenRun(run_dir)
    policy, stated = run.policy(), run.inputs.run
    results = compute(run.inputs, policy)
    parts = [f"# {code(run_dir.resolve().name)}"]
    if results.verdicts:
        judged = Judged(run, policy, *run.judged(policy))
        parts += [f"## Gate: {judged.document['verdict']}", section(judged)]
    parts += _numbers(results)
    accuracy = results.tables["accuracy"]
    figures = [] if accuracy.note else draw_each(accuracy.table, accuracy.shown)
    files = [out]
    if figures:
        files.append(out.with_name(f"{out.stem}-figure.svg"))
        write_atomically(files[1], standalone(figures[0]).encode())
        parts.append(f"![{accuracy.table.title}](<{files[1].name}>)")
    parts += _repeated(stated)
    write_atomically(out, "\n\n".join([*parts, ""]).encode())
    return files


def _numbers(results: Results) -> list[str]:
    """The headline, with the columns that have a value."""
    headline, shown = results.headline, []
    for column in COLUMNS:
        if column.short and headline[column.name].notna().any():
            shown.append(column)
    rows = []
    for row in rows_of(headline):
        numbers = [column.shown(row, narrow=True) for column in shown]
        rows.append([row["checkpoint"], row["task"], *numbers])
    headings = ["checkpoint", "task", *(column.short for column in shown)]
    legend = [f"- {column.short}: {column.meaning}" for column in shown]
    return ["## Results", grid(headings, rows), "\n".join(legend)]


def _repeated(run: Document) -> list[str]:
    config = mapping_at(run, "config")
    text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)  # whatever the text holds
    version = mapping_at(run, "provenance", "versions").get("resurface")
    return [
        f"resurface {code(version)} repeats this: `resurface sweep sweep.yaml`, with",
        f"{fence}yaml\n{text}{fence}",
    ]
