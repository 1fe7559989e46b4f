"""What `--dry-run` prints: the cost of a sweep, or of one checkpoint. And `--explain`: a
recipe's question, what it fills of the paper, its cost in answers, and what it cannot
measure. Neither starts anything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from evaluator.core.errors import InputError, Json, counted, lasting
from evaluator.probes import PROBES
from launch.commands.terminal import console, empty_table, print_json, print_plain
from launch.documents import Cost, Estimate, Explanation, JobCost
from launch.sweep.config import SweepConfig, bundled_recipes
from launch.sweep.machines import Machine, machine_of
from pruning.config import PruneConfig
from quantising.config import QuantiseConfig

if TYPE_CHECKING:
    from evaluator.probes.config import EvalConfig
    from launch.sweep.estimate import Estimates, Work


def print_estimate(
    config: SweepConfig,
    machine: Machine,
    notes: Iterable[str] = (),
    *,
    as_json: bool = False,
) -> None:
    """Print a sweep's cost on a machine, `notes` and the assumptions. Raises InputError
    as `estimate` does."""
    from launch.sweep.estimate import assumptions, estimate, shared_by, total_of

    estimates = estimate(config, machine)
    total = total_of(estimates)
    compressing = sum(row.compress_hours or 0.0 for row in estimates)
    evaluating = sum(row.evaluation_hours or 0.0 for row in estimates)
    numbers = ("items", "requests", "prompt tok", "gen. tok", "compress", "eval")
    costs = empty_table(("checkpoint", *numbers), {"checkpoint"})
    for row in estimates:
        cells = _cells(row.work, row.compress_hours, row.evaluation_hours)
        if not row.job.is_made:
            cells[4] = ""
        costs.add_row(escape(row.checkpoint), *cells)
    costs.add_section()
    longest = max(
        (row.compress_hours or 0.0) + (row.evaluation_hours or 0.0) for row in estimates
    )
    time = spelled_hours(compressing + evaluating, machine, longest)
    costs.add_row("total", *_cells(total, compressing, evaluating))
    console.print(costs)
    texts = (
        *_questions(estimates),
        *_counts(estimates, total, time),
        *_unknown_sizes(estimates),
        *_controls(estimates),
        *_disk_space(estimates),
        *notes,
        *assumptions(machine, shared_by(config, machine)),
    )
    for text in texts:
        print_plain(text)
    if as_json:
        costs_of = [Cost.model_validate(row, from_attributes=True) for row in estimates]
        print_json(Estimate(machine=machine.name, checkpoints=costs_of, notes=texts))


def spelled_hours(hours: float, machine: Machine, longest: float = 0.0) -> str:
    """The time of so much work on a machine. One GPU does the `longest` part alone."""
    lasts = max(hours / max(1, machine.gpus), longest)
    text = f"about {lasting(3600 * lasts)} on {machine.name}"
    return f"{text} ({lasting(3600 * hours)} of GPUs)" if machine.gpus else text


def print_job(
    model: str, config: PruneConfig | QuantiseConfig, *, as_json: bool = False
) -> None:
    """Print what one compressed checkpoint costs on this machine."""
    from launch.sweep.estimate import compress_hours, parameters_of, speeds
    from launch.sweep.preflight_checks import bytes_of

    machine, size = machine_of(None), parameters_of(model)
    time = "no time or disk is estimated, as the model's size is unknown here"
    hours = disk = None
    if size is not None:
        hours = compress_hours(size, config, machine)
        disk = bytes_of(config, int(2 * size))
        time = spelled_hours(hours, machine)
        time += f", {disk / 2**30:.2f} GiB of disk"
    print_plain(time)
    print_plain(speeds(machine))
    if as_json:
        print_json(JobCost(machine=machine.name, hours=hours, disk_bytes=disk))


def _questions(estimates: Estimates) -> Iterator[str]:
    """What is asked, and of which checkpoints."""
    asked: dict[str, list[str]] = {}  # by task and settings: the checkpoints
    for row in estimates:
        for name, task in row.job.tasks.items():
            asked.setdefault(f"{name}: {_described(task)}", []).append(row.checkpoint)
    for what, names in asked.items():
        yield f"{what}; {counted(len(names), 'checkpoint')}: {', '.join(names)}"


def _described(task: EvalConfig) -> str:
    words = ", ".join(PROBES[probe].describe(task) for probe in task.probes)
    if task.draws_options:
        words += f" (options: {task.options})"
    if task.chat:
        words += " (chat template)"
    if task.thinks:
        words += f" (thinking: {task.expected_thought} tokens assumed of a thought)"
    return words


def _counts(estimates: Estimates, total: Work, time: str) -> Iterator[str]:
    jobs = sum(len(row.job.tasks) for row in estimates)
    yield (
        f"{counted(len(estimates), 'checkpoint')}, {counted(jobs, 'job')} (checkpoint x"
        f" task), {total.requests:,} requests, {total.prompt_tokens:,} prompt and"
        f" {total.generated_tokens:,} generated tokens, {time}"
    )
    caches = dict.fromkeys(row.job.kv_cache for row in estimates)
    if len(caches) > 1:
        starts = len({row.job.kv_cache for row in estimates if row.job.tasks})
        yield (
            f"at least {starts} engine starts: no engine can change its cache"
            f" ({', '.join(caches)})"
        )


def _unknown_sizes(estimates: Estimates) -> Iterator[str]:
    models = dict.fromkeys(
        row.job.model for row in estimates if row.evaluation_hours is None
    )
    if models:
        names = ", ".join(models)
        yield f"not in the times, because their size is unknown here: {names}"


def _controls(estimates: Estimates) -> Iterator[str]:
    for row in estimates:
        if row.job.change:
            yield (
                f"{row.checkpoint}: {row.job.base} again, as a control ({row.job.change}): what"
                " differs is noise; --control none leaves it out"
            )


def _cells(work: Work, *hours: float | None) -> list[str]:
    """Items, requests, tokens of prompts, generated tokens, and hours, as the table
    shows them."""
    cells = [f"{work.items:,}", f"{work.requests:,}"]
    for count in (work.prompt_tokens, work.generated_tokens):
        large = count >= 1e6
        cells.append(f"{count / 1e6:.1f}M" if large else f"{count / 1e3:.1f}k")
    shown = ("?" if some is None else lasting(3600 * some) for some in hours)
    return [*cells, *shown]


def _disk_space(estimates: Estimates) -> Iterator[str]:
    """The disk space of compressed checkpoints, and of the bases' distributions."""
    made, kept = {}, {}
    for row in estimates:
        if row.job.is_made:
            made[row.checkpoint] = row.disk_bytes
        if row.reference_bytes != 0:
            kept[row.checkpoint] = row.reference_bytes
    for what, sizes in {
        "compressed checkpoints in RUN/checkpoints, weights in bfloat16": made,
        "distributions of bases in RUN/references until the run is finished": kept,
    }.items():
        unknown = ", ".join(name for name, size in sizes.items() if size is None)
        more = f", and those of {unknown} (size unknown here)" if unknown else ""
        if sizes:
            known = sum(filter(None, sizes.values())) / 2**30
            yield f"{what}: about {known:.2f} GiB{more}"


def explanation(file: Path, config: SweepConfig) -> Explanation:
    """Raises InputError for a file that is no bundled recipe."""
    from evaluator.metrics.published import paper
    from launch.sweep.estimate import estimate, total_of

    recipes: Json = paper()["recipes"]
    names = {path: name for name, path in bundled_recipes().items()}
    name = names.get(file, "")
    full = name.removeprefix("small/")
    if full not in recipes:
        raise InputError(
            f"--explain: {file} is no bundled recipe ({', '.join(recipes)}); --dry-run"
            " estimates any sweep"
        )
    about = recipes[full]
    estimates = estimate(config, machine_of(None))
    total = total_of(estimates)
    return Explanation(
        recipe=name,
        question=about["question"],
        fills=f"{about['fills']} ({paper()['paper']})",
        stand_in=full != name,
        checkpoints=len(estimates),
        made=sum(row.job.is_made for row in estimates),
        items=total.items,
        requests=total.requests,
        excludes=about.get("excludes") if full == name else None,
    )


def lines_of(about: Explanation) -> Iterator[str]:
    yield f"question: {about.question}"
    yield f"fills: {about.fills}"
    if about.stand_in:
        yield "The bundled model and items stand in for the paper's: no number compares."
    yield f"checkpoints: {about.checkpoints}, {about.made} of them made by the sweep"
    yield (
        f"cost: {about.items:,} items over all checkpoints, {about.requests:,} requests;"
        " --dry-run estimates the time"
    )
    if about.excludes:
        yield f"excludes: {about.excludes}"
