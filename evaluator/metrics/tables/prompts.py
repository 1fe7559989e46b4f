"""Table `prompts`: how much of an accuracy is the prompt's (Mizrahi et al., "State of
What Art?", TACL 2024, arXiv 2401.00595).

It has a row for each prompt of a task. The row of `all` prompts has the mean of their
accuracies, the worst, and the spread (best minus worst). All rows use the items that
every prompt measured (`n`; `dropped` counts the others). No prompt is known to be the
worst. So the intervals of the worst and the spread combine those of every prompt and of
every two (`extremes`). Chance alone makes a spread above 0: `cochran_p` tests whether
the prompts differ at all. `against_base` is the conclusion of the table `prompt_order`
for the checkpoint and its base.
"""

from collections.abc import Iterator
from functools import partial
from itertools import combinations, product

import pandas as pd

from evaluator.metrics.columns import (
    COUNT,
    LANGUAGE,
    P_VALUE,
    PERCENTAGE,
    POINTS,
    SUBJECT,
    TEXT,
    Column,
    Row,
)
from evaluator.metrics.exclusions import joined_reasons, left_out_of, why_left_out
from evaluator.metrics.fates import CORRECT
from evaluator.metrics.inputs import ALL, Inputs, Subject, in_language
from evaluator.metrics.intervals import (
    ALPHA,
    FEWEST,
    Floats,
    ItemNumbers,
    Mean,
    too_few,
)
from evaluator.metrics.measures import bounds, rate
from evaluator.metrics.table import Dots, Series, Table
from evaluator.metrics.tables.prompt_order import (
    Answers,
    PosedTask,
    cochran_p,
    conclusions_against_base,
    posed_tasks,
)


def _rows(inputs: Inputs) -> Iterator[Row]:
    for posed in posed_tasks(inputs):
        against_base = conclusions_against_base(posed)
        languages: set[str] = set()
        for task in posed.tasks.values():
            languages.update(inputs.languages(task))
        for format, subject, probe in product(inputs.formats, posed.subjects, CORRECT):
            answers = posed.answers([subject.checkpoint], format, probe)
            if answers is None:
                continue
            own = {"task": posed.task, "format": format, "probe": probe}
            for language in (ALL, *sorted(languages)):
                row = subject.row | own | {"language": language}
                whole, *by_prompt = _of_language(posed, subject, answers, row)
                if language == ALL and format == "open":
                    conclusion = against_base.get((subject.checkpoint, probe))
                    whole["against_base"] = conclusion
                yield from (whole, *by_prompt)


def _of_language(
    posed: PosedTask, subject: Subject, answers: Answers, own: Row
) -> Iterator[Row]:
    """The row of all prompts, then one for each."""
    language, status = own["language"], f"{own['probe']}_status"
    here, few = answers.of_language(language), posed.few(subject.checkpoint)
    right_PI = here.right[subject.checkpoint]
    own = own | {
        "n": right_PI.shape[1],
        "dropped": here.dropped.get(language, 0),
        "prompts": len(here.prompts),
    }
    none = None if own["n"] else "no item was measured under every prompt"
    whole = own | {"prompt": ALL, "reason": joined_reasons(few, none)}
    yield whole | (_over_prompts(here, right_PI) if own["n"] else {})
    for prompt, right in zip(here.prompts, right_PI, strict=True):
        task = posed.tasks[prompt]
        items = in_language(
            posed.inputs.outcomes_of(subject.checkpoint, task, own["format"]), language
        )
        why = posed.inputs.incomparable.get((task, subject.checkpoint))
        yield {
            **own,
            "prompt": prompt,
            **left_out_of(items, status),
            **rate("accuracy", right, here.contexts),
            "reason": joined_reasons(few, why, why_left_out(items, status)),
        }


def _over_prompts(answers: Answers, right_PI: Floats) -> Row:
    accuracies = right_PI.mean(axis=1)
    worst, best = int(accuracies.argmin()), int(accuracies.argmax())
    return {
        **rate("accuracy", right_PI.mean(axis=0), answers.contexts),
        "worst": float(accuracies[worst]),
        "spread": float(accuracies[best] - accuracies[worst]),
        "worst_prompt": answers.prompts[worst],
        "best_prompt": answers.prompts[best],
        "cochran_p": cochran_p(right_PI),
        **extremes(right_PI, answers.contexts),
    }


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
        " that is smaller than the spread may be different under another prompt: see"
        " against base, and the next table."
    ),
    needs="prompts in the sweep, and the probe greedy or choice",
    columns=(
        *SUBJECT,
        *TEXT("format", "probe"),
        LANGUAGE,
        *TEXT("prompt"),
        *COUNT("prompts", "n", "dropped", "excluded", "engine_error"),
        *PERCENTAGE.estimates("accuracy", "worst"),
        *TEXT("worst_prompt", "best_prompt"),
        *POINTS.estimates("spread"),
        Column("cochran_p", P_VALUE, "Cochran p"),
        *TEXT("against_base"),
    ),
    compute=_rows,
    figure=(
        Dots("Open, under each prompt", partial(_prompts, "greedy")),
        Dots("Choice, under each prompt", partial(_prompts, "choice")),
    ),
    # a column without whiskers
    plotted=lambda frame: frame.assign(of_prompt=frame["accuracy"])[
        (frame["format"] == "open") & (frame["language"] == ALL) & (frame["n"] > 0)
    ],
    silent=True,
)
