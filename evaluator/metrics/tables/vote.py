"""Table `vote`: checkpoints ranked by voting rules, with every language of every task as a voter.

In a mean over tasks, one task with large differences may decide, and the accuracies are not comparable. A voter only
reports which of two checkpoints has more items right. Three rules count the votes (Rofin et al., "Vote'n'Rank", EACL
2023, arXiv 2210.05769), beside the mean accuracy:

    borda          how many checkpoints are below it, summed over the voters; a tie counts a half. Its order is the
                   order of the mean rank, which is M - borda / V for M checkpoints and V voters
    copeland       how many checkpoints it beats, minus how many beat it, two at a time: A beats B if more voters
                   have A above B than B above A
    worst_defeat   the most votes of any checkpoint that beats it; 0 if none does. The minimax rule (Simpson and
                   Kramer) ranks the smallest first

Checkpoints with a tie in a rule share the best of their places (1, 1, 3); `ties` counts the others there. A voter
counts the items that all ranked checkpoints measured. A checkpoint is not ranked

- if it has no item for one of the voters;
- if the gate decided early on a task: its few items would rank the others.

The rows of one task have its languages as voters. With several tasks there are also rows of `all`: there each task has
as many votes as languages. A task with several prompts votes with one prompt alone (the paper's, if evaluated).

The interval is of the mean accuracy, for the given voters. Places have no interval. All known methods either miss the
place too often for close checkpoints, or cover nearly all places.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from evaluator.metrics.columns import (
    AMOUNT,
    COUNT,
    PERCENTAGE,
    RANK,
    REASON,
    SUBJECT,
    TEXT,
    Column,
    Row,
    columns_of,
)
from evaluator.metrics.counting import joined_reasons, left_out_of
from evaluator.metrics.drops import CORRECT
from evaluator.metrics.figure import Dots, Figure, Series
from evaluator.metrics.inputs import ALL, Inputs, Subject
from evaluator.metrics.intervals import Floats, ItemNumbers
from evaluator.metrics.means import Mean
from evaluator.metrics.measures import as_floats, item_numbers, of_mean
from evaluator.metrics.table import Table
from evaluator.store.outcomes import MEASURED
from evaluator.tasks.base import one_of_each

Counts = npt.NDArray[np.intp]

RULES = ("accuracy", "borda", "copeland", "minimax")
_DIGITS = 9  # means that differ by rounding alone are ties


def ranks(scores_MV: Floats) -> Floats:
    """Each voter's ranking, 1 for the highest score; those that share a score share the mean of their ranks."""
    return pd.DataFrame(scores_MV).rank(axis=0, ascending=False).to_numpy()


def places(points_M: Floats) -> Counts:
    """The place of each checkpoint, most points first; those with the same points share the best of their places."""
    return np.asarray(pd.Series(points_M).rank(ascending=False, method="min"), dtype=np.intp)


def borda(scores_MV: Floats) -> Floats:
    """Over the voters, how many checkpoints stand below each; a tie counts a half."""
    return np.asarray((len(scores_MV) - ranks(scores_MV)).sum(axis=1))


def votes_for(scores_MV: Floats) -> Counts:
    """[A, B]: how many voters have A above B."""
    return np.stack([(scores > scores_MV).sum(axis=1) for scores in scores_MV])


def copeland(votes_MM: Counts) -> Counts:
    """How many checkpoints each beats, minus how many beat it."""
    beats = votes_MM > votes_MM.T
    return np.asarray(beats.sum(axis=1) - beats.sum(axis=0))


def worst_defeat(votes_MM: Counts) -> Counts:
    """The most votes that any checkpoint that beats this one has against it."""
    return np.asarray(np.where(votes_MM > votes_MM.T, votes_MM, 0).max(axis=0))


@dataclass(frozen=True, eq=False)
class _Voter:
    """One language of one task: `right_MI` is what each checkpoint has right, NaN if it measured nothing."""

    task: str
    contexts: ItemNumbers  # of each item, within the task
    right_MI: Floats

    def of(self, chosen: Sequence[int]) -> _Voter:
        """The voter restricted to these checkpoints, on the items that they all measured."""
        right = self.right_MI[list(chosen)]
        both = ~np.isnan(right).any(axis=0)
        return _Voter(self.task, self.contexts[both], right[:, both])


@dataclass(frozen=True, eq=False)
class _Election:
    """Some voters of one probe, on the checkpoints that all voters can rank."""

    subjects: Sequence[Subject]  # of all checkpoints; those that are not ranked have a row too
    ranked: Sequence[int]
    out: Mapping[int, str]  # the checkpoints that the gate decided early, and on which tasks
    voters: Sequence[_Voter]
    silent: int  # voters without an item that all ranked checkpoints measured

    def rows(self, probe: str) -> Iterator[Row]:
        scores_MV = np.stack([voter.right_MI.sum(axis=1) for voter in self.voters], axis=1)
        shares_MV = np.stack([voter.right_MI.mean(axis=1) for voter in self.voters], axis=1)
        votes = votes_for(scores_MV)
        accuracy = np.round(shares_MV.mean(axis=1), _DIGITS)
        points = {"borda": borda(scores_MV), "copeland": copeland(votes), "worst_defeat": worst_defeat(votes)}
        counted = (accuracy, points["borda"], points["copeland"], -points["worst_defeat"])
        place = {rule: places(each) for rule, each in zip(RULES, counted, strict=True)}
        contexts, weights = self._weighted_items()
        n = len(contexts)
        reason = f"{self.silent} voters have no item that all ranked checkpoints measured" if self.silent else None
        for at, which in enumerate(self.ranked):
            row: Row = {**self.subjects[which].row, "probe": probe, "voters": len(self.voters), "n": n}
            right = np.concatenate([voter.right_MI[at] for voter in self.voters])
            row |= of_mean("accuracy", Mean(right, contexts, weights=weights))
            row["mean_rank"] = float(ranks(scores_MV)[at].mean())
            row |= {name: each[at] for name, each in points.items()}
            row |= {f"{rule}_place": int(each[at]) for rule, each in place.items()}
            ties = {rule: int((each == each[at]).sum()) - 1 for rule, each in place.items()}
            row["ties"] = ", ".join(f"{rule} with {count}" for rule, count in ties.items() if count) or None
            yield row | {"reason": reason}

    def left_out(self, probe: str, known: Sequence[int], total: int) -> Iterator[Row]:
        """The unranked checkpoints; `known[M]` is how many of `total` voters each has items for."""
        for which, subject in enumerate(self.subjects):
            if which not in self.ranked:
                why = f"not ranked: it has items for {known[which]} of {total} voters"
                why = f"not ranked: decided early on {self.out[which]}" if which in self.out else why
                yield {**subject.row, "probe": probe, "voters": int(known[which]), "n": 0, "reason": why}

    def _weighted_items(self) -> tuple[ItemNumbers, Floats]:
        """The contexts of all voters' items in sequence, and each item's weight."""
        tasks = list(dict.fromkeys(voter.task for voter in self.voters))
        many = 1 + max(int(voter.contexts.max()) for voter in self.voters)
        contexts = [voter.contexts + many * tasks.index(voter.task) for voter in self.voters]
        weights = [np.full(len(each), 1 / (len(each) * len(contexts))) for each in contexts]
        return np.concatenate(contexts), np.concatenate(weights)


def _rows(inputs: Inputs) -> list[Row]:
    rows: list[Row] = []
    tasks = list(dict.fromkeys(subject.task for subject in inputs.checkpoints))
    once = one_of_each(tasks)
    for probe in CORRECT:
        voters = {task: _voters(inputs, task, probe) for task in tasks}
        if len(once) > 1:
            rows += _elected(inputs, probe, _over_tasks(inputs), [each for task in once for each in voters[task]])
        for task in tasks:
            subjects = {each.checkpoint: each for each in inputs.checkpoints if each.task == task}
            rows += _elected(inputs, probe, subjects, voters[task])
    return [_counted(_labelled(row, inputs) if row["task"] == ALL else row, inputs) for row in rows]


def _names(inputs: Inputs) -> list[str]:
    return list(dict.fromkeys(subject.checkpoint for subject in inputs.checkpoints))


def _over_tasks(inputs: Inputs) -> dict[str, Subject]:
    first: dict[str, Subject] = {}
    for subject in inputs.checkpoints:
        first.setdefault(subject.checkpoint, replace(subject, task=ALL))
    return first


def _voters(inputs: Inputs, task: str, probe: str) -> list[_Voter]:
    """The languages of a task with measured items; every checkpoint of the run has a row."""
    columns = []
    for name in _names(inputs):
        items = inputs.outcomes_of(name, task)
        items = items[items[f"{probe}_status"].isin(MEASURED)]
        right = pd.Series(as_floats(items[CORRECT[probe]]), index=[items["language"], item_numbers(items)], name=name)
        columns.append(right)
    if not columns or not sum(len(each) for each in columns):
        return []
    joined = pd.concat(columns, axis=1).sort_index()
    return [
        _Voter(
            task, inputs.contexts(task, rows.index.get_level_values(1).to_numpy(np.intp)), rows.to_numpy(np.float64).T
        )
        for _, rows in joined.groupby(level=0)
    ]


def _elected(inputs: Inputs, probe: str, subjects: Mapping[str, Subject], voters: Sequence[_Voter]) -> list[Row]:
    """The rows of one election; none if fewer than two checkpoints or two voters remain."""
    if len(voters) < 2:
        return []
    names = _names(inputs)
    here = [names.index(name) for name in subjects]
    voters = [replace(voter, right_MI=voter.right_MI[here]) for voter in voters]
    known = np.sum([~np.isnan(voter.right_MI).all(axis=1) for voter in voters], axis=0)
    out = _decided_early(inputs, list(subjects), list(dict.fromkeys(voter.task for voter in voters)))
    ranked = [which for which, count in enumerate(known) if count == len(voters) and which not in out]
    heard = [voter for voter in (each.of(ranked) for each in voters) if len(voter.contexts)]
    if len(ranked) < 2 or len(heard) < 2:
        return []
    election = _Election(list(subjects.values()), ranked, out, heard, len(voters) - len(heard))
    return [*election.rows(probe), *election.left_out(probe, known.tolist(), len(voters))]


def _decided_early(inputs: Inputs, names: Sequence[str], tasks: Sequence[str]) -> dict[int, str]:
    found = {
        which: [task for task in tasks if (task, name) in inputs.decided_early] for which, name in enumerate(names)
    }
    return {which: ", ".join(out) for which, out in found.items() if out}


def _labelled(row: Row, inputs: Inputs) -> Row:
    """A row over several tasks, with each reason why the checkpoint and its base are not comparable."""
    found = [why for (_, name), why in inputs.incomparable.items() if name == row["checkpoint"]]
    return row | {"reason": joined_reasons(*found, row["reason"])}


def _counted(row: Row, inputs: Inputs) -> Row:
    """A row with the number of the checkpoint's own items that were excluded, and on which the engine failed."""
    tasks = dict.fromkeys(each.task for each in inputs.checkpoints if row["task"] in (ALL, each.task))
    status = [inputs.outcomes_of(row["checkpoint"], task)[f"{row['probe']}_status"] for task in tasks]
    return row | left_out_of(pd.concat(status))


_DRAWN = (  # rule, name, colour
    ("accuracy", "mean accuracy", "muted"),
    ("borda", "borda", "greedy"),
    ("copeland", "copeland", "choice"),
    ("minimax", "minimax", "rank"),
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
        "Every language of every task is a voter that ranks the checkpoints by their right items. Borda counts the "
        "checkpoints below, Copeland the checkpoints that a majority of voters places below, minimax ranks by the "
        "worst defeat. Checkpoints that a rule cannot separate share a place. If the rules and the mean accuracy "
        "disagree, a few voters with large differences decided the mean. A place has no interval: if the intervals "
        "of the mean accuracy overlap, the order may be chance."
    ),
    needs="the probe greedy or choice on two checkpoints, in two languages or tasks",
    columns=(
        *SUBJECT,
        Column("probe", TEXT),
        *columns_of(COUNT, "voters", "n", "excluded", "engine_error"),
        Column("accuracy", PERCENTAGE, "mean accuracy", interval=True),
        Column("accuracy_place", COUNT, "place"),
        Column("mean_rank", RANK),
        Column("borda", AMOUNT, "Borda"),
        Column("borda_place", COUNT, "place by Borda"),
        Column("copeland", COUNT, "Copeland"),
        Column("copeland_place", COUNT, "place by Copeland"),
        *columns_of(COUNT, "worst_defeat"),
        Column("minimax_place", COUNT, "place by minimax"),
        Column("ties", TEXT, "shared places"),
        REASON,
    ),
    compute=_rows,
    figure=Figure(
        tuple(
            Dots(
                title,
                tuple(
                    Series(f"{rule}_place", colour, name, {"probe": probe}, 0.16 * (number - 1.5), rule == "accuracy")
                    for number, (rule, name, colour) in enumerate(_DRAWN)
                ),
                "places",
                legend=4 * (probe == "greedy"),
            )
            for probe, title in (("greedy", "Place, open"), ("choice", "Place, choice"))
        ),
        rows=_over_all_tasks,
    ),
    silent=True,
)
