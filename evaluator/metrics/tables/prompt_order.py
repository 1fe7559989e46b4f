"""Table `prompt_order`: does the better of two checkpoints depend on the prompt?

In tasks with several prompts, each pair of checkpoints has a row for each prompt, with

- the paired difference of their accuracies;
- whether it may be chance: McNemar's p, and Holm's correction over the pairs under that
  prompt. Pairs of a checkpoint with its base are one family, all other pairs another.
  Two checkpoints with the same weights have no Holm p;
- the verdict on the first checkpoint from this prompt alone: `better`, `worse` or
  `unclear`.

The row of `all` prompts has the mean difference, and the conclusion from the verdicts:

    same        every verdict is `better`, or every verdict is `worse`
    different   one verdict is `better` and another `worse`; or verdicts are not the
                same, and a shift is significant
    unclear     anything else: the items do not show whether the prompt matters

A difference under one prompt and none under another may be chance. So `shift` is the
difference under a prompt minus the mean over the P prompts. It is significant if its
interval, of level 1 - .05 / P (Bonferroni), excludes 0: about 5 % of the pairs without
a shift show one. `shifted_under` names those prompts. `order_changes`: the first
checkpoint is ahead under one prompt and behind under another, perhaps by chance.

All rows are of open prompts and pooled over languages, on the items that both
checkpoints measured under every prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import chdtrc

from evaluator.metrics.columns import (
    COUNT,
    FLAG,
    MCNEMAR,
    PERCENTAGE,
    POINTS,
    TEXT,
    Row,
)
from evaluator.metrics.exclusions import all_measured, joined_reasons
from evaluator.metrics.fates import CORRECT
from evaluator.metrics.inputs import ALL, Inputs, Subject
from evaluator.metrics.intervals import ALPHA, Floats, ItemNumbers, mcnemar_p
from evaluator.metrics.measures import correct_for_many, difference
from evaluator.metrics.table import Table
from evaluator.tasks.base import PAPER, task_and_prompt

VERDICTS = ("better", "worse", "unclear")
_BASE, _OTHERS = "base", "others"


def _rows(inputs: Inputs) -> Iterator[Row]:
    for posed in posed_tasks(inputs):
        yield from _of_task(posed, _pairs(posed))


def conclusions_against_base(posed: PosedTask) -> dict[tuple[str, str], str]:
    """By checkpoint and probe, the conclusion on it against its base: the common
    verdict, or the different ones."""
    pairs = {pair: kind for pair, kind in _pairs(posed).items() if kind == _BASE}
    conclusions = {}
    for row in _of_task(posed, pairs):
        if row["prompt"] == ALL:
            conclusions[row["checkpoint"], row["probe"]] = _conclusion(row)
    return conclusions


def _conclusion(row: Row) -> str:
    """The conclusion of the row of all prompts, as a sentence."""
    under = {}
    for name in (*VERDICTS, "shifted"):
        if prompts := row[f"{name}_under"]:
            under[name] = f"{name} under {prompts}"
    verdicts = [name for name in under if name != "shifted"]
    if len(verdicts) == 1 and row["conclusion"] != "different":
        return f"{verdicts[0]} under every prompt"
    return f"{row['conclusion']}: {'; '.join(under.values())}"


def _pairs(posed: PosedTask) -> dict[tuple[str, str], str]:
    """Every two checkpoints: a checkpoint before its base, other pairs in display
    order."""
    pairs: dict[tuple[str, str], str] = {}
    for one, other in combinations(posed.subjects, 2):
        if one.base == other.checkpoint:
            pairs[one.checkpoint, other.checkpoint] = _BASE
        elif other.base == one.checkpoint:
            pairs[other.checkpoint, one.checkpoint] = _BASE
        else:
            pairs[one.checkpoint, other.checkpoint] = _OTHERS
    return pairs


def _of_task(posed: PosedTask, pairs: Mapping[tuple[str, str], str]) -> list[Row]:
    by_pair: list[list[Row]] = []
    for probe in CORRECT:
        for pair, kind in pairs.items():
            answers = posed.answers(pair, "open", probe)
            if answers is not None:
                own: Row = {"task": posed.task, "pair": kind, "probe": probe}
                own["checkpoint"], own["other"] = pair
                by_pair.append([own | row for row in _of_pair(posed, answers, pair)])
    rows, tests = list(chain.from_iterable(by_pair)), []
    for row in rows:
        task = posed.tasks.get(row["prompt"], posed.task)
        if posed.inputs.could_differ(task, row["checkpoint"], row["other"]):
            tests.append(row)
    correct_for_many(tests, ("probe", "prompt", "pair"))
    for of_pair in by_pair:
        _conclude(of_pair)
    return rows


def _of_pair(
    posed: PosedTask, answers: Answers, pair: tuple[str, str]
) -> Iterator[Row]:
    """The row of all prompts, then one for each."""
    first_PI, second_PI = (answers.right[name] for name in pair)
    differences_PI = first_PI - second_PI
    mean_I = differences_PI.mean(axis=0)
    prompts, contexts = len(answers.prompts), answers.contexts
    furthest = 2 - 2 / prompts  # one prompt differs by 1, and all others by -1
    bounds = {"low": -furthest, "high": furthest, "level": ALPHA / prompts}
    few = posed.few(*pair)
    counts: Row = {"n": len(mean_I), "dropped": answers.dropped[ALL]}
    yield {
        **counts,
        "prompt": ALL,
        "prompts": prompts,
        "accuracy": float(first_PI.mean()),
        "other_accuracy": float(second_PI.mean()),
        "reason": few,
        **difference("difference", mean_I, contexts),
    }
    for prompt, first, second, differences in zip(
        answers.prompts, first_PI, second_PI, differences_PI, strict=True
    ):
        task, reasons = posed.tasks[prompt], posed.inputs.incomparable
        notes = [reasons.get((task, name)) for name in pair]
        yield {
            **counts,
            "prompt": prompt,
            "mcnemar_p": mcnemar_p(first, second),
            "accuracy": float(first.mean()),
            "other_accuracy": float(second.mean()),
            **difference("difference", differences, contexts),
            **difference("shift", differences - mean_I, contexts, **bounds),
            "reason": joined_reasons(few, *notes),
        }


def _conclude(rows: Sequence[Row]) -> None:
    """Fill in the verdicts of one pair's prompts, and the conclusion in its first
    row."""
    whole, *by_prompt = rows
    under: dict[str, list[str]] = {name: [] for name in (*VERDICTS, "shifted")}
    signs = set()
    for row in by_prompt:
        row["verdict"] = _verdict(row)
        under[row["verdict"]].append(row["prompt"])
        signs.add(np.sign(row["difference"]))
        low, high = row["shift_low"], row["shift_high"]
        if low is not None and (low > 0 or high < 0):
            under["shifted"].append(row["prompt"])
    for name, prompts in under.items():
        whole[f"{name}_under"] = ", ".join(prompts) or None
    whole["order_changes"] = {-1, 1} <= signs
    whole["conclusion"] = "unclear"
    if len(by_prompt) in (len(under["better"]), len(under["worse"])):
        whole["conclusion"] = "same"
    elif under["shifted"] or (under["better"] and under["worse"]):
        whole["conclusion"] = "different"


def _verdict(row: Row) -> str:
    if row["holm_p" if "holm_p" in row else "mcnemar_p"] >= ALPHA:
        return "unclear"
    return "better" if row["difference"] > 0 else "worse"


def _changing(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows for the page: every pair once, and all prompts of pairs with the
    conclusion `different`."""
    concluded = frame.groupby(["task", "checkpoint", "other", "probe"], sort=False)[
        "conclusion"
    ].transform("first")
    return frame[(frame["prompt"] == ALL) | (concluded == "different")]


TABLE = Table(
    name="prompt_order",
    title="Does the prompt decide which checkpoint is better?",
    reading=(
        "Two checkpoints under each prompt: the paired difference of their accuracies"
        " (first minus other), and the verdict that this prompt alone would give."
        " Conclusion: same, if every prompt prefers the same checkpoint; different, if"
        " prompts contradict each other or the interval of a shift excludes 0; unclear"
        " otherwise. A shift is the prompt's own effect on the difference. Its interval"
        " allows for the number of prompts."
    ),
    needs="prompts in the sweep, and the probe greedy or choice on two checkpoints",
    columns=(
        *TEXT("task", "checkpoint", "other", "pair", "probe", "prompt"),
        *COUNT("prompts", "n", "dropped"),
        *PERCENTAGE("accuracy", "other_accuracy"),
        *POINTS.estimates("difference", "shift"),
        *MCNEMAR,
        *TEXT("verdict", "conclusion"),
        *TEXT(*(f"{verdict}_under" for verdict in VERDICTS), "shifted_under"),
        *FLAG("order_changes"),
    ),
    compute=_rows,
    silent=True,
    page=_changing,
)


@dataclass(frozen=True)
class Answers:
    """Which items checkpoints have right, of those that all of them measured under
    every prompt."""

    prompts: tuple[str, ...]
    languages: np.ndarray[Any, Any]  # of each item
    contexts: ItemNumbers  # of each item, its context
    right: Mapping[str, Floats]  # by checkpoint, prompts x items
    # items that only some prompts or checkpoints measured: per language, and of all
    dropped: Mapping[str, int]

    def of_language(self, language: str) -> Answers:
        if language == ALL:
            return self
        here = self.languages == language
        right = {name: each[:, here] for name, each in self.right.items()}
        return replace(
            self,
            languages=self.languages[here],
            contexts=self.contexts[here],
            right=right,
        )


@dataclass(frozen=True)
class PosedTask:
    """A task and its prompts, the paper's first. `subjects`: the checkpoints
    evaluated under two or more of them."""

    inputs: Inputs
    task: str
    tasks: Mapping[str, str]  # prompt -> the name of the task that it makes
    subjects: Sequence[Subject]
    _known: dict[tuple[str, ...], pd.DataFrame] = field(default_factory=dict)

    def few(self, *checkpoints: str) -> str | None:
        """Which of these checkpoints were evaluated on a few items only, under which
        prompt: all prompts use those items. The first checkpoint under the first prompt
        is left out: every table reports it.
        """
        notes = []
        for prompt, task in self.tasks.items():
            for name in checkpoints:
                note = self.inputs.decided_early.get((task, name))
                if note and (task, name) != (self.task, checkpoints[0]):
                    notes.append(f"{name}, {prompt}: {note}")
        return joined_reasons(*notes)

    def answers(
        self, checkpoints: Sequence[str], format: str, probe: str
    ) -> Answers | None:
        """The checkpoints' answers; None if they share fewer than two prompts, or no
        item."""
        measured: dict[tuple[str, str], pd.DataFrame] = {}
        prompts = []
        for prompt in self.tasks:
            of_prompt = {}
            for name in checkpoints:
                of_prompt[name, prompt] = self._measured(name, prompt, format, probe)
            if not any(items.empty for items in of_prompt.values()):
                prompts.append(prompt)
                measured |= of_prompt
        if len(prompts) < 2:
            return None
        joined = pd.concat(
            {key: items["right"] for key, items in measured.items()}, axis=1
        )
        whole = joined.dropna().sort_index()
        if whole.empty:
            return None
        some = joined.index.difference(whole.index).get_level_values(0).value_counts()
        dropped = {str(language): int(count) for language, count in some.items()}
        # An item's context has one number within the task, for every checkpoint.
        contexts = measured[checkpoints[0], prompts[0]]["context"].loc[whole.index]
        return Answers(
            prompts=tuple(prompts),
            languages=whole.index.get_level_values(0).to_numpy(),
            contexts=contexts.to_numpy(np.intp),
            right={name: whole[name].to_numpy(np.float64).T for name in checkpoints},
            dropped=dropped | {ALL: int(some.sum())},
        )

    def _measured(
        self, checkpoint: str, prompt: str, format: str, probe: str
    ) -> pd.DataFrame:
        key = (checkpoint, prompt, format, probe)
        if key not in self._known:
            items = self.inputs.outcomes_of(checkpoint, self.tasks[prompt], format)
            items = all_measured(items, f"{probe}_status")
            items = items.assign(right=items[CORRECT[probe]].astype("float64"))
            items = items.set_index(["language", "item_id"])
            self._known[key] = items[["context", "right"]]
        return self._known[key]


def posed_tasks(inputs: Inputs) -> Iterator[PosedTask]:
    """The tasks of a run with two or more prompts."""
    tasks: dict[str, dict[str, str]] = {}
    subjects: dict[str, dict[str, list[Subject]]] = {}
    for subject in inputs.checkpoints:
        task, prompt = task_and_prompt(subject.task)
        tasks.setdefault(task, {})[prompt] = subject.task
        of_task = subjects.setdefault(task, {})
        of_task.setdefault(subject.checkpoint, []).append(subject)
    for task, names in tasks.items():
        if len(names) > 1:
            ordered = dict(sorted(names.items(), key=lambda each: each[0] != PAPER))
            several = [each[0] for each in subjects[task].values() if len(each) > 1]
            yield PosedTask(inputs, task, ordered, several)


def cochran_p(right_PI: Floats) -> float:
    """Whether prompts differ at all: the p of Cochran's Q (Biometrika 37, 1950); 1 if
    none differs on any item.

    Approximate if items are few or share contexts. `right_PI`: prompts x items, 0.0 or
    1.0.
    """
    prompts = len(right_PI)
    by_prompt, by_item = right_PI.sum(axis=1), right_PI.sum(axis=0)
    total = right_PI.sum()
    within = prompts * total - (by_item**2).sum()
    if within == 0:
        return 1.0
    q = (prompts - 1) * (prompts * (by_prompt**2).sum() - total**2) / within
    return float(chdtrc(prompts - 1, q))
