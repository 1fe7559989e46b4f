"""`resurface sweep --dry-run`: what a sweep would cost. Starts nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from evaluator.probes import PROBES
from launch.commands.terminal import empty_table, print_plain
from launch.provenance import count_gpus
from launch.sweep.config import SweepConfig
from launch.sweep.jobs import check_screening, screened_groups

if TYPE_CHECKING:
    from evaluator.probes.config import EvalConfig
    from launch.sweep.estimate import JobEstimate, Work


def print_estimate(console: Console, config: SweepConfig) -> None:
    """Print a sweep's cost and the assumptions. Raises InputError as `estimate`
    does."""
    from launch.sweep.estimate import Work, assumptions, estimate, shared_by

    estimates = estimate(config)
    total = reduce(Work.plus, (row.work for row in estimates), Work())
    compressing = sum(row.compress_hours or 0.0 for row in estimates if row.sized)
    evaluating = sum(row.evaluation_hours or 0.0 for row in estimates)
    gpu = count_gpus() != 0 or bool(os.environ.get("RAY_ADDRESS"))
    numbers = ["items", "requests", "prompt tok", "gen. tok"]
    if gpu:
        numbers += ["compress h", "eval h"]
    costs = empty_table(("checkpoint", *numbers), {"checkpoint"})
    for row in estimates:
        cells = _cells(row.work, row.compress_hours, row.evaluation_hours)
        if not row.job.is_made:
            cells[4] = ""
        costs.add_row(escape(row.job.name), *cells[: len(numbers)])
    costs.add_section()
    cells = _cells(total, compressing, evaluating)
    costs.add_row("total", *cells[: len(numbers)])
    console.print(costs)
    hours = f", about {compressing + evaluating:.1f} GPU hours" if gpu else ""
    for text in (
        *_questions(estimates),
        *_counts(estimates, total, hours),
        *_unknown_sizes(estimates, gpu=gpu),
        *_screened(config, estimates),
        *_disk_space(estimates),
        *assumptions(shared_by(config), gpu=gpu),
    ):
        print_plain(text, console)


def _questions(estimates: Sequence[JobEstimate]) -> Iterator[str]:
    """What is asked, and of which checkpoints."""
    asked: dict[str, list[str]] = {}  # by task and settings: the checkpoints
    for row in estimates:
        for name, task in row.job.tasks.items():
            asked.setdefault(f"{name}: {_described(task)}", []).append(row.job.name)
    for what, names in asked.items():
        yield f"{what}; {len(names)} checkpoints: {', '.join(names)}"


def _described(task: EvalConfig) -> str:
    words = ", ".join(PROBES[probe].describe(task) for probe in task.probes)
    if task.draws_options:
        words += f" (options: {task.options})"
    if task.chat:
        words += " (chat template)"
    if task.thinks:
        words += f" (thinking: {task.expected_thought} tokens assumed of a thought)"
    return words


def _counts(estimates: Sequence[JobEstimate], total: Work, hours: str) -> Iterator[str]:
    jobs = sum(len(row.job.tasks) for row in estimates)
    yield (
        f"{len(estimates)} checkpoints, {jobs} jobs (checkpoint x task),"
        f" {total.requests:,} requests, {total.prompt_tokens:,} prompt and"
        f" {total.generated_tokens:,} generated tokens{hours}"
    )
    caches = dict.fromkeys(row.job.kv_cache for row in estimates)
    if len(caches) > 1:
        starts = len({row.job.kv_cache for row in estimates if row.job.tasks})
        yield (
            f"at least {starts} engine starts: no engine can change its cache"
            f" ({', '.join(caches)})"
        )


def _unknown_sizes(estimates: Sequence[JobEstimate], *, gpu: bool) -> Iterator[str]:
    models = sorted({row.job.model for row in estimates if not row.sized})
    if models and gpu:
        names = ", ".join(models)
        yield f"not in the hours, because their size is unknown here: {names}"


def _cells(work: Work, *hours: float | None) -> list[str]:
    """Items, requests, tokens of prompts, generated tokens, and hours, as the table
    shows them."""
    cells = [f"{work.items:,}", f"{work.requests:,}"]
    for count in (work.prompt_tokens, work.generated_tokens):
        large = count >= 1e6
        cells.append(f"{count / 1e6:.1f}M" if large else f"{count / 1e3:.1f}k")
    shown = ("?" if some is None else f"{some:.2f}" for some in hours)
    return [*cells, *shown]


def _screened(config: SweepConfig, estimates: Sequence[JobEstimate]) -> Iterator[str]:
    """The fewest and the most items of a screened sweep. Raises InputError if
    nothing can stop early."""
    if config.screen is None:
        return
    jobs = [row.job for row in estimates]
    check_screening(jobs, config.screen)
    items = {name: count for row in estimates for name, count in row.items.items()}
    most = fewest = sum(row.work.items for row in estimates)
    for (_, task), names in screened_groups(jobs).items():
        fewest -= len(names) * max(0, items[task] - config.screen.items)
    yield (
        f"screening: the sweep evaluates from {fewest:,} to {most:,} items; the table"
        " and the hours show the most. The gate's first look has"
        f" {config.screen.items:,} items"
    )


def _disk_space(estimates: Sequence[JobEstimate]) -> Iterator[str]:
    """The disk space of compressed checkpoints, and of the bases' distributions."""
    sizes = [row.disk for row in estimates if row.job.is_made]
    if sizes:
        unknown = sum(size is None for size in sizes)
        more = f", and {unknown} of unknown size" if unknown else ""
        known = sum(filter(None, sizes)) / 2**30
        yield (
            "compressed checkpoints in RUN/checkpoints, weights in bfloat16: about"
            f" {known:.2f} GiB{more}"
        )
    kept = {row.job.name: row.references for row in estimates if row.references != 0}
    if kept:
        unsized = sorted(name for name, size in kept.items() if size is None)
        names = ", ".join(unsized)
        more = f", and those of {names} (vocabulary unknown here)" if unsized else ""
        known = sum(filter(None, kept.values())) / 2**30
        yield (
            "distributions of bases in RUN/references until the run is finished: about"
            f" {known:.2f} GiB{more}"
        )
