"""Table `perplexity`: exp(summed negative log-likelihood / number of predicted tokens)
over all windows of a text task.

The base's numbers are on the windows that both read. Intervals of a ratio are of the
same windows' differences. A checkpoint that read several texts also has a row `mean`:
the unweighted means over texts of log perplexity and (if the base read the text) log
ratio, as perplexity and ratio again."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from evaluator.metrics.columns import AMOUNT, BY_LANGUAGE, COUNT, FACTOR, SUBJECT, Row
from evaluator.metrics.inputs import Inputs, Subject
from evaluator.metrics.items import ALL, MEAN, Items, joined_reasons
from evaluator.metrics.measures import Unbounded, bounds, exp
from evaluator.metrics.table import Dots, Lack, Series, Table, amount

PERPLEXITY = AMOUNT  # exp of nats per token
_COUNTS = ("n", "excluded", "engine_error", "tokens")
_RATIO = (Series("perplexity_ratio", "lost", "relative to the base"),)


@dataclass(frozen=True)
class _Reading:
    """One checkpoint's row on one text, its log perplexity and the log ratio to the
    base, if known."""

    row: Row
    logs: Unbounded | None = None
    ratios: Unbounded | None = None


def _rows(inputs: Inputs) -> list[Row]:
    """One row per checkpoint and text, then means over texts; `n` counts windows,
    `tokens` the predicted ones."""
    by_checkpoint: dict[str, list[_Reading]] = {}
    rows: list[Row] = []
    for reading in readings_of(inputs):
        rows.append(reading.row)
        by_checkpoint.setdefault(reading.row["checkpoint"], []).append(reading)
    for readings in by_checkpoint.values():
        if len(readings) > 1:
            rows.append(_mean(readings))
    return rows


def first_readings(inputs: Inputs) -> dict[str, Row]:
    """Each checkpoint's own and its base's perplexity on the first text, as columns
    of the ladder."""
    columns: dict[str, Row] = {}
    for reading in readings_of(inputs):
        row = reading.row
        values = {name: row.get(name) for name in ("perplexity", "perplexity_dense")}
        values["perplexity_task"] = row["task"]
        columns.setdefault(row["checkpoint"], values)
    return columns


def readings_of(inputs: Inputs) -> Iterator[_Reading]:
    """Each checkpoint on each text."""
    for subject in inputs.readers:
        if inputs.of(subject).any_ran("perplexity"):
            yield _reading(subject, inputs.of(subject))


def _reading(subject: Subject, windows: Items) -> _Reading:
    done = windows.take(windows.has("nll"))
    why = windows.why_left_out("perplexity_status")
    row = subject.row | {"language": ALL, "n": len(done), "reason": why}
    row |= windows.left_out("perplexity_status")
    if not len(done):
        reason = joined_reasons("no window was measured", why)
        return _Reading(row | {"reason": reason})
    logs = _log_perplexity(done)
    row["tokens"] = int(done["predicted_tokens"].sum())
    row["perplexity"] = exp(logs.value)
    row |= bounds("perplexity", logs.interval("exp"))
    if subject.base is None:
        return _Reading(row, logs)
    both = done.take(done.has("base_nll"))
    if not len(both):
        missing = f"base {subject.base!r} was not measured on this text"
        return _Reading(row | {"reason": joined_reasons(missing, why)}, logs)
    own, base = _log_perplexity(both), _log_perplexity(both.of_base)
    with np.errstate(invalid="ignore"):  # of two infinite ones
        ratio = Unbounded(own.value - base.value, own.moves - base.moves, own.contexts)
    row |= {"perplexity_dense": exp(base.value), "perplexity_ratio": exp(ratio.value)}
    row |= bounds("perplexity_ratio", ratio.interval("exp"))
    return _Reading(row, logs, ratio)


def _mean(readings: Sequence[_Reading]) -> Row:
    """The mean over the texts of one checkpoint; counts are sums. No two texts share
    a window."""
    row = {column.name: readings[0].row[column.name] for column in SUBJECT}
    row |= {"task": f"mean of {len(readings)} texts", "language": MEAN}
    for name in _COUNTS:
        row[name] = sum(each.row.get(name) or 0 for each in readings)
    reasons = ["unweighted mean of log perplexity over texts"]
    for name in ("perplexity", "perplexity_dense", "perplexity_ratio"):
        defined = [each for each in readings if each.row.get(name) is not None]
        if not defined:
            continue
        row[name] = exp(float(np.mean([np.log(each.row[name]) for each in defined])))
        if len(defined) < len(readings):
            reasons.append(f"{name} of {len(defined)} of {len(readings)} texts")
        if name == "perplexity":
            row |= _mean_bounds(name, [each.logs for each in defined])
        elif name == "perplexity_ratio":
            row |= _mean_bounds(name, [each.ratios for each in defined])
    return row | {"reason": "; ".join(reasons)}


def _mean_bounds(name: str, texts: Sequence[Unbounded | None]) -> Row:
    """The interval of a mean over texts. No two texts share a context."""
    apart, start = [], 0
    for text in texts:
        if text is not None:
            apart.append(replace(text, contexts=text.contexts + start))
            start += 1 + int(text.contexts.max())
    return bounds(name, Unbounded.mean(apart).interval("exp"))


def _log_perplexity(windows: Items) -> Unbounded:
    return Unbounded.ratio(windows["nll"], windows["predicted_tokens"], windows)


TABLE = Table(
    name="perplexity",
    title="Would perplexity have shown it?",
    reading=(
        "Perplexity of a text over non-overlapping windows, and its ratio to the base's"
        " on the same windows. Intervals are over windows."
    ),
    needs="the probe perplexity on a task text:FILE",
    columns=(
        *BY_LANGUAGE,
        *COUNT(*_COUNTS),
        *PERPLEXITY.estimates("perplexity"),
        *PERPLEXITY("perplexity_dense"),
        *FACTOR.estimates("perplexity_ratio"),
    ),
    compute=_rows,
    figure=(
        Dots(
            "Perplexity",
            (Series("perplexity", "rank", "perplexity"),),
            "amounts",
            text=amount,
        ),
        Dots("Relative to the base", _RATIO, "amounts", line=1, text="{:,.2f}".format),
    ),
    plotted=lambda frame: frame[
        frame["perplexity"].notna() & (frame["language"] != MEAN)
    ],
    lacks=(Lack("perplexity_ratio", "the same text on the base"),),
)
