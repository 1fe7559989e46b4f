"""What changed between base and checkpoint: fates of known answers, flips, and how much
of the accuracy is left.

Table `fates`: what became of the answers that the dense model knew
(`evaluator.metrics.fates`).

The share of mc_only is the dissociation rate. `mc_only_corrected` subtracts the lucky
guesses among K options. If U items are truly not recognised, chance picks U/K, and U(1
- 1/K) count as lost. So each lost item represents 1/(K - 1) lucky guesses. The result
is not clipped: below zero, chance explains more than was measured. A checkpoint with
the weights and configuration of its base is a re-run: its mc_only is noise of the
measurement, the `noise_floor` in the rows of the pruned checkpoints of that base.

Table `flips`: how many answers changed, even if the accuracy did not (Dutta et al.,
arXiv 2407.09141).

A flip is an item that was right in the base and is wrong here, or the reverse. Items
that are wrong in both, with different answers, have their own column. Greedy answers
are compared like texts in grading, choices by the option with the highest score.
`margin` splits the pooled items into thirds by the base's confidence, in nats: the mean
log-probability of a greedy answer's tokens, or the score of the gold option minus the
best other one's.

Table `recovery_percent`: how much of the base's accuracy is left, 100 x compressed /
base.

Both accuracies are over the items measured in both checkpoints (intervals:
`evaluator.metrics.bootstrap`). A choice that only guesses still recovers a good part. So
`above_guessing` counts only the part above the floor of 1/K: (compressed - floor) /
(base - floor). Row `mean` is the unweighted mean over the languages with a right answer
of the base.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

import evaluator.metrics.columns as col
from evaluator.metrics import fates
from evaluator.metrics.bootstrap import Kinds, intervals, over_languages
from evaluator.metrics.columns import Column, Row
from evaluator.metrics.exclusions import joined_reasons
from evaluator.metrics.fates import (
    CORRECT,
    FATES,
    UNMEASURED,
    UNPAIRED,
    item_fates,
    sides_of,
)
from evaluator.metrics.inputs import ALL, MEAN, Comparison, Inputs, slices
from evaluator.metrics.intervals import Floats, mcnemar_p
from evaluator.metrics.measures import as_floats, bounds, difference, rate
from evaluator.metrics.table import (
    Bars,
    Dots,
    Heat,
    Holm,
    Lack,
    Note,
    Series,
    Table,
    whole_percent,
)


def _fates_rows(inputs: Inputs) -> Iterator[Row]:
    """One row per checkpoint with a base, task and language, and a pooled row `all`."""
    comparisons = inputs.comparisons()
    again = {
        key: list(_fates(inputs, each))
        for key, each in comparisons.items()
        if each.subject.re_run
    }
    place = ("task", "base", "language")
    noise = {
        tuple(row[name] for name in place): row["dissociation_rate"]
        for rows in again.values()
        for row in rows
    }
    for key, each in comparisons.items():
        for row in again[key] if each.subject.re_run else _fates(inputs, each):
            yield row | {
                "noise_floor": (
                    None
                    if each.subject.re_run
                    else noise.get(tuple(row[name] for name in place))
                )
            }


def _fates(inputs: Inputs, comparison: Comparison) -> Iterator[Row]:
    fates = item_fates(comparison.outcomes)
    for language, items in slices(
        comparison.outcomes.assign(fate=fates), comparison.languages
    ):
        known, measured = items[items["fate"].isin(FATES)], items["fate"] != UNMEASURED
        reason = comparison.reason
        if not reason and known.empty:
            reason = "the dense model both produced and recognised none of the items"
            if not measured.any():
                reason = (
                    "no item was measured with both probes greedy and choice in both"
                    " checkpoints"
                )
            if items.empty:
                reason = (
                    "no item of this language is common to the checkpoint and its base"
                )
        is_fate = {fate: as_floats(known["fate"] == fate) for fate in FATES}
        row: Row = {
            **comparison.subject.row,
            "re_run": comparison.subject.re_run,
            "language": language,
            "n": len(known),
            "items": int(measured.sum()),
            **comparison.counts(language, "greedy", "choice"),
            **{fate: int(flags.sum()) for fate, flags in is_fate.items()},
            "reason": reason,
        }
        contexts = inputs.contexts_of(comparison.subject.task, known)
        for fate, flags in is_fate.items():
            row |= rate(f"{fate}_rate", flags, contexts)
        row |= rate("dissociation_rate", is_fate["mc_only"], contexts)
        guesses = 1 / (as_floats(known["options_pruned"]) - 1)
        corrected = is_fate["mc_only"] - is_fate["lost"] * guesses
        yield row | difference(
            "mc_only_corrected",
            corrected,
            contexts,
            low=-float(guesses.max(initial=0.0)),
        )


FATES_TABLE = Table(
    name="fates",
    title="What became of the answers that the dense model knew?",
    reading=(
        "An answer is known if the dense model both produced and recognised it. kept:"
        " the pruned model still does both. mc_only: it still picks the answer but no"
        " longer says it; this share is the dissociation rate. produced_only: it says"
        " the answer but no longer picks it. lost: neither, which does not prove the"
        " answer erased: beams, samples or its rank may still find it."
        " mc_only_corrected subtracts what guessing among the options would give."
        " noise_floor is the dissociation rate of the dense model evaluated again,"
        " where the run has that: the noise of the measurement."
    ),
    needs=(
        "the probes greedy and choice on a dense checkpoint and on a pruned one that"
        " names it as its base"
    ),
    columns=(
        *col.SUBJECT,
        Column("re_run", col.FLAG),
        col.LANGUAGE,
        *col.COUNT("n", "items", "excluded", "engine_error", "unpaired"),
        *(Column(fate, col.COUNT, fate) for fate in FATES),
        *(
            Column(f"{fate}_rate", col.PERCENTAGE, f"{fate} rate", interval=True)
            for fate in FATES
        ),
        Column("dissociation_rate", col.PERCENTAGE, interval=True),
        Column("noise_floor", col.PERCENTAGE, "noise floor (re-run)"),
        Column(
            "mc_only_corrected",
            col.PERCENTAGE,
            "mc_only, chance-corrected",
            interval=True,
        ),
    ),
    compute=_fates_rows,
    figure=(
        Bars(
            "What became of the answers that the dense model knew, %",
            {f"{fate}_rate": (fate, fate, 1.0) for fate in FATES},
            width=1.35,
            note=Note("n", lambda n: f"n = {n or 0:.0f}"),
        ),
        Heat("mc_only by language, %", "mc_only_rate", "mc_only"),
    ),
    plotted=lambda frame: frame[
        frame.groupby(["task", "checkpoint"])["n"].transform("max") > 0
    ],
)

THIRDS = ("lowest", "middle", "highest")
KINDS = ("right_to_wrong", "wrong_to_right", "wrong_to_other")


def _flips_rows(inputs: Inputs) -> Iterator[Row]:
    """Per checkpoint with a base and probe: pooled, in thirds by the base's margin,
    and by language."""
    for comparison in inputs.comparisons().values():
        for probe in CORRECT:
            if not comparison.tells_of(probe):
                continue
            own = {**comparison.subject.row, "probe": probe}
            here = comparison.measured(probe)
            rows: list[Row] = []
            for language, items in slices(here, comparison.languages):
                reason = comparison.reason or (None if len(items) else UNPAIRED)
                reason = joined_reasons(
                    reason, fates.why_unpaired(comparison, language, probe)
                )
                row = own | {
                    "language": language,
                    "margin": ALL,
                    "n": len(items),
                    "reason": reason,
                }
                row |= comparison.counts(language, probe)
                rows.append(row | _changes(inputs, comparison, probe, items))
            if probe == "choice":
                margins = np.abs(as_floats(here["choice_margin_dense"]))
            else:
                margins = as_floats(here["answer_logprob_dense"]) / as_floats(
                    here["answer_tokens_dense"]
                )
            known, margins = here[~np.isnan(margins)], margins[~np.isnan(margins)]
            thirds = np.array_split(np.argsort(margins, kind="stable"), len(THIRDS))
            for at, name in enumerate(THIRDS if len(known) >= len(THIRDS) else ()):
                some = np.sort(thirds[at])
                row = own | {"language": ALL, "margin": name, "n": len(some)}
                row |= {
                    "margin_from": margins[some].min(),
                    "margin_to": margins[some].max(),
                }
                rows.insert(
                    1 + at, row | _changes(inputs, comparison, probe, known.iloc[some])
                )
            yield from rows


def _changes(
    inputs: Inputs, comparison: Comparison, probe: str, items: pd.DataFrame
) -> Row:
    dense, pruned = sides_of(items, CORRECT[probe])
    # they identify the answer
    before, after = sides_of(
        items, {"greedy": "answer_said", "choice": "picked"}[probe]
    )
    changed = (
        dense > pruned,
        dense < pruned,
        (dense + pruned == 0) & (before != after),
    )
    flags = dict(zip(KINDS, (as_floats(each) for each in changed), strict=True))
    contexts = inputs.contexts_of(comparison.subject.task, items)
    row: Row = {name: int(each.sum()) for name, each in flags.items()}
    row |= {
        "flips": int((dense != pruned).sum()),
        "mcnemar_p": mcnemar_p(dense, pruned),
    }
    for name, each in {"flip": as_floats(dense != pruned), **flags}.items():
        row |= rate(f"{name}_rate", each, contexts)
    return row


_PAINTS = {
    "right_to_wrong": ("lost", 1.0),
    "wrong_to_right": ("kept", 1.0),
    "wrong_to_other": ("muted", 0.35),
}
_PARTS = {
    f"{name}_rate": (name.replace("_", " "), *paint) for name, paint in _PAINTS.items()
}

FLIPS = Table(
    name="flips",
    title="How many answers changed?",
    reading=(
        "Flips are items that changed from right to wrong, or from wrong to right."
        " Accuracy shows only their difference. wrong to other: wrong in both"
        " checkpoints, with another answer. margin splits the pooled items into thirds"
        " by the base's confidence in its answer, in nats. Flips are harmless noise"
        " only if they stay in the lowest third."
    ),
    needs="the probe greedy or choice on a checkpoint and its base",
    columns=(
        *col.BY_LANGUAGE,
        *col.TEXT("probe", "margin"),
        *col.NATS("margin_from", "margin_to"),
        *col.COUNT("n", "excluded", "engine_error", "unpaired", "flips", *KINDS),
        Column("flip_rate", col.PERCENTAGE, interval=True),
        *(
            Column(
                f"{name}_rate", col.PERCENTAGE, name.replace("_", " "), interval=True
            )
            for name in KINDS
        ),
        *col.MCNEMAR,
    ),
    compute=_flips_rows,
    figure=tuple(
        Bars(title, _PARTS, {"probe": probe})
        for probe, title in (
            ("greedy", "Open answers that changed, %"),
            ("choice", "Choices that changed, %"),
        )
    ),
    plotted=lambda frame: frame[(frame["margin"] == ALL) & (frame["n"] > 0)],
    corrections=(Holm(("task", "language", "probe", "margin")),),
    lacks=(
        Lack("probe", "the probe greedy", "greedy"),
        Lack("probe", "the probe choice", "choice"),
    ),
)


def _recovery_percent_rows(inputs: Inputs) -> Iterator[Row]:
    """Per checkpoint with a base and probe: pooled (`all`), the mean over languages
    (`mean`), and by language."""
    for comparison in inputs.comparisons().values():
        for probe in CORRECT:
            if comparison.tells_of(probe):
                measured = slices(comparison.measured(probe), comparison.languages)
                pooled, *by_language = [
                    _recovered(inputs, comparison, probe, *each) for each in measured
                ]
                yield pooled
                if len(by_language) > 1:
                    yield _mean_recovered(inputs, comparison, probe, by_language)
                yield from by_language


def _left(dense: Floats, pruned: Floats, floor: Floats) -> Floats:
    return np.asarray(1 - fates.normalised(dense, pruned, floor))


def _values(items: pd.DataFrame, probe: str, name: str) -> tuple[list[Floats], Kinds]:
    """The arguments of `_left`, as a number per item, and the possible kinds of
    items."""
    values, kinds = fates.headroom(items, probe)
    if name == "above_guessing":
        return values, kinds
    return [*values[:2], np.zeros(len(items))], [(*kind[:2], 0.0) for kind in kinds]


def _recovered(
    inputs: Inputs,
    comparison: Comparison,
    probe: str,
    language: str,
    items: pd.DataFrame,
) -> Row:
    row: Row = {
        **comparison.subject.row,
        "language": language,
        "probe": probe,
        "n": len(items),
    }
    row |= comparison.counts(language, probe)
    left_out = fates.why_unpaired(comparison, language, probe)
    if items.empty:
        return row | {"reason": joined_reasons(comparison.reason or UNPAIRED, left_out)}
    dense, pruned = (float(each.mean()) for each in sides_of(items, CORRECT[probe]))
    row |= {"base_accuracy": dense, "accuracy": pruned}
    contexts, reasons = inputs.contexts_of(comparison.subject.task, items), [left_out]
    for name, floor in (
        ("recovery", 0.0),
        ("above_guessing", fates.floor_of(items, probe, "_dense")),
    ):
        if name == "above_guessing" and not floor:
            continue
        if dense <= floor:
            reasons.append(
                f"{name.replace('_', ' ')}: the base is right for {dense:.3f}, not"
                f" above {floor:g}"
            )
            continue
        row[name] = (pruned - floor) / (dense - floor)
        values, kinds = _values(items, probe, name)
        row |= bounds(name, *intervals(_left, values, contexts, kinds))
    return row | {"reason": joined_reasons(*reasons)}


def _mean_recovered(
    inputs: Inputs, comparison: Comparison, probe: str, by_language: Sequence[Row]
) -> Row:
    defined = [row for row in by_language if row.get("recovery") is not None]
    reason = f"unweighted mean over {len(defined)} of {len(by_language)} languages"
    mean: Row = {
        **comparison.subject.row,
        "probe": probe,
        "language": MEAN,
        "reason": reason,
    }
    mean["n"] = sum(row["n"] for row in defined)
    for name in ("recovery", "above_guessing"):
        here = {
            row["language"]: row[name] for row in defined if row.get(name) is not None
        }
        if not here:
            continue
        mean[name] = float(np.mean([*here.values()]))
        items = comparison.measured(probe)
        items = items[items["language"].isin(here)]
        values, kinds = _values(items, probe, name)
        contexts = inputs.contexts_of(comparison.subject.task, items)
        over, parts, shared = over_languages(_left, values, items["language"], kinds)
        mean |= bounds(name, *intervals(over, parts, contexts, shared))
    return mean


_OF_PROBES = tuple(
    Series("recovery", probe, label, {"probe": probe})
    for probe, label in (("greedy", "open"), ("choice", "choice"))
)

RECOVERY_PERCENT = Table(
    name="recovery_percent",
    title="How much of the accuracy is left?",
    reading=(
        "Recovery is the checkpoint's accuracy in percent of its base's, on the same"
        " items: 100 is no change. For choices, above guessing counts only the part"
        " above 1/K, because guessing alone recovers the rest."
    ),
    needs="the probe greedy or choice on a checkpoint and its base",
    columns=(
        *col.BY_LANGUAGE,
        Column("probe", col.TEXT),
        *col.COUNT("n", "excluded", "engine_error", "unpaired"),
        *col.PERCENTAGE("base_accuracy", "accuracy"),
        *col.PERCENTAGE("recovery", "above_guessing", interval=True),
    ),
    compute=_recovery_percent_rows,
    figure=(
        Dots(
            "Accuracy in % of the base's",
            _OF_PROBES,
            "share",
            width=1.15,
            linked=True,
            line=1,
            text=whole_percent,
        ),
        Heat(
            "Open by language, % of the base's",
            "recovery",
            "greedy",
            {"probe": "greedy"},
        ),
    ),
    plotted=lambda frame: frame[frame["recovery"].notna()],
    lacks=(
        Lack("probe", "the probe greedy", "greedy"),
        Lack("probe", "the probe choice", "choice"),
    ),
)
