"""A run in short. As Markdown for a model's page: the gate's verdict, the headline, a
figure, how each checkpoint was made, and the sweep file that repeats the run. As one page of HTML for whoever signs a
release: verdicts, their numbers, and what they rest on."""

import re
from pathlib import Path

import yaml

from evaluator.core.errors import Document, Json, mapping_at, rows_at
from evaluator.core.files import write_atomically
from evaluator.deciding.decision import worst_first
from evaluator.deciding.policy import Policy
from evaluator.deciding.verdict_text import of_groups, summary, usable, why
from evaluator.metrics import TABLES
from evaluator.metrics.columns import names_of, rows_of
from evaluator.metrics.headline import COLUMNS, WITH_INTERVALS
from evaluator.metrics.items import ALL
from evaluator.report.figures import draw_each
from evaluator.report.gate_formats import Judged, code, grid, section
from evaluator.report.notebook import OpenRun
from evaluator.report.page import evaluated, facts, remarks, render, standalone
from evaluator.report.page import grid as grid_of
from evaluator.report.results import Results, compute
from evaluator.store.run_json import read_run

_WHO = ("task", "checkpoint", "n")
_OF_GROUP = ("language", "probe", "dense_accuracy", "accuracy", "drop")
# of the page to sign: a title, a table, which of its rows and which columns
_SIGNED: tuple[tuple[str, str, Document, tuple[str, ...]], ...] = (
    (
        "Numbers",
        "headline",
        {},
        ("open_accuracy", "choice_accuracy", "known", "mc_only", "lost"),
    ),
    (
        "Paired items",
        "flips",
        {"language": ALL, "margin": "all"},
        ("probe", "right_to_wrong", "wrong_to_right", "mcnemar_p"),
    ),
    (
        "Lengths, cut and looping answers",
        "length",
        {"language": ALL},
        ("base_tokens", "tokens", "base_at_limit", "at_limit", "base_loop", "loop"),
    ),
    (
        "Top-1 agreement",
        "fidelity",
        {"language": ALL, "along": "greedy answer", "group": "all"},
        ("kld", "same_top"),
    ),
    (
        "Noise of both sides: the same weights, asked again",
        "noise",
        {},
        (
            "control",
            "probe",
            "along",
            "flip_rate",
            "changed_rate",
            "distance_max",
            "kld",
        ),
    ),
)


def write_sign_off(run_dir: Path, results: Results) -> Path:
    """Write RUN/report/sign-off.html; return its path."""
    run, grids, absent = read_run(run_dir), [], []
    every = _SIGNED
    if groups := [*results.policy.groups]:
        judged = {"language": groups, "format": "open"}
        every += (("Groups with a tolerance", "accuracy", judged, _OF_GROUP),)
    for title, table, where, names in every:
        columns, frame = WITH_INTERVALS, results.intervals
        if table != "headline":
            columns, filled = TABLES[table].columns, results.tables[table]
            frame = filled.told(filled.frame)
        columns = tuple(each for each in columns if each.name in (*_WHO, *names))
        for column, value in where.items():
            values = value if isinstance(value, list) else [value]
            frame = frame[frame[column].isin(values)]
        if len(frame):
            grids.append((title, grid_of(frame[names_of(columns)], columns)))
        else:
            absent.append(title)
    context = {
        "name": run_dir.resolve().name,
        "verdict": summary(results.verdicts),
        "verdicts": worst_first(results.verdicts),
        "usable": usable,
        "why": why,
        "of_groups": of_groups,
        "tolerances": results.tolerances,
        "grids": grids,
        "absent": absent,
        "not_judged": results.not_judged,
        "evaluated": evaluated(run),
        "facts": facts(run),
        "remarks": remarks(run, results),
        "sources": [
            each["task"] for each in rows_at(mapping_at(run, "config"), "tasks")
        ],
        "digest": str(run.get("digest", "unknown")),
    }
    page = run_dir / "report" / "sign-off.html"
    write_atomically(page, render("sign_off.html.j2", context).encode())
    return page


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
    made = [
        f"- {code(each['name'])}: {code(each['scheme'])}" for each in evaluated(stated)
    ]
    parts += ["## Checkpoints", "\n".join(made)]
    parts += _repeated(stated, policy)
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
    legend = [f"- {code(each)}" for each in results.remarks]
    legend += [f"- {column.short}: {column.meaning}" for column in shown]
    return ["## Results", grid(headings, rows), "\n".join(legend)]


def _repeated(run: Document, policy: Policy) -> list[str]:
    known = any(row.get("calibration") for row in rows_at(run, "checkpoints"))
    config = {**_used(mapping_at(run, "config"), known), "gate": policy.repeated}
    text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)  # whatever the text holds
    version = mapping_at(run, "provenance", "versions").get("resurface")
    return [
        f"resurface {code(version)} repeats this: `resurface sweep sweep.yaml`, with",
        f"{fence}yaml\n{text}{fence}",
    ]


def _used(sweep: Document, calibrated: bool) -> Json:
    """A sweep and those that it includes, without a `calibration` that made none of
    its checkpoints. `calibrated`: whether any checkpoint of the run has one."""
    used = {**sweep}
    if included := rows_at(sweep, "include"):
        used["include"] = [_used(each, calibrated) for each in included]
    settings = [*rows_at(sweep, "prune"), *rows_at(sweep, "compress")]
    own = [each.get("calibration") for each in settings if each.get("method")]
    if not calibrated or all(own):
        used.pop("calibration", None)
    return used
