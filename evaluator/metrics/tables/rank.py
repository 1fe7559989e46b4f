"""Table `rank`: the rank of the gold answer's first token in the next-token distribution after the open prompt.

The columns `aligned_*` have the rank of the aligned answer's first token after prompt and lead-in (see
`evaluator.probes.aligned_rank`).

Groups of items: `all`; `mc_only` (the fate, so only for a checkpoint with a base); `dense_failures`, which the dense
model's greedy output misses. `side` names whose ranks: the checkpoint's own, or its base's on exactly the same items.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from evaluator.metrics.columns import (
    COUNT,
    LANGUAGE,
    NATS,
    PERCENTAGE,
    RANK,
    REASON,
    SUBJECT,
    TEXT,
    Column,
    Row,
    columns_of,
)
from evaluator.metrics.counting import left_out_of
from evaluator.metrics.drops import UNMEASURED, item_fates
from evaluator.metrics.figure import Bars, Figure, Note
from evaluator.metrics.inputs import Comparison, Inputs, Subject, slices
from evaluator.metrics.intervals import Floats, ItemNumbers
from evaluator.metrics.measures import as_floats, median, rate
from evaluator.metrics.table import Lack, Table
from evaluator.store.outcomes import MEASURED

_NEEDS = {
    "mc_only": "needs the probes greedy and choice on a checkpoint and its base (for the group mc_only)",
    "dense_failures": "needs the probe greedy on the dense model (for the group dense_failures)",
}
_BANDS = {"rank_1": (1, 1), "rank_2_5": (2, 5), "rank_6_20": (6, 20), "rank_over_20": (21, None)}
_PROBES = ("rank", "aligned_rank")


@dataclass(frozen=True, eq=False)
class _Group:
    """Items with a row of rank statistics; `suffix` selects a side's columns. `why_empty` is the reason for an n of
    0."""

    name: str
    items: pd.DataFrame
    side: str = "own"
    suffix: str = ""
    why_empty: str | None = None
    pooled_only: bool = False  # without rows by language


def _rows(inputs: Inputs) -> Iterator[Row]:
    """Dense checkpoints alone; pruned ones beside their base, on the items common to both."""
    for subject in inputs.checkpoints:
        if subject.base is None:
            for group in _alone(inputs, subject):
                yield from _group_rows(inputs, subject, group)
    for comparison in inputs.comparisons().values():
        for group in _beside_base(inputs, comparison):
            yield from _group_rows(inputs, comparison.subject, group)


def _alone(inputs: Inputs, subject: Subject) -> Iterator[_Group]:
    """The groups of a checkpoint without a base."""
    items = inputs.outcomes_of(subject.checkpoint, subject.task)
    if _asked(items):
        why = None if items["produced"].notna().any() else _NEEDS["dense_failures"]
        yield _Group("all", items)
        yield _Group("dense_failures", items[items["produced"] == 0], why_empty=why)


def _beside_base(inputs: Inputs, comparison: Comparison) -> Iterator[_Group]:
    """The groups of a checkpoint with a base: own ranks and the base's. Without common items, its own ranks on all
    items."""
    items = comparison.outcomes
    if comparison.reason:
        own = inputs.outcomes_of(comparison.subject.checkpoint, comparison.subject.task)
        if _asked(own):
            yield _Group("all", own)
    elif _asked(items, "_pruned"):
        for side, suffix in (("own", "_pruned"), ("base", "_dense")):
            yield _Group("all", items, side, suffix)
    else:
        return
    fates = item_fates(items)
    grouped = {"mc_only": items[fates == "mc_only"], "dense_failures": items[items["produced_dense"] == 0]}
    unknown = {"mc_only": (fates == UNMEASURED).all(), "dense_failures": items["produced_dense"].isna().all()}
    for name, chosen in grouped.items():
        why = comparison.reason or (_NEEDS[name] if unknown[name] else None)
        for side, suffix in (("own", "_pruned"), ("base", "_dense")):
            yield _Group(name, chosen, side, suffix, why, pooled_only=comparison.reason is not None)


def _asked(items: pd.DataFrame, suffix: str = "") -> bool:
    return any(bool(items[f"{probe}_status{suffix}"].notna().any()) for probe in _PROBES)


def _group_rows(inputs: Inputs, subject: Subject, group: _Group) -> list[Row]:
    languages = [] if group.pooled_only else inputs.languages(subject.task)
    return [
        {**subject.row, "language": language, "group": group.name, "side": group.side}
        | _statistics(inputs, subject.task, items, group)
        for language, items in slices(group.items, languages)
    ]


def _statistics(inputs: Inputs, task: str, items: pd.DataFrame, group: _Group) -> Row:
    status = items[f"rank_status{group.suffix}"]
    rank, margin, aligned = (as_floats(items[f"{name}{group.suffix}"]) for name in ("rank", "margin", "aligned_rank"))
    contexts = inputs.contexts_of(task, items)
    done = status.isin(MEASURED).to_numpy() & ~np.isnan(rank)
    n = int(done.sum())
    row: Row = {
        "n": n,
        **left_out_of(status),
        "reason": None if n else group.why_empty or "no item of this group has a measured rank",
    }
    row |= _ranks("rank", rank, contexts)
    with_margin = done & ~np.isnan(margin)
    if with_margin.any():
        row |= median("margin_median", margin[with_margin], contexts[with_margin])
    if items[f"aligned_rank_status{group.suffix}"].notna().any():
        row["aligned_n"] = int((~np.isnan(aligned)).sum())
        row |= _ranks("aligned_rank", aligned, contexts)
    return row


def _ranks(name: str, ranks: Floats, contexts: ItemNumbers) -> Row:
    """Median, quartiles and bands of the ranks of some items; NaN ranks do not count. Empty without any rank."""
    known = ~np.isnan(ranks)
    contexts, ranks = contexts[known], ranks[known]
    if not len(ranks):
        return {}
    quartiles = np.percentile(ranks, [25, 75]).tolist()
    row: Row = dict(zip((f"{name}_q1", f"{name}_q3"), quartiles, strict=True))
    row |= median(f"{name}_median", ranks, contexts)
    for band, (first, last) in _BANDS.items():
        inside = (ranks >= first) & (ranks <= (float("inf") if last is None else last))
        row |= rate(band.replace("rank", name), as_floats(inside), contexts)
    return row


_PAINTS = {"_1": ("rank 1", 1.0), "_2_5": ("2-5", 0.68), "_6_20": ("6-20", 0.4), "_over_20": ("over 20", 0.16)}
_PANELS = (  # group, whose ranks, title
    ("mc_only", "rank", "No longer said (mc_only)"),
    ("mc_only", "aligned_rank", "The same, aligned"),
    ("all", "rank", "All items"),
)

TABLE = Table(
    name="rank",
    title="How far down is the answer?",
    reading=(
        "The rank of the gold answer's first token in the whole vocabulary; 1 is the likeliest. A demoted answer "
        "has rank 2 to 20; an erased one is far below. The margin is its distance to the top token in nats. A model "
        "that answers in sentences says other words first. Aligned ranks are those after the dense model's own "
        "lead-in, for items where the dense model wrote a right answer."
    ),
    needs="the probe rank",
    columns=(
        *SUBJECT,
        LANGUAGE,
        *columns_of(TEXT, "group", "side"),
        *columns_of(COUNT, "n", "excluded", "engine_error"),
        Column("rank_median", RANK, interval=True),
        *columns_of(RANK, "rank_q1", "rank_q3"),
        *columns_of(PERCENTAGE, *_BANDS, interval=True),
        Column("margin_median", NATS, interval=True),
        Column("aligned_n", COUNT),
        Column("aligned_rank_median", RANK, interval=True),
        *columns_of(RANK, "aligned_rank_q1", "aligned_rank_q3"),
        *columns_of(PERCENTAGE, *(band.replace("rank", "aligned_rank") for band in _BANDS), interval=True),
        REASON,
    ),
    compute=_rows,
    figure=Figure(
        tuple(
            Bars(
                title,
                {f"{ranks}{band}": (name, "rank", alpha) for band, (name, alpha) in _PAINTS.items()},
                {"group": group},
                legend=4 * (title == _PANELS[0][2]),
                note=Note(
                    f"{ranks}_median", lambda rank: "none" if rank is None else f"median {rank:,g}", {"group": group}
                ),
            )
            for group, ranks, title in _PANELS
        ),
        rows=lambda frame: frame[frame["side"] == "own"],
    ),
    lacks=(Lack("aligned_n", "the probe aligned_rank on a base and what is compared with it (for aligned ranks)"),),
)
