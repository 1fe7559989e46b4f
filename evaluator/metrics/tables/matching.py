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

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, cycle

import numpy as np
import pandas as pd

from evaluator.metrics.bootstrap import DRAWS, intervals
from evaluator.metrics.columns import (
    COUNT,
    LANGUAGE,
    PERCENTAGE,
    RATIO,
    SUBJECT,
    TEXT,
    Column,
    Row,
)
from evaluator.metrics.exclusions import (
    LEAST,
    all_measured,
    joined_reasons,
    left_out_of,
)
from evaluator.metrics.fates import HIT
from evaluator.metrics.inputs import ALL, ITEM, Inputs, Subject, rows_where, slices
from evaluator.metrics.intervals import Floats
from evaluator.metrics.measures import (
    as_floats,
    beyond_chance,
    bounds,
    mean_of,
    of_mean,
    rate,
)
from evaluator.metrics.table import Dots, Series, Table
from evaluator.metrics.tables.judges import Fitness, corrected, judges, panel_fitness
from evaluator.store.outcomes import chosen_seed

CONTAINMENT, PANEL = "containment", "panel (majority)"
_COMPARED = ("agreed", "one", "other", "count")


@dataclass(frozen=True)
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

    def on(self, items: pd.DataFrame) -> "_Graded":
        """The same on some of the items."""
        tallies = {name: each.loc[items.index] for name, each in self.tallies.items()}
        return replace(self, items=items, tallies=tallies)


def scott_pi(
    agreed: Floats, first: Floats, second: Floats, count: Floats | float = 1.0
) -> Floats:
    """Scott's pi from shares of equal verdicts and of each grader's yes, or sums
    over `count`; NaN if chance is 1."""
    yes = (first / count + second / count) / 2
    chance = yes**2 + (1 - yes) ** 2
    return beyond_chance(agreed / count, chance)


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
                if not graded.tallies:
                    continue
                row = subject.row | {"format": format, "probe": probe}
                for language, items in slices(
                    graded.items, inputs.languages(subject.task)
                ):
                    row |= {"language": language, **left_out_of(items, "status")}
                    here = graded.on(all_measured(items, "status"))
                    fits = judges(inputs.controls, subject.task, language)
                    if len(graded.panel) > 1 and inputs.controls is not None:
                        fits[PANEL] = panel_fitness(
                            inputs.controls, graded.panel, subject.task, language
                        )
                    for accuracy in _accuracies(here, fits, probe):
                        yield row | accuracy
                    for agreement in _agreements(here, graded):
                        yield row | agreement


def _agreements(here: _Graded, graded: _Graded) -> Iterator[Row]:
    """The agreement of every two graders `here`, in one language of all that they
    graded."""
    contained = graded.items["contained"] == 1
    for matcher, tally in graded.tallies.items():
        # Verdicts on the answers without a gold answer alone would compare the
        # matcher with itself.
        if contained.any() and not (contained & tally["whole"]).any():
            reason = "needs verdicts on all responses: resurface match --all"
            row: Row = {"n": 0, "unjudged": len(here.items), "reason": reason}
        else:
            row = _with_containment(here, matcher)
        yield row | {"grader": CONTAINMENT, "against": matcher}
    for first, second in combinations(graded.tallies, 2):
        row = _of_matchers(here, first, second)
        yield row | {"grader": first, "against": second}


def _graded(
    inputs: Inputs, verdicts: pd.DataFrame, subject: Subject, format: str, probe: str
) -> _Graded:
    own = inputs.run_seed(subject.checkpoint, subject.task)
    answers = inputs.all_outcomes_of(subject.checkpoint, subject.task)
    answers = answers[
        answers[f"{probe}_status"].notna() & (answers["format"] == format)
    ]
    answers = answers[answers["seed"] == chosen_seed(answers["seed"], own)]
    answers = answers.reset_index(drop=True)
    items = answers[[*ITEM]].assign(
        status=answers[f"{probe}_status"],
        contained=as_floats(answers[HIT[probe]]),
        responses=1.0 if probe == "greedy" else as_floats(answers[f"{probe}s"]),
    )
    equal = {"task": subject.task, "format": format, "probe": probe}
    of_task = rows_where(verdicts, equal)
    digest = subject.weights_digest
    equal = {"checkpoint": subject.checkpoint, "weights_digest": digest}
    ours = rows_where(of_task, equal)
    ours = ours[ours["seed"] == chosen_seed(ours["seed"], own)]
    # Matchers with verdicts on this checkpoint are its graders; all, if containment
    # accepted everything.
    matchers = set(ours["matcher"])
    if not matchers and len(items) and (items["contained"].dropna() == 1).all():
        matchers = set(of_task["matcher"])
    said = ours.assign(
        verdict=ours["verdict"].astype("float64"), too_long=ours["status"] == "excluded"
    )
    keys = pd.MultiIndex.from_frame(items[["language", "item_id"]])
    tallies = {}
    for matcher in sorted(matchers):
        by_item = said[said["matcher"] == matcher].groupby(["language", "item_id"])
        tally = pd.DataFrame(
            {
                "yes": by_item["verdict"].sum(),
                "judged": by_item["verdict"].count(),
                "too_long": by_item["too_long"].sum(),
            }
        )
        tally = tally.reindex(keys).fillna(0.0).astype("float64").set_axis(items.index)
        tallies[matcher] = tally.assign(whole=tally["judged"] >= items["responses"])
    panel = [*tallies]
    if inputs.fit_only:
        for matcher, fitness in judges(inputs.controls, subject.task, ALL).items():
            if matcher in panel and fitness.why_unfit:
                panel.remove(matcher)
    return _Graded(items, tallies, said[said["verdict"].notna()], panel)


def _accuracies(
    graded: _Graded, fits: Mapping[str, Fitness], probe: str
) -> Iterator[Row]:
    """One row per grader, on the items that all graders can decide."""
    items, tallies = graded.items, graded.tallies
    right = {CONTAINMENT: (items["contained"] == 1).to_numpy()}
    done = np.ones(len(items), dtype=bool)
    too_long = np.zeros(len(items), dtype=bool)
    for name, tally in tallies.items():
        right[name] = right[CONTAINMENT] | (tally["yes"] > 0).to_numpy()
        done &= right[name] | tally["whole"].to_numpy()
        too_long |= tally["too_long"].to_numpy() > 0
    if len(graded.panel) > 1:
        votes = np.sum([right[name] for name in graded.panel], axis=0)
        right[PANEL] = 2 * votes > len(graded.panel)
    decided, undecided = items[done], int((~done).sum())
    why = _why_undecided(undecided, int((too_long & ~done).sum()))
    if items.empty:
        why = "no item was judged"
    for grader, yes in right.items():
        row: Row = {"grader": grader, "n": len(decided), "unjudged": undecided}
        row |= {"yes": int(yes[done].sum()), **rate("accuracy", yes[done], decided)}
        notes = [why]
        if grader in fits:
            # With one response to an item, a grader's error rates on responses are
            # those on items.
            if probe == "greedy":
                row |= _corrected(fits[grader], decided, yes[done])
            notes.append(fits[grader].why_unfit)
        if grader in tallies and grader not in graded.panel:
            notes.append("it has no vote in the panel")
        yield row | {"reason": joined_reasons(*notes, row.get("reason"))}


def _why_undecided(undecided: int, too_long: int) -> str | None:
    """Why items lack the verdicts that decide them, and what to run."""
    long = "items have a response that is too long for a matcher's prompt"
    again = "run resurface match with the same matchers again"
    rest = undecided - too_long
    return joined_reasons(
        f"{too_long} {long}" if too_long else None,
        f"{rest} items have no verdict: {again}" if rest else None,
    )


def _corrected(fitness: Fitness, items: pd.DataFrame, right: np.ndarray) -> Row:
    """The accuracy without the grader's error, on decided items; `right` marks the
    items that it holds right."""
    sensitivity, specificity = fitness.sensitivity, fitness.specificity
    if sensitivity is None or specificity is None or items.empty:
        return {}
    values = [as_floats(items["contained"] == 1), as_floats(right)]
    means = [np.asarray(each.mean()) for each in values]
    rates = [np.asarray(sensitivity), np.asarray(specificity)]
    value = float(without_error(*means, *rates))
    if math.isnan(value):
        reason = (
            "not corrected: on control pairs it accepts wrong answers as often as right"
            " ones"
        )
        return {"reason": reason}
    beside = [*zip((sensitivity, specificity), fitness.drawn(DRAWS), strict=True)]
    kinds = [(1, 1), (0, 1), (0, 0)]
    found = intervals(without_error, values, items, kinds, beside)
    return {"corrected": value, **bounds("corrected", *found)}


def without_error(
    contained: Floats, right: Floats, sensitivity: Floats, specificity: Floats
) -> Floats:
    """The share of right items, from the share that contain a gold answer and the
    share that a grader holds right."""
    with np.errstate(invalid="ignore", divide="ignore"):
        accepted = np.where(contained < 1, (right - contained) / (1 - contained), 0.0)
    found = contained + (1 - contained) * corrected(accepted, sensitivity, specificity)
    return np.asarray(np.where(contained < 1, found, 1.0))


def _with_containment(graded: _Graded, matcher: str) -> Row:
    """Agreement of a matcher and containment, on the items with its verdicts on all
    responses."""
    items, tally = graded.items, graded.tallies[matcher]
    whole = tally["whole"] & items["contained"].notna()
    one, other = items["contained"][whole] == 1, tally["yes"][whole] > 0
    compared = items[whole].assign(one=one, other=other, agreed=one == other, count=1)
    unjudged = len(items) - len(compared)
    return {"n": len(compared), "unjudged": unjudged, **_agreement(compared)}


def _of_matchers(graded: _Graded, first: str, second: str) -> Row:
    """Agreement of two matchers on single responses, from each item's sums."""
    # identifies a response of one checkpoint, format and probe
    response = ["language", "item_id", "index"]
    verdicts = graded.verdicts.set_index(response)
    matchers, verdict = verdicts["matcher"], verdicts["verdict"]
    both = pd.concat(
        {"one": verdict[matchers == first], "other": verdict[matchers == second]},
        axis=1,
    ).dropna()
    both = both.assign(count=1.0, agreed=as_floats(both["one"] == both["other"]))
    sums = both.groupby(["language", "item_id"])[[*_COMPARED]].sum().reset_index()
    compared = graded.items[[*ITEM]].merge(
        sums, on=["language", "item_id"], validate="one_to_one"
    )
    unjudged = len(graded.items) - len(compared)
    n = int(compared["count"].sum())
    return {"n": n, "unjudged": unjudged, **_agreement(compared)}


def _agreement(compared: pd.DataFrame) -> Row:
    """Agreement and Scott's pi, from each item's sums over the compared responses
    (the columns `_COMPARED`)."""
    if compared.empty:
        return {"reason": "nothing was judged by both"}
    values = [as_floats(compared[name]) for name in _COMPARED]
    agreed, one, other, count = values
    row = of_mean("agreement", mean_of(agreed / count, compared, weights=count))
    few = []
    if min(one.sum(), other.sum()) < LEAST:
        few.append("yes")
    if count.sum() - max(one.sum(), other.sum()) < LEAST:
        few.append("no")
    if few:
        row["reason"] = (
            f"no Scott's pi: one of the two says {' or '.join(few)} fewer than {LEAST}"
            " times"
        )
        return row
    pi = float(scott_pi(*(np.asarray(each.mean()) for each in values)))
    kinds = np.array([(1, 1, 1, 1), (1, 0, 0, 1), (0, 1, 0, 1), (0, 0, 1, 1)])
    kinds = (float(count.mean()) * kinds).tolist()
    found = intervals(scott_pi, values, compared, kinds)
    return row | {"scott_pi": pi, **bounds("scott_pi", *found)}


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
    series = []
    for number, (grader, colour) in enumerate(
        zip(graders, cycle(_COLOURS), strict=False)
    ):
        shift = 0.36 * (number / spread - 0.5)
        where = {"grader": grader, "against": ""}
        series.append(Series("accuracy", colour, grader, where, shift))
    return series


def _pairs(frame: pd.DataFrame) -> Sequence[Series]:
    pairs = frame.loc[frame["scott_pi"].notna(), ["grader", "against"]]
    series = []
    for (grader, against), colour in zip(
        pairs.drop_duplicates().itertuples(index=False), cycle(_COLOURS), strict=False
    ):
        label, where = f"{grader} and {against}", {"grader": grader, "against": against}
        series.append(Series("scott_pi", colour, label, where))
    return series


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
        *SUBJECT,
        *TEXT("format", "probe"),
        LANGUAGE,
        *TEXT("grader", "against"),
        *COUNT("n", "excluded", "engine_error", "unjudged", "yes"),
        *PERCENTAGE.estimates("accuracy"),
        Column("corrected", PERCENTAGE, "corrected for its errors", interval=True),
        *PERCENTAGE.estimates("agreement"),
        Column("scott_pi", RATIO, "Scott's pi", interval=True),
    ),
    compute=_rows,
    figure=(
        Dots("Accuracy by grader", _graders, legend=2),
        Dots("Scott's pi", _pairs, "changes", legend=1),
    ),
    plotted=_judged_first,
)
