"""Table `matching`: accuracy if a matcher model may also accept a response, and how far graders agree.

It has rows for greedy answers in every format with verdicts, and for beams and samples. Greedy has one response to an
item, beam and sample several. An item is right

- for containment, if one of its responses contains a gold answer;
- for a matcher, also if the matcher accepts any other response;
- for the panel, if a majority of its matchers holds it right (a tie is a no).

All graders of a checkpoint are compared on the same items: those that each grader has the verdicts to decide.

Agreement between two graders is the share of equal verdicts. Scott's pi removes the chance agreement of two graders
that accept equally often (W. A. Scott, Public Opinion Quarterly 19, 1955):

    pi = (p_o - p_e) / (1 - p_e),   p_e = p^2 + (1 - p)^2,   p the mean of both graders' shares of yes

Two matchers are compared on the single responses that both judged. A matcher and containment are compared on the items
with verdicts on all responses, which needs `resurface match --all`. Intervals are over contexts, with all responses.
There is no pi if a grader has fewer than `LEAST` yes or no verdicts: one response would decide its value.

`corrected` is the accuracy of greedy answers without the grader's error (table `judges`). Answers that contain a gold
answer count as right. Among the others, the share of right answers follows from the share that the grader accepts and
from its error rates on control pairs. The interval includes both errors: contexts get random weights, and sensitivity
and specificity are drawn from their Jeffreys posteriors.

The reason names a matcher that is unfit by its control pairs. With `resurface match --fit-only` an unfit matcher has no
vote in the panel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, cycle

import numpy as np
import pandas as pd

from evaluator.metrics.columns import (
    COUNT,
    LANGUAGE,
    PERCENTAGE,
    RATIO,
    REASON,
    SUBJECT,
    TEXT,
    Column,
    Row,
    columns_of,
)
from evaluator.metrics.counting import LEAST, joined_reasons, left_out_of
from evaluator.metrics.draws import DRAWS, intervals
from evaluator.metrics.drops import HIT
from evaluator.metrics.figure import Dots, Figure, Series
from evaluator.metrics.inputs import ALL, ITEM, Inputs, Subject, in_language
from evaluator.metrics.intervals import Floats
from evaluator.metrics.means import Mean
from evaluator.metrics.measures import as_floats, bounds, of_mean, rate
from evaluator.metrics.table import Table
from evaluator.metrics.tables.judges import Fitness, corrected, judges, panel_fitness, unfit
from evaluator.store.outcomes import MEASURED

CONTAINMENT, PANEL = "containment", "panel (majority)"
_RESPONSE = ("language", "item_id", "index")  # identifies a response of one checkpoint, format and probe
_COMPARED = ("agreed", "one", "other", "count")


@dataclass(frozen=True, eq=False)
class _Graded:
    """The verdicts of graders on one checkpoint's answers.

    `items` has for every item a status, whether a response `contained` a gold answer (1, 0 or NaN), and the number of
    `responses`. `tallies` has the same rows for every matcher. It counts the responses that the matcher accepted
    (`yes`), those that it `judged` at all, and those that were `too_long` for it. `verdicts` are the matchers' own, on
    single responses.
    """

    items: pd.DataFrame
    tallies: Mapping[str, pd.DataFrame]
    verdicts: pd.DataFrame
    panel: Sequence[str]  # the matchers that have a vote

    @property
    def matchers(self) -> list[str]:
        return list(self.tallies)

    def measured(self, language: str) -> _Graded:
        """The same, restricted to the measured items of one language, or of all."""
        items = in_language(self.items[self.items["status"].isin(MEASURED)], language)
        return replace(self, items=items, tallies={name: each.loc[items.index] for name, each in self.tallies.items()})

    def fully_judged(self, matcher: str) -> pd.Series:
        """The items with this matcher's verdicts on all responses."""
        return self.tallies[matcher]["judged"] >= self.items["responses"]

    def comparable(self, matcher: str) -> bool:
        """Whether the matcher judged contained answers too. Verdicts on the other answers alone would compare it with
        itself."""
        contained = self.items["contained"] == 1
        return not contained.any() or bool((contained & self.fully_judged(matcher)).any())

    def right(self) -> dict[str, np.ndarray]:
        """Which items each grader holds right: containment, the matchers, and the panel of several."""
        contained = (self.items["contained"] == 1).to_numpy()
        said = {name: contained | (tally["yes"] > 0).to_numpy() for name, tally in self.tallies.items()}
        panel = {}
        if len(self.panel) > 1:
            votes = zip(*(said[name] for name in self.panel), strict=True)
            panel = {PANEL: np.array([majority(each) for each in votes], dtype=bool)}
        return {CONTAINMENT: contained, **said, **panel}


def majority(votes: Sequence[bool]) -> bool:
    """The verdict of more than half of a panel; a tie is a no."""
    return 2 * sum(votes) > len(votes)


def scott_pi(agreed: Floats, first: Floats, second: Floats) -> Floats:
    """Scott's pi from the shares of equal verdicts and of each grader's yes; NaN if chance alone explains full
    agreement."""
    yes = (first + second) / 2
    chance = yes**2 + (1 - yes) ** 2
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(chance < 1, (agreed - chance) / (1 - chance), np.nan))


def _rows(inputs: Inputs) -> list[Row]:
    """A row without `against` is a grader's accuracy; one with it is the agreement of two graders.

    `yes` counts the right items. `unjudged` counts the measured items without a verdict that the row needs, including
    those on which the matcher's engine failed.
    """
    if inputs.verdicts is None:
        return []
    rows: list[Row] = []
    for subject in inputs.checkpoints:
        for format in inputs.formats:
            for probe in HIT if format == "open" else ("greedy",):
                graded = _graded(inputs, inputs.verdicts, subject, format, probe)
                asked = {**subject.row, "format": format, "probe": probe}
                rows += [asked | row for row in _graders_rows(inputs, subject.task, graded, single=probe == "greedy")]
    return rows


def _graders_rows(inputs: Inputs, task: str, graded: _Graded, *, single: bool) -> list[Row]:
    """`single`: each item has one response, so a grader's error rates on responses are those on items."""
    rows: list[Row] = []
    for language in (ALL, *inputs.languages(task)) if graded.matchers else ():
        status, here = in_language(graded.items, language)["status"], graded.measured(language)
        row: Row = {"language": language, **left_out_of(status)}
        known = _Known(inputs, task, language, single)
        rows += [row | each for each in _accuracies(here, known)]
        for matcher in graded.matchers:
            rows.append(row | _with_containment(inputs, task, here, matcher, graded.comparable(matcher)))
        for first, second in combinations(graded.matchers, 2):
            rows.append(row | _of_matchers(inputs, task, here, first, second))
    return rows


def _graded(inputs: Inputs, verdicts: pd.DataFrame, subject: Subject, format: str, probe: str) -> _Graded:
    answers = inputs.outcomes_of(subject.checkpoint, subject.task, format)
    answers = answers[answers[f"{probe}_status"].notna()].reset_index(drop=True)
    items = answers[list(ITEM)].assign(status=answers[f"{probe}_status"], contained=as_floats(answers[HIT[probe]]))
    items["responses"] = 1.0 if probe == "greedy" else as_floats(answers[f"{probe}s"])
    asked = (verdicts["task"] == subject.task) & (verdicts["format"] == format) & (verdicts["probe"] == probe)
    of_task = verdicts[asked]
    same_weights = of_task["weights_digest"] == subject.weights_digest
    ours = of_task[(of_task["checkpoint"] == subject.checkpoint) & same_weights]
    own = inputs.run_seed(subject.checkpoint, subject.task)
    ours = ours[ours["seed"] == (own if (ours["seed"] == own).any() else ours["seed"].min())]
    # Only matchers with verdicts on this checkpoint are its graders. If containment accepted everything, no matcher
    # was needed, and all of them agree.
    all_contained = len(items) > 0 and bool((items["contained"].dropna() == 1).all())
    matchers = sorted(set(ours["matcher"]) or set(of_task["matcher"] if all_contained else ()))
    said = ours.assign(verdict=ours["verdict"].astype("float64"), too_long=ours["status"] == "excluded")
    tallies = {matcher: _tally(items, said[said["matcher"] == matcher]) for matcher in matchers}
    left_out = unfit(judges(inputs.controls, subject.task, ALL)) if inputs.fit_only else {}
    panel = [matcher for matcher in matchers if matcher not in left_out]
    return _Graded(items, tallies, said[said["verdict"].notna()], panel)


def _tally(items: pd.DataFrame, said: pd.DataFrame) -> pd.DataFrame:
    """One matcher's verdicts, counted for every item."""
    by_item = said.groupby(["language", "item_id"])
    counted = by_item.agg(yes=("verdict", "sum"), judged=("verdict", "count"), too_long=("too_long", "sum"))
    keys = pd.MultiIndex.from_frame(items[["language", "item_id"]])
    return counted.reindex(keys).fillna(0.0).astype("float64").set_axis(items.index)


@dataclass(frozen=True, eq=False)
class _Known:
    """The known error rates of a task's graders in one language, or in all: their verdicts on control pairs."""

    inputs: Inputs
    task: str
    language: str
    single: bool

    def of(self, grader: str, panel: Sequence[str]) -> Fitness | None:
        if grader == PANEL and self.inputs.controls is not None:
            return panel_fitness(self.inputs.controls, panel, self.task, self.language)
        return judges(self.inputs.controls, self.task, self.language).get(grader)

    def corrected(self, grader: str, fitness: Fitness, items: pd.DataFrame, right: np.ndarray) -> Row:
        """The accuracy without the grader's error, on decided items; `right` marks the items that it holds right."""
        sensitivity, specificity = fitness.sensitivity, fitness.specificity
        if not self.single or sensitivity is None or specificity is None or items.empty:
            return {}
        values = [as_floats(items["contained"] == 1), as_floats(right)]
        known = [np.asarray(each) for each in (sensitivity, specificity)]
        value = without_error(*(each.mean() for each in values), *known)
        if np.isnan(value):
            return {"reason": "not corrected: on control pairs it accepts wrong answers as often as right ones"}
        beside = zip((sensitivity, specificity), fitness.drawn(DRAWS), strict=True)
        contexts = self.inputs.contexts_of(self.task, items)
        (interval,) = intervals(without_error, values, contexts, [(1, 1), (0, 1), (0, 0)], tuple(beside))
        return {"corrected": float(value), **bounds("corrected", interval)}


def without_error(contained: Floats, right: Floats, sensitivity: Floats, specificity: Floats) -> Floats:
    """The share of right items, from the share that contain a gold answer and the share that a grader holds right."""
    with np.errstate(invalid="ignore", divide="ignore"):
        accepted = np.where(contained < 1, (right - contained) / (1 - contained), 0.0)
    found = contained + (1 - contained) * corrected(accepted, sensitivity, specificity)
    return np.asarray(np.where(contained < 1, found, 1.0))


def _accuracies(graded: _Graded, known: _Known) -> list[Row]:
    """One row per grader, on the items that all graders can decide."""
    right = graded.right()
    decided = [right[name] | graded.fully_judged(name).to_numpy() for name in graded.matchers]
    done = np.logical_and.reduce(decided)
    n, unjudged = int(done.sum()), int((~done).sum())
    reason = _why_unjudged(graded, ~done) if len(graded.items) else "no item was judged"
    rows: list[Row] = []
    for grader, yes in right.items():
        row: Row = {"grader": grader, "n": n, "unjudged": unjudged, "yes": int(yes[done].sum())}
        row |= rate("accuracy", as_floats(yes[done]), known.inputs.contexts_of(known.task, graded.items[done]))
        fitness = known.of(grader, graded.panel)
        if fitness is not None:
            row |= known.corrected(grader, fitness, graded.items[done], yes[done])
        out = "it has no vote in the panel" if grader in set(graded.matchers) - set(graded.panel) else None
        why = fitness.why_unfit if fitness is not None else None
        rows.append(row | {"reason": joined_reasons(reason, why, out, row.get("reason"))})
    return rows


def _why_unjudged(graded: _Graded, undecided: np.ndarray) -> str | None:
    """Why items lack the verdicts that decide them, and what to run."""
    count = int(undecided.sum())
    if not count:
        return None
    too_long = [tally["too_long"].to_numpy()[undecided] > 0 for tally in graded.tallies.values()]
    long = int(np.logical_or.reduce(too_long).sum())
    reasons = [f"{long} items have a response that is too long for a matcher's prompt"] if long else []
    if count > long:
        reasons.append(f"{count - long} items have no verdict: run resurface match with the same matchers again")
    return "; ".join(reasons)


def _with_containment(inputs: Inputs, task: str, graded: _Graded, matcher: str, comparable: bool) -> Row:
    """Agreement of a matcher and containment, on the items with its verdicts on all responses."""
    items = graded.items
    row: Row = {"grader": CONTAINMENT, "against": matcher}
    if not comparable:
        reason = "needs verdicts on all responses: resurface match --all"
        return row | {"n": 0, "unjudged": len(items), "reason": reason}
    whole = (graded.fully_judged(matcher) & items["contained"].notna()).to_numpy()
    one, other = as_floats(items["contained"][whole]), as_floats(graded.tallies[matcher]["yes"][whole] > 0)
    compared = items[whole].assign(one=one, other=other, agreed=as_floats(one == other), count=1.0)
    row |= {"n": len(compared), "unjudged": len(items) - len(compared)}
    return row | _agreement(inputs, task, compared)


def _of_matchers(inputs: Inputs, task: str, graded: _Graded, first: str, second: str) -> Row:
    """Agreement of two matchers on single responses, from each item's sums."""
    one, other = (
        graded.verdicts.loc[graded.verdicts["matcher"] == name, [*_RESPONSE, "verdict"]].rename(
            columns={"verdict": column}
        )
        for name, column in ((first, "one"), (second, "other"))
    )
    both = one.merge(other, on=list(_RESPONSE), validate="one_to_one").assign(count=1.0)
    both["agreed"] = (both["one"] == both["other"]).astype("float64")
    sums = both.groupby(["language", "item_id"])[list(_COMPARED)].sum().reset_index()
    compared = graded.items[list(ITEM)].merge(sums, on=["language", "item_id"], validate="one_to_one")
    row: Row = {"grader": first, "against": second, "n": int(compared["count"].sum())}
    row["unjudged"] = len(graded.items) - len(compared)
    return row | _agreement(inputs, task, compared)


def _agreement(inputs: Inputs, task: str, compared: pd.DataFrame) -> Row:
    """Agreement and Scott's pi, from each item's sums over the compared responses (the columns `_COMPARED`)."""
    if compared.empty:
        return {"reason": "nothing was judged by both"}
    values = [as_floats(compared[name]) for name in _COMPARED]
    agreed, one, other, count = values
    contexts = inputs.contexts_of(task, compared)
    row: Row = of_mean("agreement", Mean(agreed / count, contexts, weights=count))
    rarest = {"yes": min(one.sum(), other.sum()), "no": count.sum() - max(one.sum(), other.sum())}
    few = [said for said, many in rarest.items() if many < LEAST]
    if few:
        return row | {"reason": f"no Scott's pi: one of the two says {' or '.join(few)} fewer than {LEAST} times"}
    pi = float(pi_of_sums(*(np.asarray(each.mean()) for each in values)))
    usual = float(count.mean())
    kinds = [
        tuple(usual * value for value in kind) for kind in ((1, 1, 1, 1), (1, 0, 0, 1), (0, 1, 0, 1), (0, 0, 1, 1))
    ]
    return row | {"scott_pi": pi, **bounds("scott_pi", *intervals(pi_of_sums, values, contexts, kinds))}


def pi_of_sums(agreed: Floats, one: Floats, other: Floats, count: Floats) -> Floats:
    return scott_pi(agreed / count, one / count, other / count)


_COLOURS = ("greedy", "choice", "beam", "sample", "shown", "lost")  # of graders, containment first


def _judged_first(frame: pd.DataFrame) -> pd.DataFrame:
    """Greedy open answers, or else the first kind with verdicts; a Scott's pi without an interval is not drawn."""
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
        Series("accuracy", colour, grader, {"grader": grader, "against": ""}, 0.36 * (number / spread - 0.5))
        for number, (grader, colour) in enumerate(zip(graders, cycle(_COLOURS), strict=False))
    ]


def _pairs(frame: pd.DataFrame) -> Sequence[Series]:
    agreed = frame.loc[frame["scott_pi"].notna(), ["grader", "against"]].drop_duplicates()
    return [
        Series("scott_pi", colour, f"{grader} and {against}", {"grader": grader, "against": against})
        for (grader, against), colour in zip(agreed.itertuples(index=False, name=None), cycle(_COLOURS), strict=False)
    ]


TABLE = Table(
    name="matching",
    title="Does a second grader change the picture?",
    reading=(
        "A matcher model reads the question, the gold answers and the response, and decides whether the response "
        "means one of the gold answers. A response that contains a gold answer counts as right without it. Left: "
        "accuracy by containment, by each matcher and by the panel's majority (a tie is a no). The table also has "
        "it corrected for a grader's errors on control pairs. Right: Scott's pi, the agreement beyond chance, "
        "between containment and each matcher (if all responses were judged), and between two matchers on the "
        "responses that both judged. The figure shows greedy open answers, or else the first judged kind. Other "
        "formats, beams and samples have separate rows."
    ),
    needs="the probe greedy and a matcher model's verdicts: run resurface match RUN --matcher CHECKPOINT",
    columns=(
        *SUBJECT,
        *columns_of(TEXT, "format", "probe"),
        LANGUAGE,
        *columns_of(TEXT, "grader", "against"),
        *columns_of(COUNT, "n", "excluded", "engine_error", "unjudged", "yes"),
        Column("accuracy", PERCENTAGE, interval=True),
        Column("corrected", PERCENTAGE, "corrected for its errors", interval=True),
        Column("agreement", PERCENTAGE, interval=True),
        Column("scott_pi", RATIO, "Scott's pi", interval=True),
        REASON,
    ),
    compute=_rows,
    figure=Figure(
        (
            Dots("Accuracy by grader", _graders, legend=2),
            Dots("Scott's pi", _pairs, "changes", legend=1),
        ),
        rows=_judged_first,
    ),
)
