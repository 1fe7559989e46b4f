"""Table `prompts`: how much of an accuracy is the prompt's (Mizrahi et al., "State of
What Art?", TACL 2024, arXiv 2401.00595).

It has a row for each prompt of a task. The row of `all` prompts has the mean of their
accuracies, the worst, and the spread (best minus worst). All rows use the items that
every prompt measured (`n`; `dropped` counts the others). No prompt is known to be the
worst. So the intervals of the worst and the spread combine those of every prompt and of
every two (`extremes`). Chance alone makes a spread above 0: `cochran_p` tests whether
the prompts differ at all.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, product

import numpy as np
import pandas as pd
from scipy.special import chdtrc

from evaluator.metrics.columns import (
    COUNT,
    LANGUAGE,
    P_VALUE,
    PERCENTAGE,
    POINTS,
    SUBJECT,
    TEXT,
    WORDS,
    Column,
    Row,
)
from evaluator.metrics.fates import CORRECT
from evaluator.metrics.inputs import Inputs, Subject
from evaluator.metrics.intervals import (
    ALPHA,
    FEWEST,
    Floats,
    ItemNumbers,
    Mean,
    too_few,
)
from evaluator.metrics.items import ALL, Items, joined_reasons
from evaluator.metrics.measures import bounds, rate
from evaluator.metrics.table import Dots, Series, Table
from evaluator.store.outcomes import MEASURED
from evaluator.tasks.base import PAPER, task_and_prompt


@dataclass(frozen=True)
class _Answers:
    """Which items a checkpoint has right, of those measured under every prompt."""

    prompts: tuple[str, ...]
    items: Items  # with their languages, groups and contexts
    right_PI: Floats  # prompts x items
    dropped: Items  # that only some prompts measured

    def of(self, cut: str) -> "_Answers":
        """Those of a language or a group."""
        items = self.items.of(cut)
        here = np.isin(self.items["item"], items["item"])
        right, dropped = self.right_PI[:, here], self.dropped.of(cut)
        return replace(self, items=items, right_PI=right, dropped=dropped)


def _posed_tasks(inputs: Inputs) -> dict[str, dict[str, str]]:
    """The tasks of a run with two or more prompts: by prompt, the paper's first, the
    name of the task that it makes."""
    tasks: dict[str, dict[str, str]] = {}
    for subject in inputs.checkpoints:
        task, prompt = task_and_prompt(subject.task)
        tasks.setdefault(task, {})[prompt] = subject.task
    posed = {}
    for task, names in tasks.items():
        if len(names) > 1:
            posed[task] = dict(sorted(names.items(), key=lambda each: each[0] != PAPER))
    return posed


def _rows(inputs: Inputs) -> Iterator[Row]:
    by_key = {subject.key: subject for subject in inputs.checkpoints}
    for task, tasks in _posed_tasks(inputs).items():
        cuts: set[str] = set()
        subjects: dict[str, Subject] = {}
        for subject in inputs.checkpoints:
            if task_and_prompt(subject.task)[0] == task:
                subjects.setdefault(subject.checkpoint, subject)
        for name in tasks.values():
            cuts.update(inputs.cuts[name])
        for format, subject, probe in product(
            inputs.formats, subjects.values(), CORRECT
        ):
            answers = _answers(inputs, subject.checkpoint, tasks, format, probe)
            if answers is None:
                continue
            posed = {}
            for prompt in answers.prompts:
                posed[prompt] = by_key[tasks[prompt], subject.checkpoint]
            own = {"task": task, "format": format, "probe": probe}
            for cut in (ALL, *sorted(cuts)):
                row = subject.row | own | {"language": cut}
                yield from _of_language(inputs, posed, answers, row)


def _answers(
    inputs: Inputs, checkpoint: str, tasks: Mapping[str, str], format: str, probe: str
) -> _Answers | None:
    """The checkpoint's answers; None if it has fewer than two prompts, or no item
    under all of them."""
    measured = {}
    for prompt, task in tasks.items():
        items = inputs.outcomes_of(checkpoint, task, format)
        items = items[items[f"{probe}_status"].isin(MEASURED)]
        if not items.empty:
            measured[prompt] = items.set_index(["language", "item_id"])
    if len(measured) < 2:
        return None
    right = {
        prompt: items[CORRECT[probe]].astype("float64")
        for prompt, items in measured.items()
    }
    joined = pd.concat(right, axis=1)
    whole = joined.dropna().sort_index()
    if whole.empty:
        return None
    every = pd.concat([inputs.asked(tasks[prompt]) for prompt in measured])
    every = every.drop_duplicates(["language", "item_id"])
    every["item"] = np.arange(len(every))
    every = every.set_index(["language", "item_id"], drop=False)
    dropped = joined.index.difference(whole.index)
    return _Answers(
        prompts=tuple(measured),
        items=Items.of_columns({**every.loc[whole.index]}),
        right_PI=whole.to_numpy(np.float64).T,
        dropped=Items.of_columns({**every.loc[dropped]}),
    )


def _of_language(
    inputs: Inputs, posed: Mapping[str, Subject], answers: _Answers, own: Row
) -> Iterator[Row]:
    """The row of all prompts, then one for each. `posed`: the checkpoint's subjects,
    by prompt."""
    cut, status = own["language"], f"{own['probe']}_status"
    here = answers.of(cut)
    own = own | {
        "n": here.right_PI.shape[1],
        "dropped": len(here.dropped),
        "prompts": len(here.prompts),
    }
    none = None if own["n"] else "no item was measured under every prompt"
    whole = own | {"prompt": ALL, "reason": none}
    yield whole | (_over_prompts(here) if own["n"] else {})
    for prompt, right in zip(here.prompts, here.right_PI, strict=True):
        items = inputs.of(posed[prompt], own["format"]).of(cut)
        why = inputs.incomparable.get(posed[prompt].key)
        yield {
            **own,
            "prompt": prompt,
            **items.left_out(status),
            **rate("accuracy", right, here.items),
            "reason": joined_reasons(why, items.why_left_out(status)),
        }


def _over_prompts(answers: _Answers) -> Row:
    right_PI = answers.right_PI
    accuracies = right_PI.mean(axis=1)
    worst, best = int(accuracies.argmin()), int(accuracies.argmax())
    return {
        **rate("accuracy", right_PI.mean(axis=0), answers.items),
        "worst": float(accuracies[worst]),
        "spread": float(accuracies[best] - accuracies[worst]),
        "worst_prompt": answers.prompts[worst],
        "best_prompt": answers.prompts[best],
        "cochran_p": cochran_p(right_PI),
        **extremes(right_PI, answers.items["context"]),
    }


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


def extremes(right_PI: Floats, contexts: ItemNumbers) -> Row:
    """The intervals of the worst accuracy and of the spread over P prompts.

    The worst is above the least lower bound, and below every prompt's upper bound;
    these share the error. Likewise, the spread is below the greatest upper bound of the
    difference of any two prompts, and above every lower bound.
    """
    level, prompts = ALPHA / 2, len(right_PI)
    shared = level / (prompts * (prompts - 1))
    means = [Mean(right, contexts) for right in right_PI]
    if means[0].contexts < FEWEST:
        few = too_few(means[0].contexts)
        return bounds("worst", few) | bounds("spread", few)
    low = min(mean.lower(level) for mean in means)
    high = min(mean.upper(level / prompts) for mean in means)
    least = most = 0.0
    for one, other in combinations(right_PI, 2):
        pair = Mean(one - other, contexts, low=-1.0)
        least = max(least, pair.lower(shared), -pair.upper(shared))
        most = max(most, pair.upper(level), -pair.lower(level))
    return bounds("worst", (low, high)) | bounds("spread", (least, most))


def _prompts(probe: str, frame: pd.DataFrame) -> list[Series]:
    """The mean over the prompts, and a little above it each prompt as a hollow dot.
    The table names the prompts."""
    whole = {"probe": probe, "prompt": ALL}
    series = [Series("accuracy", probe, "mean over prompts", whole, 0.12)]
    for prompt in frame["prompt"].unique():
        if prompt != ALL:
            label = "one prompt" if len(series) == 1 else ""
            where = {"probe": probe, "prompt": prompt}
            series.append(Series("of_prompt", "muted", label, where, -0.16, True))
    return series


TABLE = Table(
    name="prompts",
    title="How much of it is the prompt?",
    reading=(
        "Accuracy under each prompt, and over all prompts: mean, worst, and spread"
        " (best minus worst), on the items that every prompt measured. Chance alone"
        " makes a spread; Cochran's p shows whether the prompts differ at all. A drop"
        " that is smaller than the spread may be different under another prompt."
    ),
    needs="prompts in the sweep, and the probe greedy or choice",
    columns=(
        *SUBJECT,
        *TEXT("format", "probe"),
        LANGUAGE,
        *TEXT("prompt"),
        *COUNT("prompts", "n", "dropped", "excluded", "engine_error"),
        *PERCENTAGE.estimates("accuracy", "worst"),
        *WORDS("worst_prompt", "best_prompt"),
        *POINTS.estimates("spread", p="cochran_p"),
        Column("cochran_p", P_VALUE, "Cochran p"),
    ),
    compute=_rows,
    figure=(
        Dots("Said, under each prompt", partial(_prompts, "greedy")),
        Dots("Picked, under each prompt", partial(_prompts, "choice")),
    ),
    # a column without whiskers
    plotted=lambda frame: frame.assign(of_prompt=frame["accuracy"])[
        (frame["format"] == "open") & (frame["language"] == ALL) & (frame["n"] > 0)
    ],
)
