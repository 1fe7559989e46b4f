"""Table `fidelity`: how far a checkpoint's next-token distributions are from its base's (`evaluator.probes.fidelity`).

Means are over positions, with intervals over contexts. Percentiles are over single positions. The rows of a base
compare it with itself in another batch: the floor of the measurement. `kld_floor` repeats this floor in the rows of the
checkpoints with this base.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from evaluator.metrics.columns import (
    COUNT,
    DIVERGENCE,
    FLAG,
    LANGUAGE,
    PERCENTAGE,
    RATIO,
    REASON,
    SCORE,
    SUBJECT,
    TEXT,
    Column,
    Row,
    columns_of,
)
from evaluator.metrics.comparability import settings_of
from evaluator.metrics.counting import joined_reasons, left_out_of, why_left_out
from evaluator.metrics.drops import FATES, item_fates, known_items
from evaluator.metrics.figure import Figure, Scatter
from evaluator.metrics.inputs import ALL, Inputs, Subject, slices
from evaluator.metrics.intervals import Floats, ItemNumbers
from evaluator.metrics.means import Mean
from evaluator.metrics.measures import Unbounded, as_floats, bounds, of_mean
from evaluator.metrics.table import Table
from evaluator.probes.packing import BANDS, Positions, unpack

PERCENTILES = {"kld_p50": 50.0, "kld_p90": 90.0, "kld_p95": 95.0, "kld_p99": 99.0, "kld_p99_9": 99.9, "kld_max": 100.0}
# The tokens along which distributions are compared: the value of `along`, the probe, and its columns' prefix.
_ALONG = (
    ("greedy answer", "fidelity", "fidelity_greedy"),
    ("gold answer", "fidelity", "fidelity_gold"),
    ("text", "text_fidelity", "text_fidelity"),
)
_MEANS = ("kld", "kld_reverse", "acceptance", "same_top", "top_agreement", "delta_p", "delta_nll")
_BOUNDED = {"acceptance": 0.0, "same_top": 0.0, "top_agreement": 0.0, "delta_p": -1.0}  # from here to 1
_UNBOUNDED = {"kld": "log", "kld_reverse": "log", "delta_nll": "linear"}  # the scale of the interval
NOTHING = "no position was measured"
BOUND = "kld is a lower bound, acceptance an upper one"


@dataclass(frozen=True, eq=False)
class _Along:
    """One checkpoint's outcomes along one kind of tokens."""

    inputs: Inputs
    subject: Subject
    along: str
    probe: str
    prefix: str
    items: pd.DataFrame

    def rows(self) -> Iterator[Row]:
        """All positions, by language, by the base's confidence, and by the items' fate."""
        task = self.subject.task
        for language, items in slices(self.items, self.inputs.languages(task)):
            yield self._row(ALL, language, items)
        positions = unpack(self._measured(self.items)[f"{self.prefix}_packed"])
        if len(positions.kld):
            for band, low in enumerate(BANDS):
                yield self._of_band(positions, band, low)
        comparison = self.inputs.comparisons().get(self.subject.key)
        if comparison is None or comparison.reason is not None or self.probe != "fidelity":
            return
        fates = dict(zip(comparison.outcomes["item"], item_fates(comparison.outcomes), strict=True))
        fate = self.items["item"].map(fates)
        for name in FATES:
            if (fate == name).any():
                yield self._row(name, ALL, self.items[fate == name])

    def _start(self, group: str, language: str) -> Row:
        subject = self.subject
        return {
            **subject.row,
            "language": language,
            "along": self.along,
            "group": group,
            "floor": subject.base is None,
        }

    def _measured(self, items: pd.DataFrame) -> pd.DataFrame:
        return items[items[f"{self.prefix}_positions"] > 0]

    def _row(self, group: str, language: str, items: pd.DataFrame) -> Row:
        done = self._measured(items)
        row = self._start(group, language) | {"n": len(done), **left_out_of(items[f"{self.probe}_status"])}
        why = why_left_out(items, self.probe)
        if done.empty:
            return row | {"positions": 0, "reason": joined_reasons(NOTHING, why)}
        sums = {name: as_floats(done[f"{self.prefix}_{name}"]) for name in (*_MEANS, "delta_p_squared")}
        counts = as_floats(done[f"{self.prefix}_positions"])
        row |= {"positions": int(counts.sum()), "reason": why}
        row |= self._means(done, counts, {name: sums[name] for name in _MEANS})
        row["delta_p_rms"] = float(np.sqrt(sums["delta_p_squared"].sum() / counts.sum()))
        return row | percentiles(unpack(done[f"{self.prefix}_packed"]).kld)

    def _of_band(self, positions: Positions, band: int, low: float) -> Row:
        """The positions at which the base's confidence in its likeliest token is in this band."""
        done = self._measured(self.items)
        here = positions.band == band
        high = BANDS[band + 1] if band + 1 < len(BANDS) else 1.0
        row = self._start(f"base {low:g} to {high:g}", ALL)
        counts = np.bincount(positions.passage[here], minlength=len(done)).astype(np.float64)
        row |= {"n": int((counts > 0).sum()), "positions": int(here.sum()), "excluded": 0, "engine_error": 0}
        if not here.any():
            return row | {"reason": "the base was never so sure"}
        values = {"kld": positions.kld, "same_top": positions.same_top.astype(np.float64)}
        sums = {name: _by_passage(positions.passage[here], each[here], len(done)) for name, each in values.items()}
        return row | self._means(done, counts, sums) | percentiles(positions.kld[here])

    def _means(self, items: pd.DataFrame, counts: Floats, sums: dict[str, Floats]) -> Row:
        """The mean over positions of each measure, with its interval, from each item's sum."""
        row: Row = {}
        some = counts > 0
        contexts = self.inputs.contexts_of(self.subject.task, items)[some]
        for name, each in sums.items():
            over, under = each[some], counts[some]
            if name in _BOUNDED:
                row |= of_mean(name, Mean(over / under, contexts, low=_BOUNDED[name], weights=under))
            else:
                ratio = Unbounded.ratio(over, under, contexts)
                row |= {name: ratio.value, **bounds(name, ratio.interval(_UNBOUNDED[name]))}
        return row


def _by_passage(passage: ItemNumbers, values: Floats, passages: int) -> Floats:
    """The sum of the values of each passage."""
    return np.asarray(np.bincount(passage, values, passages), dtype=np.float64)


def percentiles(kld: Floats) -> Row:
    """The percentiles over single positions; the last one is the maximum."""
    return dict(zip(PERCENTILES, map(float, np.percentile(kld, [*PERCENTILES.values()])), strict=True))


def _rows(inputs: Inputs) -> list[Row]:
    rows: list[Row] = []
    for subject in (*inputs.checkpoints, *inputs.readers):
        items = inputs.outcomes_of(subject.checkpoint, subject.task)
        for along, probe, prefix in _ALONG:
            if items[f"{probe}_status"].notna().any():
                rows += _Along(inputs, subject, along, probe, prefix, items).rows()
    floors = {(*_place(row), row["checkpoint"]): row.get("kld") for row in rows if row["floor"]}
    answers = {subject.key: _answered(inputs, subject) for subject in inputs.checkpoints}
    for row in rows:
        if not row["floor"]:
            row["kld_floor"] = floors.get((*_place(row), row["base"]))
        if row["group"] == ALL and row["language"] == ALL:
            top = settings_of(inputs.run, row["base"] or row["checkpoint"], row["task"]).get("fidelity_top")
            row["reason"] = joined_reasons(
                row["reason"], f"{BOUND}: the likeliest {top} tokens were kept" if top else None
            )
            row |= answers.get((row["task"], row["checkpoint"]), {})
    return rows


def _place(row: Row) -> tuple[object, ...]:
    return row["task"], row["language"], row["along"], row["group"]


def _answered(inputs: Inputs, subject: Subject) -> Row:
    """The numbers to compare with the divergence: the accuracy of open answers and the share of mc_only."""
    produced = inputs.outcomes_of(subject.checkpoint, subject.task)["produced"].dropna()
    row: Row = {"accuracy": float(produced.mean()) if len(produced) else None}
    comparison = inputs.comparisons().get(subject.key)
    known: Sequence[str] = [] if comparison is None else known_items(comparison.outcomes)["fate"].tolist()
    row["mc_only_rate"] = sum(fate == "mc_only" for fate in known) / len(known) if known else None
    return row


_LEAST = 1e-9  # nats, on a logarithmic axis


def _drawn(frame: pd.DataFrame) -> pd.DataFrame:
    """The divergence along the greedy answer. In a run that has only texts, the acceptance replaces the accuracy."""
    whole = frame[(frame["language"] == ALL) & (frame["group"] == ALL) & frame["kld"].notna()]
    if whole.empty:
        return whole
    along = next(each for each in ("greedy answer", "gold answer", "text") if (whole["along"] == each).any())
    whole = whole[whole["along"] == along]
    answered = whole[["mc_only_rate", "accuracy"]].notna().any(axis=None)
    return whole.assign(kld=whole["kld"].clip(lower=_LEAST), acceptance=np.nan if answered else whole["acceptance"])


TABLE = Table(
    name="fidelity",
    title="How far are the distributions from the base's?",
    reading=(
        "Base and checkpoint read the same tokens: the base's greedy answer, the gold answer, or a text. At each "
        "position P is the base's distribution over the next token and Q the checkpoint's. kld is sum P ln(P/Q) and "
        "kld_reverse sum Q ln(Q/P), in nats. acceptance is sum min(P, Q), the share of tokens that speculative "
        "decoding would accept. same_top is the share of positions with the same likeliest token, top_agreement the "
        "share of equal tokens in the first five ranks. delta_p and delta_nll describe the token in the text. Rows "
        "marked floor compare a base with itself in another batch. A divergence that is not well above kld_floor "
        "means nothing. Groups are fates of the item, and the base's confidence. With fidelity_top, kld is a lower "
        "bound and acceptance an upper one."
    ),
    needs="the probe fidelity, or text_fidelity on a task text:FILE, on a base and on what is compared with it",
    columns=(
        *SUBJECT,
        LANGUAGE,
        *columns_of(TEXT, "along", "group"),
        Column("floor", FLAG),
        *columns_of(COUNT, "n", "positions", "excluded", "engine_error"),
        Column("kld", DIVERGENCE, interval=True),
        Column("kld_floor", DIVERGENCE),
        *columns_of(DIVERGENCE, *PERCENTILES),
        Column("kld_reverse", DIVERGENCE, interval=True),
        Column("acceptance", SCORE, interval=True),
        *columns_of(PERCENTAGE, "same_top", "top_agreement", interval=True),
        Column("delta_p", RATIO, interval=True),
        Column("delta_p_rms", SCORE),
        Column("delta_nll", RATIO, interval=True),
        *columns_of(PERCENTAGE, "accuracy", "mc_only_rate"),
        REASON,
    ),
    compute=_rows,
    figure=Figure(
        tuple(
            Scatter(
                title,
                "kld",
                column,
                colour,
                "checkpoint",
                "floor",
                "divergence from the base, nats (hollow: the base from itself), {along}",
                log=True,
            )
            for column, colour, title in (
                ("mc_only_rate", "mc_only", "mc_only"),
                ("accuracy", "greedy", "Open accuracy"),
                ("acceptance", "rank", "Expected acceptance"),
            )
        ),
        rows=_drawn,
    ),
)
