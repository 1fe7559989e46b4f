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

import numpy as np
import pandas as pd
from msgspec.structs import replace

import evaluator.metrics.columns as col
from evaluator.metrics.columns import Column, Row
from evaluator.metrics.exclusions import joined_reasons, left_out_of
from evaluator.metrics.fates import CORRECT
from evaluator.metrics.inputs import ALL, Inputs, Subject
from evaluator.metrics.intervals import Floats, Mean
from evaluator.metrics.measures import as_floats, of_mean
from evaluator.metrics.table import Dots, Series, Table
from evaluator.store.outcomes import MEASURED
from evaluator.tasks.base import one_of_each

# A language of a task: its measured items (language and number) x checkpoints, 0.0 or
# 1.0, NaN if not measured.
_Voter = tuple[str, pd.DataFrame]
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
    tasks = list(dict.fromkeys(subject.task for subject in inputs.checkpoints))
    once = one_of_each(tasks)
    first: dict[str, Subject] = {}
    for subject in inputs.checkpoints:
        first.setdefault(subject.checkpoint, replace(subject, task=ALL))
    for probe in CORRECT:
        voters = {task: _voters(inputs, [*first], task, probe) for task in tasks}
        elections = (
            [(first, [each for task in once for each in voters[task]])]
            if len(once) > 1
            else []
        )
        for task in tasks:
            own = {
                each.checkpoint: each
                for each in inputs.checkpoints
                if each.task == task
            }
            elections.append((own, voters[task]))
        for subjects, electorate in elections:
            for row in _elected(inputs, subjects, electorate):
                # a row over several tasks, with each reason why they are not comparable
                if row["task"] == ALL:
                    found = [
                        why
                        for (_, name), why in inputs.incomparable.items()
                        if name == row["checkpoint"]
                    ]
                    row["reason"] = joined_reasons(*found, row["reason"])
                counted = dict.fromkeys(
                    each.task
                    for each in inputs.checkpoints
                    if row["task"] in (ALL, each.task)
                )
                status = [
                    inputs.outcomes_of(row["checkpoint"], task)[f"{probe}_status"]
                    for task in counted
                ]
                yield row | {"probe": probe, **left_out_of(pd.concat(status))}


def _voters(
    inputs: Inputs, checkpoints: Sequence[str], task: str, probe: str
) -> list[_Voter]:
    """The languages of a task with measured items; every checkpoint of the run has a
    column."""
    columns = []
    for name in checkpoints:
        items = inputs.outcomes_of(name, task)
        items = items[items[f"{probe}_status"].isin(MEASURED)]
        index = [items["language"], items["item"].to_numpy(np.intp)]
        columns.append(
            pd.Series(as_floats(items[CORRECT[probe]]), index=index, name=name)
        )
    if not sum(map(len, columns)):
        return []
    return [
        (task, right)
        for _, right in pd.concat(columns, axis=1).sort_index().groupby(level=0)
    ]


def _elected(
    inputs: Inputs, subjects: Mapping[str, Subject], voters: Sequence[_Voter]
) -> Iterator[Row]:
    """The rows of one election, then the unranked checkpoints; none with fewer than
    two checkpoints or voters."""
    tasks = list(dict.fromkeys(task for task, _ in voters))
    known = {
        name: sum(bool(right[name].notna().any()) for _, right in voters)
        for name in subjects
    }
    early = {
        name: [task for task in tasks if (task, name) in inputs.decided_early]
        for name in subjects
    }
    ranked = [
        name
        for name, count in known.items()
        if count == len(voters) and not early[name]
    ]
    heard = [(task, right[ranked].dropna()) for task, right in voters]
    heard = [(task, right) for task, right in heard if len(right)]
    if len(ranked) < 2 or len(heard) < 2:
        return
    shares_MV = np.stack([right.to_numpy().mean(axis=0) for _, right in heard], axis=1)
    accuracy = np.round(shares_MV.mean(axis=1), _DIGITS)
    points = count_votes(
        np.stack([right.to_numpy().sum(axis=0) for _, right in heard], axis=1)
    )
    counted = (accuracy, points["borda"], points["copeland"], -points["worst_defeat"])
    # Checkpoints with the same points share the best of their places.
    places = [
        pd.Series(each).rank(ascending=False, method="min").astype(int).to_numpy()
        for each in counted
    ]
    numbers = [
        inputs.contexts(task, right.index.get_level_values(1).to_numpy(np.intp))
        for task, right in heard
    ]
    many = 1 + max(int(each.max()) for each in numbers)  # no two tasks share a context
    contexts = np.concatenate(
        [
            each + many * tasks.index(task)
            for each, (task, _) in zip(numbers, heard, strict=True)
        ]
    )
    weights = np.concatenate(
        [np.full(len(each), 1 / (len(each) * len(numbers))) for each in numbers]
    )
    silent = len(voters) - len(heard)
    reason = (
        f"{silent} voters have no item that all ranked checkpoints measured"
        if silent
        else None
    )
    for at, name in enumerate(ranked):
        row: Row = {
            **subjects[name].row,
            "voters": len(heard),
            "n": len(contexts),
            "reason": reason,
        }
        right = np.concatenate([each[name].to_numpy() for _, each in heard])
        row |= of_mean("accuracy", Mean(right, contexts, weights=weights))
        row |= {rule: each[at] for rule, each in points.items()}
        row |= {
            f"{rule}_place": int(place[at])
            for rule, place in zip(RULES, places, strict=True)
        }
        ties = {
            rule: int((place == place[at]).sum()) - 1
            for rule, place in zip(RULES, places, strict=True)
        }
        row["ties"] = (
            ", ".join(f"{rule} with {count}" for rule, count in ties.items() if count)
            or None
        )
        yield row
    for name, subject in subjects.items():
        if name not in ranked:
            why = f"not ranked: it has items for {known[name]} of {len(voters)} voters"
            why = (
                f"not ranked: decided early on {', '.join(early[name])}"
                if early[name]
                else why
            )
            yield {**subject.row, "voters": known[name], "n": 0, "reason": why}


_DRAWN = (  # rule, name, colour
    ("accuracy", "mean accuracy", "muted"),
    ("borda", "borda", "greedy"),
    ("copeland", "copeland", "choice"),
    ("minimax", "minimax", "mc_only"),
)


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
        *col.SUBJECT,
        Column("probe", col.TEXT),
        *col.COUNT("voters", "n", "excluded", "engine_error"),
        Column("accuracy", col.PERCENTAGE, "mean accuracy", interval=True),
        Column("accuracy_place", col.COUNT, "place"),
        Column("mean_rank", col.RANK),
        Column("borda", col.AMOUNT, "Borda"),
        Column("borda_place", col.COUNT, "place by Borda"),
        Column("copeland", col.COUNT, "Copeland"),
        Column("copeland_place", col.COUNT, "place by Copeland"),
        *col.COUNT("worst_defeat"),
        Column("minimax_place", col.COUNT, "place by minimax"),
        Column("ties", col.TEXT, "shared places"),
    ),
    compute=_rows,
    figure=tuple(
        Dots(
            title,
            tuple(
                Series(
                    f"{rule}_place",
                    colour,
                    name,
                    {"probe": probe},
                    0.24 * (number - 1.5),
                    rule == "accuracy",
                )
                for number, (rule, name, colour) in enumerate(_DRAWN)
            ),
            "places",
        )
        for probe, title in (("greedy", "Place, open"), ("choice", "Place, choice"))
    ),
    plotted=_over_all_tasks,
    silent=True,
)
