"""Table `fidelity`: how far a checkpoint's next-token distributions are from its base's
(`evaluator.probes.fidelity`).

Means are over positions, with intervals over contexts; percentiles are over single
positions. The rows of a base compare it with itself in another batch: the floor of
the measurement, `kld_floor` in the rows of its checkpoints."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from evaluator.core.reducing import BANDS, unpack
from evaluator.metrics.columns import (
    BY_LANGUAGE,
    COUNT,
    DIVERGENCE,
    FLAG,
    PERCENTAGE,
    RATIO,
    SCORE,
    TEXT,
    Row,
)
from evaluator.metrics.comparable import settings_of
from evaluator.metrics.fates import FATES, has_fate, known_share
from evaluator.metrics.inputs import Inputs, Subject
from evaluator.metrics.intervals import Floats
from evaluator.metrics.items import ALL, Items, joined_reasons
from evaluator.metrics.measures import Average, Unbounded, as_floats, mean_of, of_mean
from evaluator.metrics.table import Scatter, Table

PERCENTILES = {
    "kld_p50": 50.0,
    "kld_p90": 90.0,
    "kld_p95": 95.0,
    "kld_p99": 99.0,
    "kld_p99_9": 99.9,
    "kld_max": 100.0,
}


class Along(NamedTuple):
    """Tokens along which distributions are compared: the value of `along`, the probe,
    and its columns' prefix."""

    name: str
    probe: str
    prefix: str

    def done(self, items: Items) -> Items:
        return items.take(items[f"{self.prefix}_positions"] > 0)


ALONG = (
    Along("greedy answer", "fidelity", "fidelity_greedy"),
    Along("gold answer", "fidelity", "fidelity_gold"),
    Along("text", "text_fidelity", "text_fidelity"),
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
        items = inputs.of(subject)
        for along in ALONG:
            if items.any_ran(along.probe):
                own = subject.row | {"along": along.name, "floor": subject.base is None}
                own |= {"group": ALL, "language": ALL}
                groups = list(_groups(inputs, subject, items, along))
                groups[0] |= _whole(inputs, subject, groups[0]["reason"])
                rows += [own | row for row in groups]
    floors = {}
    for row in rows:
        if row["floor"]:
            floors[_place(row, row["checkpoint"])] = row.get("kld")
    for row in rows:
        if not row["floor"]:
            row["kld_floor"] = floors.get(_place(row, row["base"]))
    return rows


def _place(row: Row, checkpoint: str) -> tuple[str, ...]:
    return row["task"], row["language"], row["along"], row["group"], checkpoint


def _whole(inputs: Inputs, subject: Subject, reason: str | None) -> Row:
    """The further columns of the row of all positions: whether few tokens were kept,
    and the numbers to compare with the divergence, the accuracy of open answers and
    the share of mc_only."""
    base = subject.base or subject.checkpoint
    if top := settings_of(inputs.run, base, subject.task).get("fidelity_top"):
        bound = f"{BOUND}: the likeliest {top} tokens were kept"
        reason = joined_reasons(reason, bound)
    row: Row = {"reason": reason}
    if subject in inputs.checkpoints:
        items = inputs.of(subject)
        row |= Average("accuracy", "produced")(items)
        if subject.base:
            row["mc_only_rate"] = known_share(items, "mc_only")
    return row


def _groups(
    inputs: Inputs, subject: Subject, items: Items, along: Along
) -> Iterator[Row]:
    """All positions, by language, by the base's confidence, and by the items' fate."""
    for part in inputs.parts(subject):
        yield {"language": part.language, **divergence_of(part.items, along)}
    yield from _bands(along.done(items), along)
    for fate in FATES if subject.base and along.probe == "fidelity" else ():
        here = items.take(has_fate(fate)(items))
        if len(here):
            yield {"group": fate, **divergence_of(here, along)}


def _bands(done: Items, along: Along) -> Iterator[Row]:
    """The positions by the base's confidence in its likeliest token."""
    positions = unpack(done[f"{along.prefix}_packed"])
    ends = (*BANDS, 1.0)
    for band, low in enumerate(BANDS if len(positions.kld) else ()):
        here = positions.band == band
        passages, kld = positions.passage[here], positions.kld[here]
        counts = _sums(passages, np.ones(len(passages)), done)
        row: Row = {"group": f"base {low:g} to {ends[band + 1]:g}", "reason": None}
        row |= {"n": int((counts > 0).sum()), "positions": len(passages)}
        row |= {"excluded": 0, "engine_error": 0}
        if here.any():
            same_top = as_floats(positions.same_top[here])
            sums = {"kld": _sums(passages, kld, done)}
            sums["same_top"] = _sums(passages, same_top, done)
            row |= _means(done, counts, sums) | percentiles(kld)
        else:
            row["reason"] = "the base was never so sure"
        yield row


def _sums(passages: np.ndarray, values: Floats, done: Items) -> Floats:
    """The sum of each item's values, which belong to these passages."""
    return np.bincount(passages, values, len(done)).astype(np.float64)


def divergence_of(items: Items, along: Along) -> Row:
    """The measures of a checkpoint's items: means over positions, and percentiles."""
    done, status = along.done(items), f"{along.probe}_status"
    why = items.why_left_out(status)
    row: Row = {"n": len(done), **items.left_out(status), "reason": why}
    if not len(done):
        return row | {"positions": 0, "reason": joined_reasons(NOTHING, why)}
    counts = done[f"{along.prefix}_positions"]
    squares = done[f"{along.prefix}_delta_p_squared"]
    sums = {name: done[f"{along.prefix}_{name}"] for name in _MEANS}
    row["positions"] = int(counts.sum())
    row["delta_p_rms"] = float(np.sqrt(squares.sum() / counts.sum()))
    row |= _means(done, counts, sums)
    return row | percentiles(unpack(done[f"{along.prefix}_packed"]).kld)


def _means(items: Items, counts: Floats, sums: Mapping[str, Floats]) -> Row:
    """The mean over positions of each measure, with its interval, from each item's
    sum and number of positions."""
    row: Row = {}
    some = counts > 0
    items, under = items.take(some), counts[some]
    for name, each in sums.items():
        over = each[some]
        if name in _BOUNDED:
            low = _BOUNDED[name]
            mean = mean_of(over / under, items, low=low, weights=under)
            row |= of_mean(name, mean)
        else:
            ratio = Unbounded.ratio(over, under, items)
            row |= ratio.row(name, _UNBOUNDED[name])
    return row


_HUGE = 1e300  # nats, for an infinite divergence, beside which a percentile is NaN


def percentiles(kld: Floats) -> Row:
    """The percentiles over single positions; the last one is the maximum."""
    found = np.percentile(np.minimum(kld, _HUGE), [*PERCENTILES.values()])
    found = np.where(found > _HUGE / 1e9, np.inf, found)
    return dict(zip(PERCENTILES, found.tolist(), strict=True))


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
    for along in ALONG:
        if (whole["along"] == along.name).any():
            whole = whole[whole["along"] == along.name]
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
        *BY_LANGUAGE,
        *TEXT("along", "group"),
        *FLAG("floor"),
        *COUNT("n", "positions", "excluded", "engine_error"),
        *DIVERGENCE.estimates("kld"),
        *DIVERGENCE("kld_floor"),
        *DIVERGENCE(*PERCENTILES),
        *DIVERGENCE.estimates("kld_reverse"),
        *SCORE.estimates("acceptance"),
        *PERCENTAGE.estimates("same_top", "top_agreement"),
        *RATIO.estimates("delta_p"),
        *SCORE("delta_p_rms"),
        *RATIO.estimates("delta_nll"),
        *PERCENTAGE("accuracy", "mc_only_rate"),
    ),
    compute=_rows,
    figure=tuple(
        Scatter(title, "kld", column, colour, "checkpoint", "floor", _NATS, log=True)
        for column, colour, title in (
            ("mc_only_rate", "mc_only", "Picked only"),
            ("accuracy", "greedy", "Said"),
            ("acceptance", "rank", "Expected acceptance"),
        )
    ),
    plotted=_drawn,
)
