"""An examination as a table on a terminal, as a Markdown file, and as JSON."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from rich.table import Table

from launch.doctor.checks import Finding
from launch.doctor.examination import Examination

_COLOURS = {"pass": "green", "fail": "red", "skipped": "dim"}


def verdict(examination: Examination) -> str:
    """The examination in one sentence."""
    counts = {status: sum(each.status == status for each in examination.findings) for status in _COLOURS}
    skipped = f", {counts['skipped']} skipped" if counts["skipped"] else ""
    if not examination.ended:
        skipped += "; it goes on, or was cut off"
    if counts["fail"]:
        return f"{counts['fail']} of {counts['pass'] + counts['fail']} checks failed{skipped}"
    return f"all {counts['pass']} checks passed{skipped}"


def table(examination: Examination) -> Table:
    """The findings, a row each."""
    made = Table(title="doctor: does every fast path agree with its slow one here?", title_justify="left")
    for column in ("check", "", "largest / mean distance\nallowed", "\nmeasured"):
        made.add_column(column, overflow="fold")
    for each in examination.findings:
        made.add_row(
            f"{each.check.name}: [dim]{each.check.fast} / {each.check.slow}[/dim]",
            f"[{_COLOURS[each.status]}]{each.status}[/]",
            str(each.tolerance),
            each.measured.replace("[", r"\["),
        )
    return made


def markdown(examination: Examination, now: datetime | None = None) -> str:
    """The result card."""
    when = (now or datetime.now(UTC)).strftime("%Y-%m-%d %H:%M UTC")
    lines = [f"# doctor: {verdict(examination)}", "", f"`resurface doctor`, {when}.", "", "| machine | |", "|---|---|"]
    lines += [f"| {name} | {_cell(value)} |" for name, value in _described(examination)]
    lines += ["", "| check | | fast path | slow path | allowed | measured |", "|---|---|---|---|---|---|"]
    for each in examination.findings:
        cells = (each.check.name, each.status, each.check.fast, each.check.slow, str(each.tolerance), each.measured)
        lines.append("| " + " | ".join(map(_cell, cells)) + " |")
    lines += ["", "Allowed and measured: the largest distance and the mean, in the unit of the last column."]
    return "\n".join(lines) + "\n"


def document(examination: Examination) -> dict[str, Any]:
    """The examination for machines."""
    return {
        "passed": not examination.failed,
        "verdict": verdict(examination),
        "machine": dict(_described(examination)),
        "checks": [_row(each) for each in examination.findings],
        "seconds": {name: round(seconds, 2) for name, seconds in examination.seconds.items()},
    }


def _row(finding: Finding) -> dict[str, Any]:
    check = finding.check
    row: dict[str, Any] = {"check": check.name, "status": finding.status, "fast": check.fast, "slow": check.slow}
    row |= {"tolerance": {"largest": finding.tolerance.largest, "mean": finding.tolerance.mean}, "unit": check.unit}
    if finding.largest is None:
        return row | {"why": finding.why}
    return row | {"largest": finding.largest, "mean": finding.mean, "compared": finding.compared}


def _described(examination: Examination) -> list[tuple[str, str]]:
    """The machine and the engine in words."""
    lines = examination.machine.lines()
    if examination.dtype:
        facts = [examination.dtype, *(f"{name} {value}" for name, value in examination.facts.items())]
        lines.append(("engine", ", ".join(facts)))
    if examination.seconds:
        each = ", ".join(f"{name} {seconds:.0f}" for name, seconds in examination.seconds.items())
        lines.append(("seconds", f"{sum(examination.seconds.values()):.0f} ({each})"))
    return lines


def _cell(text: str) -> str:
    return text.replace("|", r"\|").replace("\n", " ")
