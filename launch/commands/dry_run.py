"""What `--dry-run` prints: the cost of a sweep, or of one checkpoint. And `--explain`: a
recipe's question, what it fills of the paper, its cost in answers, and what it cannot
measure. Neither starts anything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from evaluator.core.errors import Document, InputError, Json, counted, lasting
from evaluator.probes import PROBES
from launch.commands.terminal import console, empty_table, print_json, print_plain
from launch.documents import Cost, Estimate, Explanation, JobCost
from launch.sweep.config import SweepConfig, bundled_recipes
from pruning.config import PruneConfig
from quantising.config import QuantiseConfig

if TYPE_CHECKING:
    from evaluator.probes.config import EvalConfig
    from launch.sweep.estimate import Estimates, Left, Work


def print_estimate(
    config: SweepConfig,
    run: Document,
    notes: Iterable[str] = (),
    left: Left | None = None,
    *,
    as_json: bool,
) -> None:
    """Print a sweep's cost, `notes` and the assumptions; `run`: the run.json of the
    last run there, or nothing; `left`: as `estimate` takes it, whose errors it
    raises."""
    from launch.sweep.estimate import assumptions, estimate, seconds_of, total_of

    estimates = estimate(config, left)
    total = total_of(estimates)
    seconds = seconds_of(total, run)
    numbers = ("items", "requests", "prompt tok", "gen. tok")
    costs = empty_table(("checkpoint", *numbers), {"checkpoint"})
    for row in estimates:
        costs.add_row(escape(row.checkpoint), *_cells(row.work))
    costs.add_section()
    costs.add_row("total", *_cells(total))
    console.print(costs)
    texts = (
        *_questions(estimates),
        *_counts(estimates, total, seconds),
        *_controls(estimates),
        *_disk_space(estimates),
        *notes,
        assumptions(estimates),
    )
    for text in texts:
        print_plain(text)
    if as_json:
        costs_of = [Cost.model_validate(row, from_attributes=True) for row in estimates]
        print_json(Estimate(seconds=seconds, checkpoints=costs_of, notes=texts))


def print_job(
    model: str, config: PruneConfig | QuantiseConfig, *, as_json: bool = False
) -> None:
    """Print the disk space of one compressed checkpoint."""
    from launch.sweep.estimate import parameters_of
    from launch.sweep.preflight_checks import bytes_of

    size, disk = parameters_of(model), None
    text = "its disk space is unknown, as the model's size is unknown here"
    if size is not None:
        disk = bytes_of(config, int(2 * size))
        text = f"{disk / 2**30:.2f} GiB of disk"
    print_plain(f"{text}. Nothing was started and nothing fetched.")
    if as_json:
        print_json(JobCost(disk_bytes=disk))


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


def _counts(estimates: Estimates, total: Work, seconds: float | None) -> Iterator[str]:
    jobs = sum(len(row.job.tasks) for row in estimates)
    time = ""
    if seconds is not None:
        time = (
            f", about {lasting(seconds)} of one engine as fast as in the last run,"
            " without starts"
        )
    yield (
        f"{counted(len(estimates), 'checkpoint')}, {counted(jobs, 'job')} (checkpoint x"
        f" task), {total.requests:,} requests, {total.prompt_tokens:,} prompt and"
        f" {total.generated_tokens:,} generated or scored tokens{time}"
    )
    caches = dict.fromkeys(row.job.kv_cache for row in estimates)
    if len(caches) > 1:
        starts = len({row.job.kv_cache for row in estimates if row.job.tasks})
        yield (
            f"at least {starts} engine starts: no engine can change its cache"
            f" ({', '.join(caches)})"
        )


def _controls(estimates: Estimates) -> Iterator[str]:
    """A line for each kind of control."""
    controlled: dict[str, list[str]] = {}
    for row in estimates:
        if row.job.change:
            controlled.setdefault(row.job.change, []).append(str(row.job.base))
    for change, bases in controlled.items():
        yield (
            f"{', '.join(bases)} again, as a control ({change}): what differs is noise;"
            " --control none leaves it out"
        )


def _cells(work: Work) -> list[str]:
    """Items, requests, tokens of prompts and generated tokens, as the table shows
    them."""
    cells = [f"{work.items:,}", f"{work.requests:,}"]
    for count in (work.prompt_tokens, work.generated_tokens):
        large = count >= 1e6
        cells.append(f"{count / 1e6:.1f}M" if large else f"{count / 1e3:.1f}k")
    return cells


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
    estimates = estimate(config)
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
        " --dry-run counts the tokens"
    )
    if about.excludes:
        yield f"excludes: {about.excludes}"
