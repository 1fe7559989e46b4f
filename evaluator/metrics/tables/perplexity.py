"""Table `perplexity`: perplexity of each text for each checkpoint.

Perplexity is exp(summed negative log-likelihood / number of predicted tokens) over all windows of a text task. The
base's numbers are on the windows that both read. Intervals of a ratio are of the same windows' differences.

A checkpoint that read several texts (for example one for each language) also has a row `mean`. It has the unweighted
means over texts of log perplexity and (if the base read the text) log ratio, as perplexity and ratio again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from evaluator.metrics.columns import AMOUNT, COUNT, FACTOR, LANGUAGE, REASON, SUBJECT, Column, Row, columns_of
from evaluator.metrics.counting import joined_reasons, left_out_of, why_left_out
from evaluator.metrics.figure import Dots, Figure, Series, amount
from evaluator.metrics.inputs import ALL, ITEM, MEAN, Inputs, Subject
from evaluator.metrics.measures import Unbounded, as_floats, bounds
from evaluator.metrics.table import Lack, Table

_COUNTS = ("n", "excluded", "engine_error", "tokens")
PERPLEXITY = AMOUNT  # exp of nats per token


@dataclass(frozen=True, eq=False)
class _Reading:
    """One checkpoint's row on one text, its log perplexity and the log ratio to the base, if known."""

    row: Row
    logs: Unbounded | None = None
    ratios: Unbounded | None = None


def _rows(inputs: Inputs) -> list[Row]:
    """One row per checkpoint and text; `n` counts windows, `tokens` those that were predicted."""
    readings = [_reading(inputs, subject) for subject in _asked(inputs)]
    by_checkpoint: dict[str, list[_Reading]] = {}
    for reading in readings:
        by_checkpoint.setdefault(reading.row["checkpoint"], []).append(reading)
    means = [_mean(each) for each in by_checkpoint.values() if len(each) > 1]
    return [*(reading.row for reading in readings), *means]


def first_readings(inputs: Inputs) -> dict[str, Row]:
    """Each checkpoint's own and its base's perplexity on the first text, as columns of the ladder."""
    found: dict[str, Row] = {}
    for row in (_reading(inputs, subject).row for subject in _asked(inputs)):
        read = {name: row.get(name) for name in ("perplexity", "perplexity_dense")}
        found.setdefault(row["checkpoint"], read | {"perplexity_task": row["task"]})
    return found


def _asked(inputs: Inputs) -> list[Subject]:
    """The readers with the probe perplexity."""
    return [each for each in inputs.readers if not _windows(inputs, each.checkpoint, each.task).empty]


def _reading(inputs: Inputs, subject: Subject) -> _Reading:
    windows = _windows(inputs, subject.checkpoint, subject.task)
    done = windows[windows["nll"].notna()]
    status = windows["perplexity_status"]
    row: Row = {**subject.row, "language": ALL, "n": len(done)}
    row |= left_out_of(status)
    row["reason"] = why_left_out(windows, "perplexity")
    if done.empty:
        return _Reading(row | {"reason": joined_reasons("no window was measured", row["reason"])})
    logs = _log_perplexity(inputs, subject.task, done)
    row |= {"tokens": int(done["predicted_tokens"].sum()), "perplexity": float(np.exp(logs.value))}
    row |= bounds("perplexity", logs.interval("exp"))
    if subject.base is None:
        return _Reading(row, logs)
    base = _windows(inputs, subject.base, subject.task)
    both = done.merge(base[base["nll"].notna()], on=list(ITEM), suffixes=("", "_dense"))
    if both.empty:
        missing = f"base {subject.base!r} was not measured on this text"
        return _Reading(row | {"reason": joined_reasons(missing, row["reason"])}, logs)
    own, dense = (_log_perplexity(inputs, subject.task, both, side) for side in ("", "_dense"))
    ratio = Unbounded(own.value - dense.value, own.moves - dense.moves, own.contexts)
    row |= {"perplexity_dense": float(np.exp(dense.value)), "perplexity_ratio": float(np.exp(ratio.value))}
    row |= bounds("perplexity_ratio", ratio.interval("exp"))
    return _Reading(row, logs, ratio)


def _mean(readings: Sequence[_Reading]) -> Row:
    """The mean over the texts of one checkpoint; counts are sums. No two texts share a window."""
    row = readings[0].row
    row = {column.name: row[column.name] for column in SUBJECT}
    row |= {"task": f"mean of {len(readings)} texts", "language": MEAN}
    row |= {name: sum(each.row.get(name) or 0 for each in readings) for name in _COUNTS}
    reasons = ["unweighted mean of log perplexity over texts"]
    for name in ("perplexity", "perplexity_dense", "perplexity_ratio"):
        defined = [each for each in readings if each.row.get(name) is not None]
        if not defined:
            continue
        row[name] = float(np.exp(np.mean([np.log(each.row[name]) for each in defined])))
        if len(defined) < len(readings):
            reasons.append(f"{name} of {len(defined)} of {len(readings)} texts")
        if name == "perplexity_dense":
            continue
        known = [each.logs if name == "perplexity" else each.ratios for each in defined]
        row |= bounds(name, Unbounded.mean(_apart([each for each in known if each is not None])).interval("exp"))
    return row | {"reason": "; ".join(reasons)}


def _windows(inputs: Inputs, checkpoint: str, task: str) -> pd.DataFrame:
    every = inputs.all_outcomes_of(checkpoint, task)
    asked = every[every["perplexity_status"].notna()]
    return asked[[*ITEM, "perplexity_status", "perplexity_why", "nll", "predicted_tokens"]].drop_duplicates("item")


def _log_perplexity(inputs: Inputs, task: str, windows: pd.DataFrame, side: str = "") -> Unbounded:
    nll, tokens = (as_floats(windows[f"{name}{side}"]) for name in ("nll", "predicted_tokens"))
    return Unbounded.ratio(nll, tokens, inputs.contexts_of(task, windows))


def _apart(texts: Sequence[Unbounded]) -> list[Unbounded]:
    """The same, with context numbers that no two texts share."""
    starts = np.cumsum([0, *(1 + int(each.contexts.max()) for each in texts)])
    return [replace(each, contexts=each.contexts + start) for each, start in zip(texts, starts, strict=False)]


TABLE = Table(
    name="perplexity",
    title="Would perplexity have shown it?",
    reading=(
        "Perplexity of a text over non-overlapping windows, and its ratio to the base's on the same windows. "
        "Intervals are over windows."
    ),
    needs="the probe perplexity on a task text:FILE",
    columns=(
        *SUBJECT,
        LANGUAGE,
        *columns_of(COUNT, *_COUNTS),
        Column("perplexity", PERPLEXITY, interval=True),
        Column("perplexity_dense", PERPLEXITY),
        Column("perplexity_ratio", FACTOR, interval=True),
        REASON,
    ),
    compute=_rows,
    figure=Figure(
        (
            Dots("Perplexity", (Series("perplexity", "rank", "perplexity"),), "amounts", text=amount),
            Dots(
                "Relative to the base",
                (Series("perplexity_ratio", "lost", "relative to the base"),),
                "amounts",
                line=1,
                text=lambda value: f"{value:,.2f}",
            ),
        ),
        rows=lambda frame: frame[frame["perplexity"].notna() & (frame["language"] != MEAN)],
    ),
    lacks=(Lack("perplexity_ratio", "the same text on the base"),),
)
