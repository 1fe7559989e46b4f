"""Table `rank`: the rank of the gold answer's first token in the next-token
distribution after the open prompt.

The columns `aligned_*` have the rank of the aligned answer's first token after prompt
and lead-in (see `evaluator.probes.rank`).

Groups of items: `all`; `mc_only` (the fate, so only for a checkpoint with a base);
`dense_failures`, which the dense model's greedy output misses. `side` names whose
ranks: the checkpoint's own, or its base's on exactly the same items.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from evaluator.metrics.columns import (
    BY_LANGUAGE,
    COUNT,
    COUNTED,
    NATS,
    PERCENTAGE,
    RANK,
    TEXT,
    Row,
)
from evaluator.metrics.fates import UNMEASURED, fates_of
from evaluator.metrics.inputs import Inputs, Subject
from evaluator.metrics.items import Items
from evaluator.metrics.measures import known, median, rate
from evaluator.metrics.table import Bars, Lack, Note, Table

_NEEDS = {
    "mc_only": (
        "needs the probes greedy and choice on a checkpoint and its base (for the group"
        " mc_only)"
    ),
    "dense_failures": (
        "needs the probe greedy on the dense model (for the group dense_failures)"
    ),
}
_BANDS = {
    "rank_1": (1, 1),
    "rank_2_5": (2, 5),
    "rank_6_20": (6, 20),
    "rank_over_20": (21, None),
}


@dataclass(frozen=True)
class _Group:
    """Items with a row of rank statistics; `why_empty`: the reason for an n of 0."""

    name: str
    items: Items
    side: str = "own"
    why_empty: str | None = None
    pooled_only: bool = False  # without rows by language


def _rows(inputs: Inputs) -> Iterator[Row]:
    """Dense checkpoints alone; pruned ones beside their base, on the items common to
    both."""
    for subject in sorted(inputs.checkpoints, key=lambda each: each.base is not None):
        for group in _groups(inputs, subject):
            cuts = [] if group.pooled_only else inputs.cuts[subject.task]
            for language, items in group.items.slices(cuts):
                own = {"language": language, "group": group.name, "side": group.side}
                yield subject.row | own | _statistics(items, group)


def _groups(inputs: Inputs, subject: Subject) -> Iterator[_Group]:
    """The groups of a checkpoint, and with a base the base's too; without common
    items, its own ranks on all."""
    own = inputs.of(subject)
    if subject.base is not None:
        yield from _compared_groups(own, inputs.alone(subject))
    elif own.any_ran("rank", "aligned_rank"):
        why = None if own.has("produced").any() else _NEEDS["dense_failures"]
        yield _Group("all", own)
        failures = own.take(own["produced"] == 0)
        yield _Group("dense_failures", failures, why_empty=why)


def _compared_groups(own: Items, alone: str | None) -> Iterator[_Group]:
    items = own.both
    if alone and own.any_ran("rank", "aligned_rank"):
        yield _Group("all", own)
    if not alone:
        if not items.any_ran("rank", "aligned_rank"):
            return
        yield _Group("all", items)
        yield _Group("all", items.of_base, "base")
    fates, produced = fates_of(items), items["base_produced"]
    for name, flags, unknown in (
        ("mc_only", fates == "mc_only", (fates == UNMEASURED).all()),
        ("dense_failures", produced == 0, np.isnan(produced).all()),
    ):
        why = alone or (_NEEDS[name] if unknown else None)
        here, apart = items.take(flags), alone is not None
        yield _Group(name, here, "own", why, apart)
        yield _Group(name, here.of_base, "base", why, apart)


def _statistics(items: Items, group: _Group) -> Row:
    ranked = items.measured("rank")
    done = ranked.take(ranked.has("rank"))
    row: Row = {"n": len(done), **items.left_out("rank_status")}
    if not row["n"]:
        nothing = "no item of this group has a measured rank"
        row["reason"] = group.why_empty or nothing
    row |= _ranks("rank", items)
    margins, far = known(done, "margin")
    if len(margins):
        row |= median("margin_median", margins, far["context"])
    if items.any_ran("aligned_rank"):
        row["aligned_n"] = int(items.has("aligned_rank").sum())
        row |= _ranks("aligned_rank", items)
    return row


def _ranks(name: str, items: Items) -> Row:
    """Median, quartiles and bands of the ranks of items that have one; empty without
    any."""
    ranks, items = known(items, name)
    if not len(ranks):
        return {}
    low, high = np.percentile(ranks, [25, 75]).tolist()
    row: Row = {f"{name}_q1": low, f"{name}_q3": high}
    row |= median(f"{name}_median", ranks, items["context"])
    for band, (first, last) in _BANDS.items():
        inside = (ranks >= first) & (ranks <= (last or np.inf))
        row |= rate(band.replace("rank", name), inside, items)
    return row


_PAINTS = {
    "_1": ("rank 1", 1.0),
    "_2_5": ("2-5", 0.68),
    "_6_20": ("6-20", 0.4),
    "_over_20": ("over 20", 0.16),
}
_PANELS = (  # group, whose ranks, title
    ("mc_only", "rank", "Picked only"),
    ("mc_only", "aligned_rank", "The same, aligned"),
    ("all", "rank", "All items"),
)

TABLE = Table(
    name="rank",
    title="How far down is the answer?",
    reading=(
        "The rank of the gold answer's first token in the whole vocabulary; 1 is the"
        " likeliest. An answer that is no longer said, but has rank 1, begins right and"
        " goes wrong. A demoted one has rank 2 to 20; an erased one is far below. The"
        " margin is its distance to the top token in nats. A model that answers in"
        " sentences says other words first. Aligned ranks are those after the dense"
        " model's own lead-in, for items where the dense model said a right answer."
    ),
    needs="the probe rank",
    columns=(
        *BY_LANGUAGE,
        *TEXT("group", "side"),
        *COUNTED,
        *RANK.estimates("rank_median"),
        *RANK("rank_q1", "rank_q3"),
        *PERCENTAGE.estimates(*_BANDS),
        *NATS.estimates("margin_median"),
        *COUNT("aligned_n"),
        *RANK.estimates("aligned_rank_median", n="aligned_n"),
        *RANK("aligned_rank_q1", "aligned_rank_q3", n="aligned_n"),
        *PERCENTAGE.estimates(
            *(band.replace("rank", "aligned_rank") for band in _BANDS), n="aligned_n"
        ),
    ),
    compute=_rows,
    figure=tuple(
        Bars(
            title,
            {
                f"{ranks}{band}": (name, "rank", alpha)
                for band, (name, alpha) in _PAINTS.items()
            },
            {"group": group},
            note=Note(
                f"{ranks}_median",
                lambda rank: "none" if rank is None else f"median {rank:,g}",
                {"group": group},
            ),
        )
        for group, ranks, title in _PANELS
    ),
    plotted=lambda frame: frame[frame["side"] == "own"],
    lacks=(
        Lack(
            "aligned_n",
            "the probe aligned_rank on a base and what is compared with it (for aligned"
            " ranks)",
        ),
    ),
)
