"""What changed between base and checkpoint: flipped answers, and how much of the accuracy is left.

Table `flips`: how many answers changed, even if the accuracy did not (Dutta et al., arXiv 2407.09141).

A flip is an item that was right in the base and is wrong here, or the reverse. Accuracy shows only their difference.
Items that are wrong in both, with different answers, have their own column. Greedy answers are compared like texts in
grading, choices by the option with the highest score.

`margin` splits the pooled items into thirds by the base's confidence. For greedy, this is the mean log-probability of
the answer's tokens. For choice, it is the difference in score of the gold option and the best other one, in nats.

Table `recovery_percent`: how much of the base's accuracy is left, 100 x compressed / base.

Both accuracies are over the items measured in both checkpoints (intervals: `evaluator.metrics.draws`). A choice that
only guesses still recovers a good part of the base's accuracy. So `above_guessing` counts only the part above the floor
of 1/K: (compressed - floor) / (base - floor). Row `mean` is the unweighted mean over the languages with a right answer
of the base.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from evaluator.metrics.columns import (
    COUNT,
    LANGUAGE,
    MCNEMAR,
    NATS,
    PERCENTAGE,
    REASON,
    SUBJECT,
    TEXT,
    Column,
    Row,
    columns_of,
)
from evaluator.metrics.counting import joined_reasons
from evaluator.metrics.draws import Kinds, intervals, over_languages
from evaluator.metrics.drops import CORRECT, UNPAIRED, floor_of, headroom, normalised, sides_of, why_unpaired
from evaluator.metrics.figure import Bars, Dots, Figure, Heat, Series, whole_percent
from evaluator.metrics.inputs import ALL, MEAN, Comparison, Inputs, slices
from evaluator.metrics.intervals import Floats
from evaluator.metrics.measures import as_floats, bounds, paired_p, rate
from evaluator.metrics.table import Holm, Lack, Table

THIRDS = ("lowest", "middle", "highest")
KINDS = ("right_to_wrong", "wrong_to_right", "wrong_to_other")
_ANSWER = {"greedy": "answer_said", "choice": "picked"}  # the column that identifies the answer


@dataclass(frozen=True, eq=False)
class _Paired:
    """One probe of a checkpoint and its base, on the items that both measured."""

    inputs: Inputs
    comparison: Comparison
    probe: str

    def row(self, language: str, items: pd.DataFrame) -> Row:
        row: Row = {**self.comparison.subject.row, "language": language, "probe": self.probe, "margin": ALL}
        row |= {"n": len(items), **self.comparison.counts(language, self.probe)}
        reason = self.comparison.reason or (None if len(items) else UNPAIRED)
        row["reason"] = joined_reasons(reason, why_unpaired(self.comparison, language, self.probe))
        return row | self._changes(items)

    def thirds(self, items: pd.DataFrame) -> Iterator[Row]:
        margins = _margins(items, self.probe)
        known = items[np.isfinite(margins)]
        margins = margins[np.isfinite(margins)]
        if len(known) < len(THIRDS):
            return
        order = np.argsort(margins, kind="stable")
        for name, rows in zip(THIRDS, np.array_split(order, len(THIRDS)), strict=True):
            row: Row = {**self.comparison.subject.row, "language": ALL, "probe": self.probe, "margin": name}
            row |= {"n": len(rows), "margin_from": margins[rows].min(), "margin_to": margins[rows].max()}
            yield row | self._changes(known.iloc[np.sort(rows)])

    def _changes(self, items: pd.DataFrame) -> Row:
        dense, pruned = sides_of(items, CORRECT[self.probe])
        before, after = sides_of(items, _ANSWER[self.probe])
        changed = (dense > pruned, dense < pruned, (dense + pruned == 0) & (before != after))
        flags = dict(zip(KINDS, (as_floats(each) for each in changed), strict=True))
        contexts = self.inputs.contexts_of(self.comparison.subject.task, items)
        row: Row = {name: int(each.sum()) for name, each in flags.items()}
        row |= {"flips": int((dense != pruned).sum()), "mcnemar_p": paired_p(dense, pruned)}
        for name, each in {"flip": as_floats(dense != pruned), **flags}.items():
            row |= rate(f"{name}_rate", each, contexts)
        return row


def _rows(inputs: Inputs) -> Iterator[Row]:
    """Per checkpoint with a base and probe: pooled, in thirds by the base's margin, and by language."""
    for comparison in inputs.comparisons().values():
        for probe in CORRECT:
            if not comparison.tells_of(probe):
                continue
            paired, here = _Paired(inputs, comparison, probe), comparison.measured(probe)
            languages = comparison.languages
            pooled, *by_language = [paired.row(language, items) for language, items in slices(here, languages)]
            yield from (pooled, *paired.thirds(here), *by_language)


def _margins(items: pd.DataFrame, probe: str) -> Floats:
    if probe == "choice":
        return np.abs(as_floats(items["choice_margin_dense"]))
    return as_floats(items["answer_logprob_dense"]) / as_floats(items["answer_tokens_dense"])


_PAINTS = {"right_to_wrong": ("lost", 1.0), "wrong_to_right": ("kept", 1.0), "wrong_to_other": ("muted", 0.35)}

TABLE = Table(
    name="flips",
    title="How many answers changed?",
    reading=(
        "Flips are items that changed from right to wrong, or from wrong to right. Accuracy shows only their "
        "difference. wrong to other: wrong in both checkpoints, with another answer. margin splits the pooled items "
        "into thirds by the base's confidence in its answer, in nats. Flips are harmless noise only if they stay in "
        "the lowest third."
    ),
    needs="the probe greedy or choice on a checkpoint and its base",
    columns=(
        *SUBJECT,
        LANGUAGE,
        *columns_of(TEXT, "probe", "margin"),
        Column("margin_from", NATS),
        Column("margin_to", NATS),
        *columns_of(COUNT, "n", "excluded", "engine_error", "unpaired", "flips", *KINDS),
        Column("flip_rate", PERCENTAGE, interval=True),
        *(Column(f"{name}_rate", PERCENTAGE, name.replace("_", " "), interval=True) for name in KINDS),
        *MCNEMAR,
        REASON,
    ),
    compute=_rows,
    figure=Figure(
        tuple(
            Bars(
                title,
                {f"{name}_rate": (name.replace("_", " "), *paint) for name, paint in _PAINTS.items()},
                {"probe": probe},
                legend=4 * (probe == "greedy"),
            )
            for probe, title in (("greedy", "Open answers that changed, %"), ("choice", "Choices that changed, %"))
        ),
        rows=lambda frame: frame[(frame["margin"] == ALL) & (frame["n"] > 0)],
    ),
    corrections=(Holm(("task", "language", "probe", "margin")),),
    lacks=(Lack("probe", "the probe greedy", "greedy"), Lack("probe", "the probe choice", "choice")),
)


_RATIOS = ("recovery", "above_guessing")


def _recovery_percent_rows(inputs: Inputs) -> Iterator[Row]:
    """Per checkpoint with a base and probe: pooled (`all`), the mean over languages (`mean`), and by language."""
    for comparison in inputs.comparisons().values():
        for probe in CORRECT:
            if not comparison.tells_of(probe):
                continue
            measured = slices(comparison.measured(probe), comparison.languages)
            pooled, *by_language = [_recovered(inputs, comparison, probe, *each) for each in measured]
            yield from (pooled, *_mean(inputs, comparison, pooled, by_language), *by_language)


def _left(dense: Floats, pruned: Floats, floor: Floats) -> Floats:
    return np.asarray(1 - normalised(dense, pruned, floor))


def _values(items: pd.DataFrame, probe: str, name: str) -> tuple[list[Floats], Kinds]:
    """The arguments of `_left`, as a number per item, and the possible kinds of items."""
    values, kinds = headroom(items, probe)
    if name == "above_guessing":
        return values, kinds
    return [*values[:2], np.zeros(len(items))], [(*kind[:2], 0.0) for kind in kinds]


def _recovered(inputs: Inputs, comparison: Comparison, probe: str, language: str, items: pd.DataFrame) -> Row:
    row: Row = {**comparison.subject.row, "language": language, "probe": probe, "n": len(items)}
    row |= comparison.counts(language, probe)
    left_out = why_unpaired(comparison, language, probe)
    if items.empty:
        return row | {"reason": joined_reasons(comparison.reason or UNPAIRED, left_out)}
    dense, pruned = (float(each.mean()) for each in sides_of(items, CORRECT[probe]))
    row |= {"base_accuracy": dense, "accuracy": pruned}
    contexts, reasons = inputs.contexts_of(comparison.subject.task, items), [left_out]
    for name, floor in (("recovery", 0.0), ("above_guessing", floor_of(items, probe, "_dense"))):
        if name == "above_guessing" and not floor:
            continue
        if dense <= floor:
            reasons.append(f"{name.replace('_', ' ')}: the base is right for {dense:.3f}, not above {floor:g}")
            continue
        row[name] = (pruned - floor) / (dense - floor)
        values, kinds = _values(items, probe, name)
        row |= bounds(name, *intervals(_left, values, contexts, kinds))
    return row | {"reason": joined_reasons(*reasons)}


def _mean(inputs: Inputs, comparison: Comparison, pooled: Row, by_language: Sequence[Row]) -> list[Row]:
    """The mean over the languages with a defined recovery; empty for fewer than two languages."""
    if len(by_language) < 2:
        return []
    defined = [row for row in by_language if row.get("recovery") is not None]
    same = {name: pooled.get(name) for name in (*(each.name for each in SUBJECT), "probe")}
    reason = f"unweighted mean over {len(defined)} of {len(by_language)} languages"
    mean: Row = same | {"language": MEAN, "n": sum(row["n"] for row in defined), "reason": reason}
    for name in _RATIOS:
        here = {row["language"]: row[name] for row in defined if row.get(name) is not None}
        if not here:
            continue
        mean[name] = float(np.mean([*here.values()]))
        items = comparison.measured(pooled["probe"])
        items = items[items["language"].isin(here)]
        values, kinds = _values(items, pooled["probe"], name)
        contexts = inputs.contexts_of(comparison.subject.task, items)
        over, parts, shared = over_languages(_left, values, items["language"], kinds)
        mean |= bounds(name, *intervals(over, parts, contexts, shared))
    return [mean]


RECOVERY_PERCENT = Table(
    name="recovery_percent",
    title="How much of the accuracy is left?",
    reading=(
        "Recovery is the checkpoint's accuracy in percent of its base's, on the same items: 100 is no change. For "
        "choices, above guessing counts only the part above 1/K, because guessing alone recovers the rest."
    ),
    needs="the probe greedy or choice on a checkpoint and its base",
    columns=(
        *SUBJECT,
        LANGUAGE,
        Column("probe", TEXT),
        *columns_of(COUNT, "n", "excluded", "engine_error", "unpaired"),
        *columns_of(PERCENTAGE, "base_accuracy", "accuracy"),
        *columns_of(PERCENTAGE, *_RATIOS, interval=True),
        REASON,
    ),
    compute=_recovery_percent_rows,
    figure=Figure(
        (
            Dots(
                "Accuracy in % of the base's",
                (
                    Series("recovery", "greedy", "open", {"probe": "greedy"}),
                    Series("recovery", "choice", "choice", {"probe": "choice"}),
                ),
                "share",
                width=1.15,
                linked=True,
                line=1,
                text=whole_percent,
                legend=4,
            ),
            Heat("Open by language, % of the base's", "recovery", "greedy", {"probe": "greedy"}),
        ),
        rows=lambda frame: frame[frame["recovery"].notna()],
    ),
    lacks=(Lack("probe", "the probe greedy", "greedy"), Lack("probe", "the probe choice", "choice")),
)
