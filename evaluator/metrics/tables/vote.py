"""Table `vote`: checkpoints ranked by voting rules, with every language of every task
as a voter.

In a mean over tasks, one task with large differences may decide, and the accuracies are
not comparable. A voter only reports which of two checkpoints has more items right.
Three rules count the votes (Rofin et al., "Vote'n'Rank", EACL 2023, arXiv 2210.05769),
beside the mean accuracy:

    borda          how many checkpoints are below it, summed over the voters; a tie
                   counts a half. Its order is the order of the mean rank, which is M -
                   borda / V for M checkpoints and V voters
    copeland       how many checkpoints it beats, minus how many beat it: A beats B if
                   more voters have A above B
    worst_defeat   the most votes of any checkpoint that beats it; 0 if none does. The
                   minimax rule (Simpson and Kramer) ranks the smallest first

Checkpoints with a tie in a rule share the best of their places (1, 1, 3); `ties` counts
the others there. A voter counts the items that all ranked checkpoints measured. A
checkpoint is not ranked if it has no item for a voter, or if the gate decided early on
a task: its few items would rank the others.

The rows of one task have its languages as voters. Rows of `all` have those of all
tasks, of a task with several prompts under one alone (the paper's, if evaluated). The
interval is of the mean accuracy, for the given voters. Places have none: all known
methods either miss the place too often for close checkpoints, or cover nearly all
places.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import pandas as pd
from msgspec.structs import replace

from evaluator.metrics.columns import (
    AMOUNT,
    COUNT,
    PERCENTAGE,
    RANK,
    SUBJECT,
    TEXT,
    Column,
    Row,
)
from evaluator.metrics.exclusions import all_measured, joined_reasons, left_out_of
from evaluator.metrics.fates import CORRECT
from evaluator.metrics.inputs import ALL, Inputs, Subject
from evaluator.metrics.intervals import Floats, ItemNumbers, Mean
from evaluator.metrics.measures import of_mean
from evaluator.metrics.table import Dots, Series, Table
from evaluator.tasks.base import one_of_each


class _Voter(NamedTuple):
    """A language of a task. `right`: its measured items (number of the context) x
    checkpoints, 0.0 or 1.0, NaN if not measured."""

    task: str
    right: pd.DataFrame


RULES = ("accuracy", "borda", "copeland", "minimax")
_DIGITS = 9  # means that differ by rounding alone are ties


def count_votes(scores_MV: Floats) -> dict[str, Floats]:
    """The mean rank of each checkpoint (1 is the highest score of a voter; equal
    scores share the mean of their ranks), and its points by each rule. `scores_MV`:
    checkpoints x voters."""
    ranks_MV = pd.DataFrame(scores_MV).rank(axis=0, ascending=False).to_numpy()
    # how many have the first above
    votes_MM = np.stack([(scores > scores_MV).sum(axis=1) for scores in scores_MV])
    beats_MM = votes_MM > votes_MM.T
    return {
        "mean_rank": ranks_MV.mean(axis=1),
        "borda": (len(scores_MV) - ranks_MV).sum(axis=1),
        "copeland": beats_MM.sum(axis=1) - beats_MM.sum(axis=0),
        "worst_defeat": np.where(beats_MM, votes_MM, 0).max(axis=0),
    }


def _rows(inputs: Inputs) -> Iterator[Row]:
    by_task: dict[str, dict[str, Subject]] = {}
    over_all: dict[str, Subject] = {}
    for subject in inputs.checkpoints:
        by_task.setdefault(subject.task, {})[subject.checkpoint] = subject
        over_all.setdefault(subject.checkpoint, replace(subject, task=ALL))
    once = one_of_each(by_task)
    for probe in CORRECT:
        voters = {task: _voters(inputs, [*over_all], task, probe) for task in by_task}
        if len(once) > 1:
            every = [*chain.from_iterable(voters[task] for task in once)]
            for row in _elected(inputs, over_all, every):
                # with each reason why its rows are not comparable
                name, reasons = row["checkpoint"], inputs.incomparable
                why = [reasons.get((task, name)) for task in sorted(by_task)]
                row["reason"] = joined_reasons(*why, row["reason"])
                yield row | _counts(inputs, name, [*by_task], probe)
        for task, subjects in by_task.items():
            for row in _elected(inputs, subjects, voters[task]):
                yield row | _counts(inputs, row["checkpoint"], [task], probe)


def _counts(inputs: Inputs, name: str, tasks: Sequence[str], probe: str) -> Row:
    status = f"{probe}_status"
    items = pd.concat([inputs.outcomes_of(name, task)[[status]] for task in tasks])
    return {"probe": probe, **left_out_of(items, status)}


def _voters(
    inputs: Inputs, checkpoints: Sequence[str], task: str, probe: str
) -> list[_Voter]:
    """The languages of a task with measured items; every checkpoint of the run has a
    column."""
    columns = []
    for name in checkpoints:
        items = all_measured(inputs.outcomes_of(name, task), f"{probe}_status")
        right = items.set_index(["language", "item", "context"])[CORRECT[probe]]
        columns.append(right.astype("float64").rename(name))
    if not sum(map(len, columns)):
        return []
    joined = pd.concat(columns, axis=1).sort_index()
    return [_Voter(task, right) for _, right in joined.groupby(level=0)]


def _elected(
    inputs: Inputs, subjects: Mapping[str, Subject], voters: Sequence[_Voter]
) -> Iterator[Row]:
    """The rows of one election, then the unranked checkpoints; none with fewer than
    two checkpoints or voters."""
    unranked = _unranked(inputs, subjects, voters)
    ranked = [name for name in subjects if name not in unranked]
    heard = []
    for task, right in voters:
        shared = right[ranked].dropna()
        if len(shared):
            heard.append(_Voter(task, shared))
    if len(ranked) < 2 or len(heard) < 2:
        return
    counts, contexts = _count(heard), _contexts(heard)
    answers = np.concatenate([right.to_numpy() for _, right in heard])
    sizes = [len(right) for _, right in heard]
    weights = np.repeat([1 / (size * len(heard)) for size in sizes], sizes)
    reason = None
    if silent := len(voters) - len(heard):
        reason = f"{silent} voters have no item that all ranked checkpoints measured"
    for at, name in enumerate(ranked):
        mean = Mean(answers[:, at], contexts, weights=weights)
        row = subjects[name].row | {"voters": len(heard), "n": len(contexts)}
        row |= of_mean("accuracy", mean) | dict(counts.loc[name])
        yield row | {"ties": _ties(counts, name), "reason": reason}
    for name, row in unranked.items():
        yield subjects[name].row | row


def _unranked(
    inputs: Inputs, subjects: Mapping[str, Subject], voters: Sequence[_Voter]
) -> dict[str, Row]:
    """The checkpoints without an item for a voter, or decided early on a task."""
    rows: dict[str, Row] = {}
    tasks = dict.fromkeys(task for task, _ in voters)
    for name in subjects:
        known = sum(bool(right[name].notna().any()) for _, right in voters)
        early = [task for task in tasks if (task, name) in inputs.decided_early]
        why = f"it has items for {known} of {len(voters)} voters"
        if early:
            why = f"decided early on {', '.join(early)}"
        if early or known < len(voters):
            rows[name] = {"voters": known, "n": 0, "reason": f"not ranked: {why}"}
    return rows


def _count(voters: Sequence[_Voter]) -> pd.DataFrame:
    """The points of each checkpoint, and its place by each rule (`<rule>_place`).
    Checkpoints with the same points share the best of their places."""
    rights = [right.to_numpy() for _, right in voters]
    shares_MV = np.stack([right.mean(axis=0) for right in rights], axis=1)
    scores_MV = np.stack([right.sum(axis=0) for right in rights], axis=1)
    counts = pd.DataFrame(count_votes(scores_MV), voters[0].right.columns)
    points = counts.assign(
        accuracy=np.round(shares_MV.mean(axis=1), _DIGITS),
        minimax=-counts["worst_defeat"],
    )
    places = points[[*RULES]].rank(ascending=False, method="min")
    return counts.join(places.add_suffix("_place"))


def _contexts(voters: Sequence[_Voter]) -> ItemNumbers:
    """The context of each voter's items. No two tasks share a context."""
    tasks = list(dict.fromkeys(task for task, _ in voters))
    numbers = [right.index.get_level_values(2).to_numpy(np.intp) for _, right in voters]
    many = 1 + max(int(each.max()) for each in numbers)
    for at, (task, _) in enumerate(voters):
        numbers[at] = numbers[at] + many * tasks.index(task)
    return np.concatenate(numbers)


def _ties(counts: pd.DataFrame, name: str) -> str | None:
    """`borda with 1`: how many others share a checkpoint's place by each rule."""
    ties = []
    for rule in RULES:
        place = counts[f"{rule}_place"]
        if others := int((place == place[name]).sum()) - 1:
            ties.append(f"{rule} with {others}")
    return ", ".join(ties) or None


_DRAWN = (  # rule, name, colour
    ("accuracy", "mean accuracy", "muted"),
    ("borda", "borda", "greedy"),
    ("copeland", "copeland", "choice"),
    ("minimax", "minimax", "mc_only"),
)


def _places(probe: str) -> list[Series]:
    series = []
    for number, (rule, name, colour) in enumerate(_DRAWN):
        column, shift = f"{rule}_place", 0.24 * (number - 1.5)
        hollow = rule == "accuracy"
        series.append(Series(column, colour, name, {"probe": probe}, shift, hollow))
    return series


def _over_all_tasks(frame: pd.DataFrame) -> pd.DataFrame:
    """The places over all tasks, or of the only task."""
    frame = frame[frame["borda_place"].notna()]
    over_all = frame[frame["task"] == ALL]
    return (frame if over_all.empty else over_all).assign(language=ALL)


TABLE = Table(
    name="vote",
    title="Which checkpoint would the languages and tasks vote for?",
    reading=(
        "Every language of every task is a voter that ranks the checkpoints by their"
        " right items. Borda counts the checkpoints below, Copeland the checkpoints"
        " that a majority of voters places below, minimax ranks by the worst defeat."
        " Checkpoints that a rule cannot separate share a place. If the rules and the"
        " mean accuracy disagree, a few voters with large differences decided the mean."
        " A place has no interval: if the intervals of the mean accuracy overlap, the"
        " order may be chance."
    ),
    needs="the probe greedy or choice on two checkpoints, in two languages or tasks",
    columns=(
        *SUBJECT,
        *TEXT("probe"),
        *COUNT("voters", "n", "excluded", "engine_error"),
        Column("accuracy", PERCENTAGE, "mean accuracy", interval=True),
        Column("accuracy_place", COUNT, "place"),
        *RANK("mean_rank"),
        Column("borda", AMOUNT, "Borda"),
        Column("borda_place", COUNT, "place by Borda"),
        Column("copeland", COUNT, "Copeland"),
        Column("copeland_place", COUNT, "place by Copeland"),
        *COUNT("worst_defeat"),
        Column("minimax_place", COUNT, "place by minimax"),
        Column("ties", TEXT, "shared places"),
    ),
    compute=_rows,
    figure=(
        Dots("Place, open", _places("greedy"), "places"),
        Dots("Place, choice", _places("choice"), "places"),
    ),
    plotted=_over_all_tasks,
    silent=True,
)
