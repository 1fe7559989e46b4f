"""Table `matching`: accuracy if a matcher model may also accept a response, and how
far graders agree.

It has rows for greedy answers in every format with verdicts (one response to an
item), and for beams and samples (several). An item is right

- for containment, if one of its responses contains a gold answer;
- for a matcher, also if the matcher accepts any other response;
- for the panel, if a majority of its matchers holds it right (a tie is a no). With
  `resurface match --fit-only` a matcher that is unfit by its control pairs has no
  vote; the reason names an unfit one.

All graders of a checkpoint are compared on the same items: those that each grader
has the verdicts to decide.

Agreement between two graders is the share of equal verdicts. Scott's pi removes the
chance agreement of two graders that accept equally often (W. A. Scott, Public
Opinion Quarterly 19, 1955):

    pi = (p_o - p_e) / (1 - p_e),   p_e = p^2 + (1 - p)^2,   p the mean of both
    graders' shares of yes

Two matchers are compared on the single responses that both judged; a matcher and
containment on the items with verdicts on all responses (`resurface match --all`).
There is no pi if a grader has fewer than `LEAST` yes or no verdicts.

`corrected` is the accuracy of greedy answers without the grader's error (table
`judges`). Answers that contain a gold answer are right. The share of right ones
among the others follows from the share that the grader accepts and its error rates
on control pairs. The interval has both errors: contexts get random weights, and
sensitivity and specificity are drawn from their Jeffreys posteriors."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, cycle

import numpy as np
import pandas as pd

import evaluator.metrics.columns as col
from evaluator.metrics.bootstrap import DRAWS, intervals
from evaluator.metrics.columns import Column, Row
from evaluator.metrics.exclusions import LEAST, joined_reasons, left_out_of
from evaluator.metrics.fates import HIT
from evaluator.metrics.inputs import ALL, ITEM, Inputs, Subject, in_language, rows_where
from evaluator.metrics.intervals import Floats, Mean
from evaluator.metrics.measures import as_floats, bounds, of_mean, rate
from evaluator.metrics.table import Dots, Series, Table
from evaluator.metrics.tables.judges import Fitness, corrected, judges, panel_fitness
from evaluator.store.outcomes import MEASURED

CONTAINMENT, PANEL = "containment", "panel (majority)"
_COMPARED = ("agreed", "one", "other", "count")


@dataclass(frozen=True, eq=False)
class _Graded:
    """The verdicts of graders on one checkpoint's answers.

    `items` has for every item a status, whether a response `contained` a gold answer
    (1, 0 or NaN), and the number of `responses`. `tallies` has the same rows for every
    matcher: how many responses it accepted (`yes`) and found `too_long`, and whether
    all have verdicts (`whole`). `verdicts` are the matchers' own, on single responses.
    """

    items: pd.DataFrame
    tallies: Mapping[str, pd.DataFrame]
    verdicts: pd.DataFrame
    panel: Sequence[str]  # the matchers that have a vote


def scott_pi(
    agreed: Floats, first: Floats, second: Floats, count: Floats | float = 1.0
) -> Floats:
    """Scott's pi from shares of equal verdicts and of each grader's yes, or sums
    over `count`; NaN if chance is 1."""
    yes = (first / count + second / count) / 2
    chance = yes**2 + (1 - yes) ** 2
    with np.errstate(invalid="ignore", divide="ignore"):
        pi = np.where(chance < 1, (agreed / count - chance) / (1 - chance), np.nan)
    return np.clip(pi, -1.0, 1.0)  # as kappa in table `overlap`


def _rows(inputs: Inputs) -> Iterator[Row]:
    """A row without `against` is a grader's accuracy; one with it is the agreement of
    two graders.

    `yes` counts the right items, `unjudged` the measured items without a verdict that
    the row needs.
    """
    if inputs.verdicts is None:
        return
    for subject in inputs.checkpoints:
        for format in inputs.formats:
            for probe in HIT if format == "open" else ("greedy",):
                graded = _graded(inputs, inputs.verdicts, subject, format, probe)
                own = {**subject.row, "format": format, "probe": probe}
                yield from (
                    own | row
                    for row in _graders_rows(
                        inputs, subject.task, graded, single=probe == "greedy"
                    )
                )


def _graders_rows(
    inputs: Inputs, task: str, graded: _Graded, *, single: bool
) -> Iterator[Row]:
    """`single`: each item has one response, so a grader's error rates on responses
    are those on items."""
    matchers, contained = list(graded.tallies), graded.items["contained"] == 1
    for language in (ALL, *inputs.languages(task)) if matchers else ():
        of_language = in_language(graded.items, language)
        row: Row = {"language": language, **left_out_of(of_language["status"])}
        items = of_language[of_language["status"].isin(MEASURED)]
        here = replace(
            graded,
            items=items,
            tallies={name: graded.tallies[name].loc[items.index] for name in matchers},
        )
        yield from (
            row | each
            for each in _accuracies(inputs, task, here, language, single=single)
        )
        for matcher in matchers:
            # Verdicts on the answers without a gold answer alone would compare the
            # matcher with itself.
            if (
                not contained.any()
                or (contained & graded.tallies[matcher]["whole"]).any()
            ):
                found = _with_containment(inputs, task, here, matcher)
            else:
                reason = "needs verdicts on all responses: resurface match --all"
                found = {"n": 0, "unjudged": len(items), "reason": reason}
            yield {**row, "grader": CONTAINMENT, "against": matcher, **found}
        for first, second in combinations(matchers, 2):
            yield {
                **row,
                "grader": first,
                "against": second,
                **_of_matchers(inputs, task, here, first, second),
            }


def _graded(
    inputs: Inputs, verdicts: pd.DataFrame, subject: Subject, format: str, probe: str
) -> _Graded:
    answers = inputs.outcomes_of(subject.checkpoint, subject.task, format)
    answers = answers[answers[f"{probe}_status"].notna()].reset_index(drop=True)
    items = answers[list(ITEM)].assign(
        status=answers[f"{probe}_status"], contained=as_floats(answers[HIT[probe]])
    )
    items["responses"] = 1.0 if probe == "greedy" else as_floats(answers[f"{probe}s"])
    of_task = rows_where(
        verdicts, {"task": subject.task, "format": format, "probe": probe}
    )
    same_weights = of_task["weights_digest"] == subject.weights_digest
    ours = of_task[(of_task["checkpoint"] == subject.checkpoint) & same_weights]
    own = inputs.run_seed(subject.checkpoint, subject.task)
    ours = ours[
        ours["seed"] == (own if (ours["seed"] == own).any() else ours["seed"].min())
    ]
    # Matchers with verdicts on this checkpoint are its graders; all, if containment
    # accepted everything.
    all_contained = len(items) > 0 and bool((items["contained"].dropna() == 1).all())
    matchers = sorted(
        set(ours["matcher"]) or set(of_task["matcher"] if all_contained else ())
    )
    said = ours.assign(
        verdict=ours["verdict"].astype("float64"), too_long=ours["status"] == "excluded"
    )
    keys = pd.MultiIndex.from_frame(items[["language", "item_id"]])
    tallies = {}
    for matcher in matchers:
        by_item = said[said["matcher"] == matcher].groupby(["language", "item_id"])
        counted = by_item.agg(
            yes=("verdict", "sum"),
            judged=("verdict", "count"),
            too_long=("too_long", "sum"),
        )
        tally = (
            counted.reindex(keys).fillna(0.0).astype("float64").set_axis(items.index)
        )
        tallies[matcher] = tally.assign(whole=tally["judged"] >= items["responses"])
    judged = judges(inputs.controls, subject.task, ALL) if inputs.fit_only else {}
    panel = [
        matcher
        for matcher in matchers
        if matcher not in judged or judged[matcher].why_unfit is None
    ]
    return _Graded(items, tallies, said[said["verdict"].notna()], panel)


def _accuracies(
    inputs: Inputs, task: str, graded: _Graded, language: str, *, single: bool
) -> Iterator[Row]:
    """One row per grader, on the items that all graders can decide."""
    items, tallies = graded.items, graded.tallies
    contained = (items["contained"] == 1).to_numpy()
    right = {
        name: contained | (tally["yes"] > 0).to_numpy()
        for name, tally in tallies.items()
    }
    done = np.logical_and.reduce(
        [right[name] | tally["whole"].to_numpy() for name, tally in tallies.items()]
    )
    fits = judges(inputs.controls, task, language)
    if len(graded.panel) > 1:
        right[PANEL] = 2 * np.sum([right[name] for name in graded.panel], axis=0) > len(
            graded.panel
        )
        if inputs.controls is not None:
            fits[PANEL] = panel_fitness(inputs.controls, graded.panel, task, language)
    # Why items lack the verdicts that decide them, and what to run.
    too_long = [tally["too_long"].to_numpy()[~done] > 0 for tally in tallies.values()]
    long, unjudged = int(np.logical_or.reduce(too_long).sum()), int((~done).sum())
    reasons = (
        [f"{long} items have a response that is too long for a matcher's prompt"]
        if long
        else []
    )
    if unjudged > long:
        reasons.append(
            f"{unjudged - long} items have no verdict: run resurface match with the"
            " same matchers again"
        )
    if items.empty:
        reasons = ["no item was judged"]
    for grader, yes in {CONTAINMENT: contained, **right}.items():
        row: Row = {
            "grader": grader,
            "n": int(done.sum()),
            "unjudged": unjudged,
            "yes": int(yes[done].sum()),
        }
        row |= rate(
            "accuracy", as_floats(yes[done]), inputs.contexts_of(task, items[done])
        )
        fitness = fits.get(grader)
        if fitness is not None and single:
            row |= _corrected(inputs, task, fitness, items[done], yes[done])
        why = None if fitness is None else fitness.why_unfit
        out = (
            "it has no vote in the panel"
            if grader in tallies and grader not in graded.panel
            else None
        )
        yield row | {"reason": joined_reasons(*reasons, why, out, row.get("reason"))}


def _corrected(
    inputs: Inputs, task: str, fitness: Fitness, items: pd.DataFrame, right: np.ndarray
) -> Row:
    """The accuracy without the grader's error, on decided items; `right` marks the
    items that it holds right."""
    sensitivity, specificity = fitness.sensitivity, fitness.specificity
    if sensitivity is None or specificity is None or items.empty:
        return {}
    values = [as_floats(items["contained"] == 1), as_floats(right)]
    known = [np.asarray(each) for each in (sensitivity, specificity)]
    value = without_error(*(each.mean() for each in values), *known)
    if np.isnan(value):
        return {
            "reason": (
                "not corrected: on control pairs it accepts wrong answers as often as"
                " right ones"
            )
        }
    beside = zip((sensitivity, specificity), fitness.drawn(DRAWS), strict=True)
    contexts = inputs.contexts_of(task, items)
    (interval,) = intervals(
        without_error, values, contexts, [(1, 1), (0, 1), (0, 0)], tuple(beside)
    )
    return {"corrected": float(value), **bounds("corrected", interval)}


def without_error(
    contained: Floats, right: Floats, sensitivity: Floats, specificity: Floats
) -> Floats:
    """The share of right items, from the share that contain a gold answer and the
    share that a grader holds right."""
    with np.errstate(invalid="ignore", divide="ignore"):
        accepted = np.where(contained < 1, (right - contained) / (1 - contained), 0.0)
    found = contained + (1 - contained) * corrected(accepted, sensitivity, specificity)
    return np.asarray(np.where(contained < 1, found, 1.0))


def _with_containment(inputs: Inputs, task: str, graded: _Graded, matcher: str) -> Row:
    """Agreement of a matcher and containment, on the items with its verdicts on all
    responses."""
    items, tally = graded.items, graded.tallies[matcher]
    whole = (tally["whole"] & items["contained"].notna()).to_numpy()
    one, other = (
        as_floats(items["contained"][whole]),
        as_floats(tally["yes"][whole] > 0),
    )
    compared = items[whole].assign(
        one=one, other=other, agreed=as_floats(one == other), count=1.0
    )
    return {
        "n": len(compared),
        "unjudged": len(items) - len(compared),
        **_agreement(inputs, task, compared),
    }


def _of_matchers(
    inputs: Inputs, task: str, graded: _Graded, first: str, second: str
) -> Row:
    """Agreement of two matchers on single responses, from each item's sums."""
    # identifies a response of one checkpoint, format and probe
    response = ["language", "item_id", "index"]
    one, other = (
        graded.verdicts.loc[
            graded.verdicts["matcher"] == name, [*response, "verdict"]
        ].rename(columns={"verdict": column})
        for name, column in ((first, "one"), (second, "other"))
    )
    both = one.merge(other, on=response, validate="one_to_one").assign(count=1.0)
    both["agreed"] = (both["one"] == both["other"]).astype("float64")
    sums = both.groupby(["language", "item_id"])[list(_COMPARED)].sum().reset_index()
    compared = graded.items[list(ITEM)].merge(
        sums, on=["language", "item_id"], validate="one_to_one"
    )
    n, unjudged = int(compared["count"].sum()), len(graded.items) - len(compared)
    return {"n": n, "unjudged": unjudged, **_agreement(inputs, task, compared)}


def _agreement(inputs: Inputs, task: str, compared: pd.DataFrame) -> Row:
    """Agreement and Scott's pi, from each item's sums over the compared responses
    (the columns `_COMPARED`)."""
    if compared.empty:
        return {"reason": "nothing was judged by both"}
    values = [as_floats(compared[name]) for name in _COMPARED]
    agreed, one, other, count = values
    contexts = inputs.contexts_of(task, compared)
    row: Row = of_mean("agreement", Mean(agreed / count, contexts, weights=count))
    rarest = {
        "yes": min(one.sum(), other.sum()),
        "no": count.sum() - max(one.sum(), other.sum()),
    }
    few = [said for said, many in rarest.items() if many < LEAST]
    if few:
        return row | {
            "reason": (
                f"no Scott's pi: one of the two says {' or '.join(few)} fewer than"
                f" {LEAST} times"
            )
        }
    pi = float(scott_pi(*(np.asarray(each.mean()) for each in values)))
    mean = float(count.mean())
    kinds = [
        tuple(mean * value for value in kind)
        for kind in ((1, 1, 1, 1), (1, 0, 0, 1), (0, 1, 0, 1), (0, 0, 1, 1))
    ]
    return row | {
        "scott_pi": pi,
        **bounds("scott_pi", *intervals(scott_pi, values, contexts, kinds)),
    }


# of graders, containment first
_COLOURS = ("greedy", "choice", "beam", "sample", "shown", "lost")


def _judged_first(frame: pd.DataFrame) -> pd.DataFrame:
    """Greedy open answers, or else the first kind with verdicts; a Scott's pi
    without an interval is not drawn."""
    first = frame.loc[frame["n"] > 0, ["format", "probe"]].drop_duplicates().head(1)
    frame = frame.merge(first, on=["format", "probe"])
    return frame.assign(
        scott_pi=frame["scott_pi"].where(frame["scott_pi_low"].notna()),
        against=frame["against"].fillna(""),  # empty: the grader's own accuracy
    )


def _graders(frame: pd.DataFrame) -> Sequence[Series]:
    graders = frame.loc[frame["against"] == "", "grader"].drop_duplicates().tolist()
    spread = max(len(graders) - 1, 1)
    return [
        Series(
            "accuracy",
            colour,
            grader,
            {"grader": grader, "against": ""},
            0.36 * (number / spread - 0.5),
        )
        for number, (grader, colour) in enumerate(
            zip(graders, cycle(_COLOURS), strict=False)
        )
    ]


def _pairs(frame: pd.DataFrame) -> Sequence[Series]:
    agreed = frame.loc[
        frame["scott_pi"].notna(), ["grader", "against"]
    ].drop_duplicates()
    return [
        Series(
            "scott_pi",
            colour,
            f"{grader} and {against}",
            {"grader": grader, "against": against},
        )
        for (grader, against), colour in zip(
            agreed.itertuples(index=False, name=None), cycle(_COLOURS), strict=False
        )
    ]


TABLE = Table(
    name="matching",
    title="Does a second grader change the picture?",
    reading=(
        "A matcher model reads the question, the gold answers and the response, and"
        " decides whether the response means one of the gold answers. A response that"
        " contains a gold answer counts as right without it. Left: accuracy by"
        " containment, by each matcher and by the panel's majority (a tie is a no). The"
        " table also has it corrected for a grader's errors on control pairs. Right:"
        " Scott's pi, the agreement beyond chance, between containment and each matcher"
        " (if all responses were judged), and between two matchers on the responses"
        " that both judged. The figure shows greedy open answers, or else the first"
        " judged kind. Other formats, beams and samples have separate rows."
    ),
    needs=(
        "the probe greedy and a matcher model's verdicts: run resurface match RUN"
        " --matcher CHECKPOINT"
    ),
    columns=(
        *col.SUBJECT,
        *col.TEXT("format", "probe"),
        col.LANGUAGE,
        *col.TEXT("grader", "against"),
        *col.COUNT("n", "excluded", "engine_error", "unjudged", "yes"),
        Column("accuracy", col.PERCENTAGE, interval=True),
        Column("corrected", col.PERCENTAGE, "corrected for its errors", interval=True),
        Column("agreement", col.PERCENTAGE, interval=True),
        Column("scott_pi", col.RATIO, "Scott's pi", interval=True),
    ),
    compute=_rows,
    figure=(
        Dots("Accuracy by grader", _graders, legend=2),
        Dots("Scott's pi", _pairs, "changes", legend=1),
    ),
    plotted=_judged_first,
)
