"""The table of `resurface sweep RECIPE --dry-run`."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from evaluator.probes import PROBES
from evaluator.probes.config import EvalConfig
from launch.sweep.config import SweepConfig
from launch.sweep.estimate import JobEstimate, Work, assumptions, estimate
from launch.sweep.jobs import check_screening, most_saved, screened_groups


def print_estimate(console: Console, config: SweepConfig) -> None:
    """Print a sweep's cost and the assumptions. Raises InputError as `estimate` does."""
    estimates = estimate(config)
    total = sum((each.work for each in estimates), Work())
    pruning = sum(each.compress_hours or 0.0 for each in estimates if each.hours is not None)
    evaluation = sum(each.evaluation_hours or 0.0 for each in estimates if each.hours is not None)
    table = Table(box=SIMPLE_HEAD, padding=(0, 0), pad_edge=False)
    table.add_column("checkpoint", overflow="fold")
    for name in ("items", "requests", "prompt tok", "gen. tok", "compress h", "eval h"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in estimates:
        table.add_row(
            escape(each.job.name),
            *_counts(each.work),
            _hours(each.compress_hours) if each.job.is_made else "",
            _hours(each.evaluation_hours),
        )
    table.add_section()
    table.add_row("total", *_counts(total), _hours(pruning), _hours(evaluation))
    console.print(table)
    jobs = sum(len(each.job.tasks) for each in estimates)
    lines = [
        *_asked(estimates),
        f"{len(estimates)} checkpoints, {jobs} jobs (checkpoint x task), {total.requests:,} requests, "
        f"{total.prompt_tokens:,} prompt and {total.generated_tokens:,} generated tokens, "
        f"about {pruning + evaluation:.1f} GPU hours",
    ]
    unsized = sorted({each.job.model for each in estimates if each.hours is None})
    if unsized:
        lines.append(f"not in the hours, because their size is unknown here: {', '.join(unsized)}")
    lines += [*_screened(config, estimates), *_disk(estimates), *_references(estimates)]
    for line in (*lines, *assumptions()):
        console.print(escape(line), highlight=False, soft_wrap=True)


def _screened(config: SweepConfig, estimates: list[JobEstimate]) -> list[str]:
    """The fewest and the most items of a screened sweep; empty without `screen:`.

    Raises InputError if nothing can stop early.
    """
    if config.screen is None:
        return []
    jobs = [each.job for each in estimates]
    check_screening(jobs, config.screen)
    items = {name: count for each in estimates for name, count in each.items.items()}
    most = sum(each.work.items for each in estimates)
    fewest = most - most_saved(screened_groups(jobs), items, config.screen)
    return [
        f"screening: the sweep evaluates from {fewest:,} to {most:,} items; the table and the hours show the most. "
        f"The gate's first look has {config.screen.items:,} items"
    ]


def _disk(estimates: list[JobEstimate]) -> list[str]:
    """The disk space of the checkpoints that the run makes; empty if it makes none."""
    sizes = [each.disk for each in estimates if each.job.is_made]
    if not sizes:
        return []
    unknown = sum(size is None for size in sizes)
    more = f", and {unknown} of unknown size" if unknown else ""
    known = sum(size for size in sizes if size is not None)
    return [f"compressed checkpoints in RUN/checkpoints, weights in bfloat16: about {known / 2**30:.2f} GiB{more}"]


def _references(estimates: list[JobEstimate]) -> list[str]:
    """The disk space of the bases' distributions; empty if no probe compares any."""
    kept = {each.job.name: each.references for each in estimates if each.references != 0}
    unknown = sorted(name for name, size in kept.items() if size is None)
    known = sum(size for size in kept.values() if size is not None)
    if not kept:
        return []
    more = f", and those of {', '.join(unknown)} (vocabulary unknown here)" if unknown else ""
    return [f"distributions of bases in RUN/references until the run is finished: about {known / 2**30:.2f} GiB{more}"]


def _asked(estimates: list[JobEstimate]) -> list[str]:
    """A line per task and settings, with its checkpoints."""
    asked: dict[str, list[str]] = {}
    for each in estimates:
        for name, task in each.job.tasks.items():
            asked.setdefault(f"{name}: {_in_words(task)}", []).append(each.job.name)
    return [f"{what}; {len(names)} checkpoints: {', '.join(names)}" for what, names in asked.items()]


def _in_words(task: EvalConfig) -> str:
    """A task's probes, formats and seeds in words."""
    chat = " (chat template)" if task.chat else ""
    drawn = f" (options: {task.options})" if task.wanted.draws else ""
    return ", ".join(PROBES[probe].describe(task) for probe in task.probes) + drawn + chat


def _counts(work: Work) -> tuple[str, ...]:
    return (f"{work.items:,}", f"{work.requests:,}", _short(work.prompt_tokens), _short(work.generated_tokens))


def _short(count: int) -> str:
    return f"{count / 1e6:.1f}M" if count >= 1e6 else f"{count / 1e3:.1f}k"


def _hours(hours: float | None) -> str:
    return "?" if hours is None else f"{hours:.2f}"
