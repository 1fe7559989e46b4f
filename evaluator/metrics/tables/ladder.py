"""Drops relative to headroom: by rung of help, and of producing beside recognising
(Delta_PR).

Table `ladder`: the drop of open, shown and choice on the items measured in all
evaluated rungs. The rows also have the perplexity on the first task of text by name,
because this metric may hide the drop.

Table `pr_gap`: does producing an answer degrade more than recognising it?

    Delta_PR = d_open - d_choice,   d = (acc_dense - acc_pruned) / (acc_dense -
    floor)

(The Benchmark Illusion, Eq. 1.) Both drops are on the same items: those with both
probes measured in both checkpoints. If dense accuracy is at or under the floor,
Delta_PR is undefined, with the reason."""

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import pandas as pd

import evaluator.metrics.columns as col
from evaluator.metrics.bootstrap import Kinds, intervals, over_languages
from evaluator.metrics.columns import Column, Row
from evaluator.metrics.exclusions import joined_reasons
from evaluator.metrics.fates import (
    CORRECT,
    floor_of,
    headroom,
    normalised,
    over_headroom,
    sides_of,
)
from evaluator.metrics.inputs import ALL, MEAN, SIDES, Comparison, Inputs
from evaluator.metrics.intervals import Floats, ItemNumbers
from evaluator.metrics.measures import bounds, language_mean, paired_difference
from evaluator.metrics.table import Axis, Dots, Heat, Holm, Lack, Series, Table, amount
from evaluator.metrics.tables.fidelity import PERPLEXITY, first_readings

RUNGS = {
    "open": ("open", "greedy"),
    "shown": ("shown", "greedy"),
    "choice": ("open", "choice"),
}


def _rows(inputs: Inputs) -> Iterator[Row]:
    read = first_readings(inputs)
    for key, opened in inputs.comparisons("open").items():
        rungs: dict[str, tuple[Comparison, pd.DataFrame]] = {}
        for rung, (format, probe) in RUNGS.items():
            each = inputs.comparisons(format)[key]
            if each.outcomes[f"{probe}_status_pruned"].notna().any():
                rungs[rung] = each, each.measured(probe)
        if not rungs:
            yield {
                **opened.subject.row,
                "language": ALL,
                "n": 0,
                "reason": opened.reason or "no format was asked",
            }
            continue
        common = set.intersection(*(set(items["item"]) for _, items in rungs.values()))
        for rung, (each, items) in rungs.items():
            counts = each.counts(ALL, RUNGS[rung][1]) | read.get(
                opened.subject.checkpoint, {}
            )
            for row in _rung_rows(
                inputs, each, items[items["item"].isin(common)], RUNGS[rung][1]
            ):
                yield {"rung": rung, **row, **counts}


def _rung_rows(
    inputs: Inputs, comparison: Comparison, items: pd.DataFrame, probe: str
) -> list[Row]:
    row: Row = {
        **comparison.subject.row,
        "n": len(items),
        "languages": int(items["language"].nunique()),
    }
    if items.empty:
        return [
            row
            | {
                "language": ALL,
                "reason": comparison.reason or "no item is measured in every rung",
            }
        ]
    contexts = inputs.contexts_of(comparison.subject.task, items)
    dense, pruned = sides_of(items, CORRECT[probe])
    floor = floor_of(items, probe, "_dense")
    relative, reason = over_headroom(
        float((dense - pruned).mean()), float(dense.mean()), floor
    )
    pooled: Row = {
        "language": ALL,
        "dense": float(dense.mean()),
        "pruned": float(pruned.mean()),
        **paired_difference("drop", (dense, pruned), contexts),
        "normalised_drop": relative,
        "reason": reason and f"{probe}: {reason}",
    }
    values, kinds = headroom(items, probe)
    if relative is not None:
        pooled |= bounds(
            "normalised_drop", *intervals(normalised, values, contexts, kinds)
        )
    return [row | pooled, row | _language_means(items, probe, contexts)]


def _language_means(items: pd.DataFrame, probe: str, contexts: ItemNumbers) -> Row:
    """The unweighted mean of the languages' drops; for the normalised drop, of the
    languages with a defined one."""
    dense, pruned = sides_of(items, CORRECT[probe])
    sides = (
        pd.DataFrame({"dense": dense, "pruned": pruned})
        .groupby(items["language"].to_numpy())
        .mean()
    )
    row: Row = {"language": MEAN, **sides.mean()} | language_mean(
        "drop", dense - pruned, items, contexts, low=-1.0
    )
    values, kinds = headroom(items, probe)
    by_language = (
        pd.DataFrame(dict(enumerate(values)))
        .groupby(items["language"].to_numpy())
        .mean()
    )
    relative = pd.Series(
        normalised(*by_language.to_numpy().T), by_language.index
    ).dropna()
    if len(relative) < len(by_language):
        row["reason"] = (
            f"normalised over the {len(relative)} of {len(by_language)} languages where"
            " it is defined"
        )
    if len(relative):
        row["normalised_drop"] = float(relative.mean())
        here = items["language"].isin(relative.index).to_numpy()
        values = [each[here] for each in values]
        mean, parts, shared = over_languages(
            normalised, values, items["language"][here], kinds
        )
        row |= bounds(
            "normalised_drop", *intervals(mean, parts, contexts[here], shared)
        )
    return row


_PAINTS = {"open": "greedy", "shown": "shown", "choice": "choice"}
_PERPLEXITIES = (
    Series("perplexity_dense", "muted", "base", {"rung": "open"}, hollow=True),
    Series("perplexity", "rank", "perplexity", {"rung": "open"}),
)
_DROPS: tuple[tuple[str, str, Axis], ...] = (
    ("drop", "Drop in points", "points"),
    ("normalised_drop", "Drop relative to headroom", "changes"),
)

TABLE = Table(
    name="ladder",
    title="Does more support mean less damage?",
    reading=(
        "The drop from the dense model with nothing shown (open), with candidates"
        " listed in the prompt (shown), and with options only scored (choice). The"
        " second panel divides each drop by its headroom. Perplexity, if measured, is"
        " shown too: it may hardly move while answers go unsaid."
    ),
    needs=(
        "the probes greedy and choice, and the formats open and shown, on a checkpoint"
        " and its base"
    ),
    columns=(
        *col.BY_LANGUAGE,
        Column("rung", col.TEXT),
        *col.COUNT("n", "excluded", "engine_error", "unpaired", "languages"),
        *col.PERCENTAGE("dense", "pruned"),
        Column("drop", col.POINTS, interval=True),
        *col.MCNEMAR,
        Column("normalised_drop", col.RATIO, interval=True),
        Column("perplexity_task", col.TEXT),
        *PERPLEXITY("perplexity_dense", "perplexity"),
    ),
    compute=_rows,
    figure=(
        *(
            Dots(
                title,
                tuple(
                    Series(column, colour, rung, {"rung": rung})
                    for rung, colour in _PAINTS.items()
                ),
                axis,
                linked=True,
            )
            for column, title, axis in _DROPS
        ),
        Dots(
            "Perplexity, {perplexity_task}",
            _PERPLEXITIES,
            "amounts",
            width=0.7,
            linked=True,
            text=amount,
        ),
    ),
    plotted=lambda frame: frame[frame["n"] > 0],
    corrections=(Holm(("task", "language", "rung")),),
    lacks=(
        Lack("rung", "the probe greedy (the rung open)", "open"),
        Lack("rung", "the format shown with the probe greedy", "shown"),
        Lack("rung", "the probe choice (its rung)", "choice"),
    ),
)

_MEANS = (
    "open_dense",
    "open_pruned",
    "open_floor",
    "choice_dense",
    "choice_pruned",
    "choice_floor",
)


def _pr_gap_rows(inputs: Inputs) -> Iterator[Row]:
    """Per checkpoint: pooled over items (`all`), as the mean over languages
    (`mean`), and for each language."""
    for each in inputs.comparisons().values():
        status = each.outcomes[
            [f"{probe}_status_{side}" for probe in CORRECT for side in SIDES]
        ].notna()
        if not each.reason and not status.any(axis=0).all():
            yield {
                **each.subject.row,
                "language": ALL,
                "n": 0,
                "reason": "needs the probes greedy and choice",
            }
            continue
        pooled, *by_language = [
            _gap(inputs, each, language) for language in (ALL, *each.languages)
        ]
        yield pooled
        if by_language:
            yield _mean_gap(inputs, each, pooled, by_language)
        yield from by_language


def delta_pr_of(*means: Floats) -> Floats:
    """Delta_PR from the means: both accuracies and the floor of open, then of
    choice."""
    return np.asarray(normalised(*means[:3]) - normalised(*means[3:]))


def _values(items: pd.DataFrame) -> tuple[list[Floats], Kinds]:
    """The arguments of `delta_pr_of`, as a number per item, and the possible kinds
    of items."""
    (opened, open_kinds), (chosen, choice_kinds) = (
        headroom(items, probe) for probe in CORRECT
    )
    return [*opened, *chosen], [
        (*one, *other) for one, other in product(open_kinds, choice_kinds)
    ]


def _gap(inputs: Inputs, comparison: Comparison, language: str) -> Row:
    both = comparison.measured("greedy", "choice", language=language)
    counts = comparison.counts(language, "greedy", "choice")
    row: Row = {
        **comparison.subject.row,
        "language": language,
        "n": len(both),
        **counts,
    }
    if both.empty:
        return row | {
            "reason": comparison.reason
            or "no item is measured with both probes in both checkpoints"
        }
    values, kinds = _values(both)
    means = [float(each.mean()) for each in values]
    row |= dict(zip(_MEANS, means, strict=True)) | {
        "languages": int(both["language"].nunique())
    }
    del row["open_floor"]  # it is 0
    reasons = []
    for name, probe, (dense, pruned, floor) in (
        ("d_open", "greedy", means[:3]),
        ("d_choice", "choice", means[3:]),
    ):
        row[name], reason = over_headroom(dense - pruned, dense, floor)
        reasons.append(reason and f"{probe}: {reason}")
    row["reason"] = joined_reasons(*reasons)
    if not any(reasons):
        row["delta_pr"] = row["d_open"] - row["d_choice"]
        contexts = inputs.contexts_of(comparison.subject.task, both)
        row |= bounds("delta_pr", *intervals(delta_pr_of, values, contexts, kinds))
    return row


def _mean_gap(
    inputs: Inputs, comparison: Comparison, pooled: Row, by_language: Sequence[Row]
) -> Row:
    """Delta_PR as the unweighted mean of the languages with a defined one."""
    defined = [row for row in by_language if row.get("delta_pr") is not None]
    undefined = [
        str(row["language"]) for row in by_language if row.get("delta_pr") is None
    ]
    row: Row = {
        **comparison.subject.row,
        "language": MEAN,
        "languages": len(defined),
        "n": sum(each["n"] for each in defined),
        "reason": joined_reasons(
            comparison.reason,
            f"undefined in: {', '.join(undefined)}" if undefined else None,
        ),
    }
    row |= {name: pooled.get(name) for name in ("excluded", "engine_error", "unpaired")}
    if not defined:
        return row
    averaged = [name for name in _MEANS if name != "open_floor"] + [
        "d_open",
        "d_choice",
        "delta_pr",
    ]
    row |= {name: float(np.mean([each[name] for each in defined])) for name in averaged}
    both = comparison.measured("greedy", "choice")
    both = both[both["language"].isin([each["language"] for each in defined])]
    values, kinds = _values(both)
    mean, parts, shared = over_languages(delta_pr_of, values, both["language"], kinds)
    return row | bounds(
        "delta_pr",
        *intervals(
            mean, parts, inputs.contexts_of(comparison.subject.task, both), shared
        ),
    )


_TWICE = (
    Series("delta_pr", "mc_only", "pooled over items", shift=-0.12),
    Series(
        "delta_pr",
        "mc_only",
        "mean over languages",
        {"language": MEAN},
        0.12,
        hollow=True,
    ),
)

PR_GAP = Table(
    name="pr_gap",
    title="Does producing suffer more than recognising?",
    reading=(
        "Delta_PR is the drop of open minus the drop of choice, each relative to its"
        " headroom. Above zero, answers became harder to say than to recognise; at or"
        " below zero, recognition suffers at least as much."
    ),
    needs="the probes greedy and choice on a checkpoint and its base",
    columns=(
        *col.BY_LANGUAGE,
        *col.COUNT("n", "excluded", "engine_error", "unpaired", "languages"),
        *col.PERCENTAGE("open_dense", "open_pruned"),
        Column("d_open", col.RATIO, "d open"),
        *col.PERCENTAGE("choice_dense", "choice_pruned"),
        Column("choice_floor", col.SHARE),
        Column("d_choice", col.RATIO),
        Column("delta_pr", col.RATIO, "Delta_PR", interval=True),
    ),
    compute=_pr_gap_rows,
    figure=(
        Dots("Delta_PR = d_open - d_choice", _TWICE, "changes"),
        Heat(
            "Delta_PR by language",
            "delta_pr",
            "mc_only",
            width=1.15,
            negative="negative",
            text=lambda value: f"{value:+.2f}".replace("-", col.MINUS),
        ),
    ),
    plotted=lambda frame: frame[
        frame.groupby(["task", "checkpoint"])["delta_pr"].transform("count") > 0
    ],
)
