"""Table `price`: what a checkpoint costs, beside how many answers it keeps.

One row per checkpoint, task and machine: a time or a memory of one machine says nothing
about another's. All calls of a run are added up, and all of its engines of one
device. A cell is empty where the run did not measure it; `reason` names it.

    bytes               of the files that hold the weights
    bits_a_weight       8 x bytes of the tensors / parameters, so scales and zero
                        points count
    parameters          weights, zeros included, as if unpacked
    peak_memory         bytes, the highest of any engine's process since it began,
                        earlier checkpoints included: a GPU's reserved memory, or
                        resident memory on a CPU
    tokens_per_second   (computed prompt tokens + generated tokens) / seconds of all
                        tasks; the prefix cache's are not computed
    seconds_per_item    seconds / items whose records were stored, each once
    seconds             that engines worked at it, without their starts and loads
    engine_hours        the same
    gpu_hours           times the GPUs of an engine; engines that share a GPU divide
                        its hours
    cost                gpu_hours x `resources.price_per_gpu_hour`

The seconds of `tokens_per_second` are an engine's own: busy, or waiting with requests at hand
(`EngineStats`). With two engines the run is faster. The figure, one for each task,
base and machine, has the share of `kept` (`evaluator.metrics.fates`) of the answers
that the base knew; the base keeps all of its own."""

from collections.abc import Iterator, Sequence
from functools import partial

import pandas as pd

from evaluator.metrics.columns import (
    AMOUNT,
    COUNT,
    FLAG,
    PERCENTAGE,
    TEXT,
    Column,
    Kind,
    Row,
    rounded,
    worded,
)
from evaluator.metrics.fates import known_share
from evaluator.metrics.inputs import Inputs, Subject
from evaluator.metrics.items import joined_reasons
from evaluator.metrics.table import Lack, Scatter, Table
from evaluator.store.run_json import Served, Size, gpu_hours, price_of_hour, rows_as

_MB = 1e6
BYTES = Kind(
    "bytes",
    lambda value: rounded(value / _MB, 1),
    unit="MB",
    dtype="Int64",
    stored="bytes",
)
_MEASURED = (
    *("bytes", "bits_a_weight", "parameters"),
    *("peak_memory", "tokens_per_second", "seconds_per_item", "seconds"),
)
COST = Kind("cost", partial(rounded, digits=2))
SECONDS = Kind("seconds", partial(rounded, digits=3), unit="s", stored="s")


def _rows(inputs: Inputs) -> Iterator[Row]:
    sizes = {each.name: each for each in rows_as(inputs.run, "checkpoints", Size)}
    machines: dict[str, dict[str, list[Served]]] = {}  # by checkpoint
    every = rows_as(inputs.run, "engine_stats", Served)
    for served in every:
        own = machines.setdefault(served.checkpoint, {})
        own.setdefault(served.device, []).append(served)
    price = price_of_hour(inputs.run)
    for subject in (*inputs.checkpoints, *inputs.readers):
        size, asked = sizes.get(subject.checkpoint), len(inputs.asked(subject.task))
        row: Row = {"task": subject.task, "checkpoint": subject.checkpoint}
        row |= {"items": asked} | _kept(inputs, subject) | _size(size)
        for machine, whole in machines.get(subject.checkpoint, {}).items():
            calls = [each for each in whole if each.task == subject.task]
            if calls:
                row |= _speed(whole) | {"machine": machine or None}
                row |= _spent(calls, asked, gpu_hours(calls, every), price)
                yield _told(row)
        if size is not None and "machine" not in row:
            yield _told(row)


def _kept(inputs: Inputs, subject: Subject) -> Row:
    kept = known_share(inputs.of(subject), "kept") if subject.base else 1.0
    return {
        "of_base": subject.base or subject.checkpoint,
        "is_base": subject.base is None,
        "kept": kept,
    }


def _size(size: Size | None) -> Row:
    if size is None:
        return {}
    return {
        "bytes": size.bytes if size.disk_bytes is None else size.disk_bytes,
        "bits_a_weight": 8 * size.bytes / size.parameters if size.parameters else None,
        "parameters": size.parameters,
    }


def _speed(calls: Sequence[Served]) -> Row:
    """Of all tasks of one checkpoint on one machine, which share its steps, over the
    calls that measured it."""
    seconds = tokens = 0.0
    peaks = []
    for call in calls:
        if call.peak_memory is not None:
            peaks.append(call.peak_memory)
        if call.busy_seconds is None or call.waiting_seconds is None:
            continue
        seconds += call.busy_seconds + call.waiting_seconds
        tokens += call.prompt_tokens + call.generated_tokens
    return {
        "peak_memory": max(peaks, default=None),
        "tokens_per_second": tokens / seconds if seconds > 0 else None,
    }


def _spent(
    calls: Sequence[Served], asked: int, hours: float, price: float | None
) -> Row:
    """What a checkpoint took for one task on one machine; `price`: of a GPU's hour. An
    item of the `asked` may be of two calls, as after another seed."""
    seconds = sum(call.spent for call in calls)
    items = min(asked, sum(call.items or 0 for call in calls))
    return {
        "seconds_per_item": seconds / items if items and seconds else None,
        "seconds": seconds or None,
        "engine_hours": seconds / 3600 or None,
        "gpu_hours": hours or None,
        "cost": None if price is None or not hours else hours * price,
    }


def _told(row: Row) -> Row:
    """A row with the reason for its empty cells."""
    gone = [name for name in _MEASURED if row.get(name) is None]
    told = f"not measured: {', '.join(map(worded, gone))}" if gone else None
    why = "no resources.price_per_gpu_hour" if row.get("cost") is None else None
    if not row.get("gpu_hours"):
        why = "no GPU is known to have worked at it"
    return row | {"reason": joined_reasons(told, why)}


def _plotted(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of one task, base and machine; none without a checkpoint to hold
    against the base."""
    drawn = frame[frame["kept"].notna() & frame["bytes"].notna()]
    if drawn["is_base"].all():
        drawn = drawn.iloc[:0]
    return drawn.assign(megabytes=drawn["bytes"].astype("float64") / _MB)


def _panel(title: str, x: str, x_title: str) -> Scatter:
    return Scatter(
        title,
        x,
        "kept",
        "kept",
        "checkpoint",
        "is_base",
        x_title,
        "kept, of the base's known answers",
    )


TABLE = Table(
    name="price",
    title="What does it cost?",
    reading=(
        "Size, memory and speed of each checkpoint in this run, and the known answers"
        " that it keeps. There is one row per task, checkpoint and machine, and a figure per"
        " machine and base: figures of different machines are never mixed. Bits a"
        " weight include scales. Memory is the peak of an engine's process. Tokens are"
        " those generated and the prompt's computed ones, not those from a cache, in a"
        " second of one engine, busy or waiting with requests at hand, of all tasks."
        " Hours are those"
        " of all engines, without starts and loads; engines on one GPU divide its hours."
        " Tasks of a checkpoint overlap: a shard counts since the one before, of any"
        " task. Controls have no row, and `resurface status` counts theirs too. A killed"
        " call's last 15 seconds are missing."
    ),
    needs="run.json",
    columns=(
        *TEXT("task", "checkpoint"),
        Column("of_base", TEXT, figure_only=True),
        Column("is_base", FLAG, figure_only=True),
        Column("kept", PERCENTAGE, figure_only=True),
        Column("bytes", BYTES, "on disk"),
        Column("bits_a_weight", AMOUNT, stored="bits per weight"),
        *COUNT("parameters"),
        *BYTES("peak_memory"),
        Column("tokens_per_second", AMOUNT, stored="tokens per second"),
        *SECONDS("seconds_per_item"),
        *SECONDS("seconds"),
        Column("engine_hours", AMOUNT, stored="h"),
        Column("gpu_hours", AMOUNT, "GPU-hours", stored="h"),
        *COST("cost"),
        *TEXT("machine"),
        Column("items", COUNT, figure_only=True),
    ),
    compute=_rows,
    figure=(
        _panel(
            "{of_base}, {task}: kept against size",
            "megabytes",
            "MB on disk (hollow: the base)",
        ),
        _panel(
            "{machine}: kept against speed", "tokens_per_second", "tokens per second"
        ),
    ),
    plotted=_plotted,
    apart=("task", "of_base", "machine"),
    lacks=(
        Lack("tokens_per_second", "the engine's time, which vLLM's engine measures"),
    ),
    counts="items",
)
