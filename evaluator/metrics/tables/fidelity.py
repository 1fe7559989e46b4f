"""How well a checkpoint predicts given tokens: its distributions beside its base's,
and its perplexity.

Table `fidelity`: how far a checkpoint's next-token distributions are from its base's
(`evaluator.probes.fidelity`).

Means are over positions, with intervals over contexts; percentiles are over single
positions. The rows of a base compare it with itself in another batch: the floor of
the measurement, `kld_floor` in the rows of its checkpoints.

Table `perplexity`: exp(summed negative log-likelihood / number of predicted tokens)
over all windows of a text task. The base's numbers are on the windows that both
read. Intervals of a ratio are of the same windows' differences. A checkpoint that
read several texts also has a row `mean`: the unweighted means over texts of log
perplexity and (if the base read the text) log ratio, as perplexity and ratio again."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

import evaluator.metrics.columns as col
from evaluator.metrics.columns import Column, Row
from evaluator.metrics.exclusions import joined_reasons, left_out_of, why_left_out
from evaluator.metrics.fates import FATES, item_fates
from evaluator.metrics.inputs import (
    ALL,
    ITEM,
    MEAN,
    Inputs,
    Subject,
    settings_of,
    slices,
)
from evaluator.metrics.intervals import Floats, ItemNumbers, Mean
from evaluator.metrics.measures import Unbounded, as_floats, bounds, exp, of_mean
from evaluator.metrics.table import Dots, Lack, Scatter, Series, Table, amount
from evaluator.probes.reducing import BANDS, unpack

PERCENTILES = {
    "kld_p50": 50.0,
    "kld_p90": 90.0,
    "kld_p95": 95.0,
    "kld_p99": 99.0,
    "kld_p99_9": 99.9,
    "kld_max": 100.0,
}
# The tokens along which distributions are compared: the value of `along`, the probe,
# and its columns' prefix.
_ALONG = (
    ("greedy answer", "fidelity", "fidelity_greedy"),
    ("gold answer", "fidelity", "fidelity_gold"),
    ("text", "text_fidelity", "text_fidelity"),
)
_MEANS = (
    "kld",
    "kld_reverse",
    "acceptance",
    "same_top",
    "top_agreement",
    "delta_p",
    "delta_nll",
)
# from here to 1
_BOUNDED = {"acceptance": 0.0, "same_top": 0.0, "top_agreement": 0.0, "delta_p": -1.0}
# the scale of the interval
_UNBOUNDED = {"kld": "log", "kld_reverse": "log", "delta_nll": "linear"}
NOTHING = "no position was measured"
BOUND = "kld is a lower bound, acceptance an upper one"


def _rows(inputs: Inputs) -> list[Row]:
    rows: list[Row] = []
    for subject in (*inputs.checkpoints, *inputs.readers):
        items = inputs.outcomes_of(subject.checkpoint, subject.task)
        for along, probe, prefix in _ALONG:
            if items[f"{probe}_status"].notna().any():
                own = {**subject.row, "along": along, "floor": subject.base is None}
                rows += [
                    own | row for row in _along(inputs, subject, items, probe, prefix)
                ]
    place = ("task", "language", "along", "group")
    floors = {
        (*(row[name] for name in place), row["checkpoint"]): row.get("kld")
        for row in rows
        if row["floor"]
    }
    answers = {
        subject.key: _answered(inputs, subject) for subject in inputs.checkpoints
    }
    for row in rows:
        if not row["floor"]:
            row["kld_floor"] = floors.get((*(row[name] for name in place), row["base"]))
        if row["group"] == ALL and row["language"] == ALL:
            top = settings_of(
                inputs.run, row["base"] or row["checkpoint"], row["task"]
            ).get("fidelity_top")
            bound = f"{BOUND}: the likeliest {top} tokens were kept" if top else None
            row["reason"] = joined_reasons(row["reason"], bound)
            row |= answers.get((row["task"], row["checkpoint"]), {})
    return rows


def _along(
    inputs: Inputs, subject: Subject, items: pd.DataFrame, probe: str, prefix: str
) -> Iterator[Row]:
    """All positions, by language, by the base's confidence, and by the items' fate."""
    for language, part in slices(items, inputs.languages(subject.task)):
        yield _of_items(inputs, subject.task, part, probe, prefix) | {
            "group": ALL,
            "language": language,
        }
    done = items[items[f"{prefix}_positions"] > 0]
    positions = unpack(done[f"{prefix}_packed"])
    for band, low in enumerate(BANDS if len(positions.kld) else ()):
        # The positions at which the base's confidence in its likeliest token is in this
        # band.
        here = positions.band == band
        high = BANDS[band + 1] if band + 1 < len(BANDS) else 1.0
        counts = np.bincount(positions.passage[here], minlength=len(done)).astype(
            np.float64
        )
        row: Row = {
            "group": f"base {low:g} to {high:g}",
            "language": ALL,
            "excluded": 0,
            "engine_error": 0,
        }
        row |= {
            "n": int((counts > 0).sum()),
            "positions": int(here.sum()),
            "reason": None,
        }
        if here.any():
            sums = {
                name: np.bincount(
                    positions.passage[here], each[here], len(done)
                ).astype(np.float64)
                for name, each in {
                    "kld": positions.kld,
                    "same_top": positions.same_top.astype(np.float64),
                }.items()
            }
            row |= _means(
                inputs.contexts_of(subject.task, done), counts, sums
            ) | percentiles(positions.kld[here])
        else:
            row["reason"] = "the base was never so sure"
        yield row
    comparison = inputs.comparisons().get(subject.key)
    if comparison is None or comparison.reason is not None or probe != "fidelity":
        return
    fate = items["item"].map(
        dict(
            zip(
                comparison.outcomes["item"],
                item_fates(comparison.outcomes),
                strict=True,
            )
        )
    )
    for name in FATES:
        if (fate == name).any():
            row = _of_items(inputs, subject.task, items[fate == name], probe, prefix)
            yield row | {"group": name, "language": ALL}


def _of_items(
    inputs: Inputs, task: str, items: pd.DataFrame, probe: str, prefix: str
) -> Row:
    done = items[items[f"{prefix}_positions"] > 0]
    status = f"{probe}_status"
    row: Row = {
        "n": len(done),
        **left_out_of(items[status]),
        "reason": why_left_out(items, status),
    }
    if done.empty:
        return row | {"positions": 0, "reason": joined_reasons(NOTHING, row["reason"])}
    sums = {
        name: as_floats(done[f"{prefix}_{name}"])
        for name in (*_MEANS, "delta_p_squared")
    }
    counts = as_floats(done[f"{prefix}_positions"])
    row["positions"] = int(counts.sum())
    row["delta_p_rms"] = float(
        np.sqrt(sums.pop("delta_p_squared").sum() / counts.sum())
    )
    row |= _means(inputs.contexts_of(task, done), counts, sums)
    return row | percentiles(unpack(done[f"{prefix}_packed"]).kld)


def _means(contexts: ItemNumbers, counts: Floats, sums: Mapping[str, Floats]) -> Row:
    """The mean over positions of each measure, with its interval, from each item's
    sum and number of positions."""
    row: Row = {}
    some = counts > 0
    for name, each in sums.items():
        over, under = each[some], counts[some]
        if name in _BOUNDED:
            row |= of_mean(
                name,
                Mean(over / under, contexts[some], low=_BOUNDED[name], weights=under),
            )
        else:
            ratio = Unbounded.ratio(over, under, contexts[some])
            row |= {name: ratio.value, **bounds(name, ratio.interval(_UNBOUNDED[name]))}
    return row


_HUGE = 1e300  # nats, for an infinite divergence


def percentiles(kld: Floats) -> Row:
    """The percentiles over single positions; the last one is the maximum."""
    # beside an infinite one it is NaN
    found = np.percentile(np.minimum(kld, _HUGE), [*PERCENTILES.values()])
    return dict(
        zip(
            PERCENTILES,
            np.where(found > _HUGE / 1e9, np.inf, found).tolist(),
            strict=True,
        )
    )


def _answered(inputs: Inputs, subject: Subject) -> Row:
    """The numbers to compare with the divergence: the accuracy of open answers and
    the share of mc_only."""
    produced = inputs.outcomes_of(subject.checkpoint, subject.task)["produced"].dropna()
    row: Row = {"accuracy": float(produced.mean()) if len(produced) else None}
    comparison = inputs.comparisons().get(subject.key)
    fates: Sequence[str] = (
        [] if comparison is None else item_fates(comparison.outcomes).tolist()
    )
    known = [fate for fate in fates if fate in FATES]
    row["mc_only_rate"] = (
        sum(fate == "mc_only" for fate in known) / len(known) if known else None
    )
    return row


_LEAST = 1e-9  # nats, on a logarithmic axis
_NATS = "divergence from the base, nats (hollow: the base from itself), {along}"


def _drawn(frame: pd.DataFrame) -> pd.DataFrame:
    """The divergence along the greedy answer. In a run that has only texts, the
    acceptance replaces the accuracy."""
    whole = frame[
        (frame["language"] == ALL) & (frame["group"] == ALL) & frame["kld"].notna()
    ]
    if whole.empty:
        return whole
    along = next(
        each
        for each in ("greedy answer", "gold answer", "text")
        if (whole["along"] == each).any()
    )
    whole = whole[whole["along"] == along]
    answered = whole[["mc_only_rate", "accuracy"]].notna().any(axis=None)
    return whole.assign(
        kld=whole["kld"].clip(lower=_LEAST),
        acceptance=np.nan if answered else whole["acceptance"],
    )


TABLE = Table(
    name="fidelity",
    title="How far are the distributions from the base's?",
    reading=(
        "Base and checkpoint read the same tokens: the base's greedy answer, the gold"
        " answer, or a text. At each position P is the base's distribution over the"
        " next token and Q the checkpoint's. kld is sum P ln(P/Q) and kld_reverse sum Q"
        " ln(Q/P), in nats. acceptance is sum min(P, Q), the share of tokens that"
        " speculative decoding would accept. same_top is the share of positions with"
        " the same likeliest token, top_agreement the share of equal tokens in the"
        " first five ranks. delta_p and delta_nll describe the token in the text. Rows"
        " marked floor compare a base with itself in another batch. A divergence that"
        " is not well above kld_floor means nothing. Groups are fates of the item, and"
        " the base's confidence. With fidelity_top, kld is a lower bound and acceptance"
        " an upper one."
    ),
    needs=(
        "the probe fidelity, or text_fidelity on a task text:FILE, on a base and on"
        " what is compared with it"
    ),
    columns=(
        *col.BY_LANGUAGE,
        *col.TEXT("along", "group"),
        Column("floor", col.FLAG),
        *col.COUNT("n", "positions", "excluded", "engine_error"),
        Column("kld", col.DIVERGENCE, interval=True),
        Column("kld_floor", col.DIVERGENCE),
        *col.DIVERGENCE(*PERCENTILES),
        Column("kld_reverse", col.DIVERGENCE, interval=True),
        Column("acceptance", col.SCORE, interval=True),
        *col.PERCENTAGE("same_top", "top_agreement", interval=True),
        Column("delta_p", col.RATIO, interval=True),
        Column("delta_p_rms", col.SCORE),
        Column("delta_nll", col.RATIO, interval=True),
        *col.PERCENTAGE("accuracy", "mc_only_rate"),
    ),
    compute=_rows,
    figure=tuple(
        Scatter(title, "kld", column, colour, "checkpoint", "floor", _NATS, log=True)
        for column, colour, title in (
            ("mc_only_rate", "mc_only", "mc_only"),
            ("accuracy", "greedy", "Open accuracy"),
            ("acceptance", "rank", "Expected acceptance"),
        )
    ),
    plotted=_drawn,
)

PERPLEXITY = col.AMOUNT  # exp of nats per token
_COUNTS = ("n", "excluded", "engine_error", "tokens")
_RATIO = (Series("perplexity_ratio", "lost", "relative to the base"),)


@dataclass(frozen=True, eq=False)
class _Reading:
    """One checkpoint's row on one text, its log perplexity and the log ratio to the
    base, if known."""

    row: Row
    logs: Unbounded | None = None
    ratios: Unbounded | None = None


def _perplexity_rows(inputs: Inputs) -> list[Row]:
    """One row per checkpoint and text, then means over texts; `n` counts windows,
    `tokens` the predicted ones."""
    readings = list(_readings(inputs))
    by_checkpoint: dict[str, list[_Reading]] = {}
    for reading in readings:
        by_checkpoint.setdefault(reading.row["checkpoint"], []).append(reading)
    means = [_mean(each) for each in by_checkpoint.values() if len(each) > 1]
    return [*(reading.row for reading in readings), *means]


def first_readings(inputs: Inputs) -> dict[str, Row]:
    """Each checkpoint's own and its base's perplexity on the first text, as columns
    of the ladder."""
    found: dict[str, Row] = {}
    for row in (reading.row for reading in _readings(inputs)):
        read = {name: row.get(name) for name in ("perplexity", "perplexity_dense")}
        found.setdefault(row["checkpoint"], read | {"perplexity_task": row["task"]})
    return found


def _readings(inputs: Inputs) -> Iterator[_Reading]:
    for subject in inputs.readers:
        windows = _windows(inputs, subject.checkpoint, subject.task)
        if windows.empty:
            continue
        done, why = (
            windows[windows["nll"].notna()],
            why_left_out(windows, "perplexity_status"),
        )
        row: Row = {
            **subject.row,
            "language": ALL,
            "n": len(done),
            **left_out_of(windows["perplexity_status"]),
        }
        if done.empty:
            yield _Reading(
                row | {"reason": joined_reasons("no window was measured", why)}
            )
            continue
        logs = _log_perplexity(inputs, subject.task, done)
        row |= {
            "tokens": int(done["predicted_tokens"].sum()),
            "perplexity": exp(logs.value),
            "reason": why,
        }
        row |= bounds("perplexity", logs.interval("exp"))
        if subject.base is None:
            yield _Reading(row, logs)
            continue
        base = _windows(inputs, subject.base, subject.task)
        both = done.merge(
            base[base["nll"].notna()], on=list(ITEM), suffixes=("", "_dense")
        )
        if both.empty:
            missing = f"base {subject.base!r} was not measured on this text"
            yield _Reading(row | {"reason": joined_reasons(missing, why)}, logs)
            continue
        own, dense = (
            _log_perplexity(inputs, subject.task, both, side) for side in ("", "_dense")
        )
        with np.errstate(invalid="ignore"):  # of two infinite ones
            ratio = Unbounded(
                own.value - dense.value, own.moves - dense.moves, own.contexts
            )
        row |= {
            "perplexity_dense": exp(dense.value),
            "perplexity_ratio": exp(ratio.value),
        }
        yield _Reading(
            row | bounds("perplexity_ratio", ratio.interval("exp")), logs, ratio
        )


def _mean(readings: Sequence[_Reading]) -> Row:
    """The mean over the texts of one checkpoint; counts are sums. No two texts share
    a window."""
    row = {column.name: readings[0].row[column.name] for column in col.SUBJECT}
    row |= {"task": f"mean of {len(readings)} texts", "language": MEAN}
    row |= {name: sum(each.row.get(name) or 0 for each in readings) for name in _COUNTS}
    reasons = ["unweighted mean of log perplexity over texts"]
    for name in ("perplexity", "perplexity_dense", "perplexity_ratio"):
        defined = [each for each in readings if each.row.get(name) is not None]
        if not defined:
            continue
        row[name] = exp(float(np.mean([np.log(each.row[name]) for each in defined])))
        if len(defined) < len(readings):
            reasons.append(f"{name} of {len(defined)} of {len(readings)} texts")
        if name == "perplexity_dense":
            continue
        known = [each.logs if name == "perplexity" else each.ratios for each in defined]
        texts = [each for each in known if each is not None]
        # no two texts share a context
        starts = np.cumsum([0, *(1 + int(each.contexts.max()) for each in texts)])
        apart = [
            replace(each, contexts=each.contexts + start)
            for each, start in zip(texts, starts, strict=False)
        ]
        row |= bounds(name, Unbounded.mean(apart).interval("exp"))
    return row | {"reason": "; ".join(reasons)}


def _windows(inputs: Inputs, checkpoint: str, task: str) -> pd.DataFrame:
    every = inputs.all_outcomes_of(checkpoint, task)
    asked = every[every["perplexity_status"].notna()]
    return asked[
        [*ITEM, "perplexity_status", "perplexity_why", "nll", "predicted_tokens"]
    ].drop_duplicates("item")


def _log_perplexity(
    inputs: Inputs, task: str, windows: pd.DataFrame, side: str = ""
) -> Unbounded:
    nll, tokens = (
        as_floats(windows[f"{name}{side}"]) for name in ("nll", "predicted_tokens")
    )
    return Unbounded.ratio(nll, tokens, inputs.contexts_of(task, windows))


PERPLEXITY_TABLE = Table(
    name="perplexity",
    title="Would perplexity have shown it?",
    reading=(
        "Perplexity of a text over non-overlapping windows, and its ratio to the base's"
        " on the same windows. Intervals are over windows."
    ),
    needs="the probe perplexity on a task text:FILE",
    columns=(
        *col.BY_LANGUAGE,
        *col.COUNT(*_COUNTS),
        Column("perplexity", PERPLEXITY, interval=True),
        Column("perplexity_dense", PERPLEXITY),
        Column("perplexity_ratio", col.FACTOR, interval=True),
    ),
    compute=_perplexity_rows,
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
