"""How much of a result is the prompt: over several prompts, and with one example.

Table `prompts`: how much of an accuracy is the prompt's (Mizrahi et al., "State of What
Art?", TACL 2024, arXiv 2401.00595).

It has a row for each prompt of a task. The row of `all` prompts has the mean of their
accuracies, the worst, and the spread (best minus worst). All rows use the items that
every prompt measured (`n`; `dropped` counts the others). No prompt is known to be the
worst. So the intervals of the worst and the spread combine those of every prompt and of
every two (`extremes`). Chance alone makes a spread above 0: `cochran_p` tests whether
the prompts differ at all. `against_base` is the conclusion of the table `prompt_order`
for the checkpoint and its base.

Table `one_shot`: accuracy without and with one example, and the gap (dense minus
pruned) of each, on the items measured in all four. The 0-shot format is `open_capped`
if it was evaluated: its context is cut as that of `one_shot` is, so the two differ by
the example alone. Otherwise it is `open`; `zero_shot_format` names which.
"""

from collections.abc import Iterator
from functools import partial
from itertools import combinations

import pandas as pd

import evaluator.metrics.columns as col
from evaluator.metrics.columns import Column, Row
from evaluator.metrics.exclusions import joined_reasons, left_out_of, why_left_out
from evaluator.metrics.fates import CORRECT, why_unpaired
from evaluator.metrics.inputs import (
    ALL,
    ITEM,
    SIDES,
    Inputs,
    Subject,
    in_language,
    slices,
)
from evaluator.metrics.intervals import (
    ALPHA,
    FEWEST,
    Floats,
    ItemNumbers,
    Mean,
    too_few,
)
from evaluator.metrics.measures import (
    as_floats,
    bounds,
    difference,
    paired_difference,
    rate,
)
from evaluator.metrics.table import Dots, Heat, Holm, Lack, Series, Table
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
        languages = sorted(
            {
                language
                for name in posed.tasks.values()
                for language in inputs.languages(name)
            }
        )
        for format in inputs.formats:
            for subject in posed.subjects:
                for probe in CORRECT:
                    answers = posed.answers([subject.checkpoint], format, probe)
                    if answers is None:
                        continue
                    own: Row = {
                        **subject.row,
                        "task": posed.task,
                        "format": format,
                        "probe": probe,
                    }
                    for language in (ALL, *languages):
                        whole, *by_prompt = _of_language(
                            posed, subject, answers, own | {"language": language}
                        )
                        if language == ALL and format == "open":
                            whole["against_base"] = against_base.get(
                                (subject.checkpoint, probe)
                            )
                        yield from (whole, *by_prompt)


def _of_language(
    posed: PosedTask, subject: Subject, answers: Answers, own: Row
) -> Iterator[Row]:
    """The row of all prompts, then one for each."""
    language, probe = own["language"], own["probe"]
    here, few = answers.of_language(language), posed.few(subject.checkpoint)
    right_PI, contexts = here.right[subject.checkpoint], here.contexts
    n = right_PI.shape[1]
    own = own | {
        "n": n,
        "dropped": here.dropped.get(language, 0),
        "prompts": len(here.prompts),
    }
    row: Row = {**own, "prompt": ALL}
    if n:
        accuracies = right_PI.mean(axis=1)
        worst, best = int(accuracies.argmin()), int(accuracies.argmax())
        row |= rate("accuracy", right_PI.mean(axis=0), contexts)
        row |= {
            "worst": float(accuracies[worst]),
            "spread": float(accuracies[best] - accuracies[worst]),
        }
        row |= {"worst_prompt": here.prompts[worst], "best_prompt": here.prompts[best]}
        row |= {"cochran_p": cochran_p(right_PI), **extremes(right_PI, contexts)}
    yield row | {
        "reason": joined_reasons(
            few, None if n else "no item was measured under every prompt"
        )
    }
    for prompt, right in zip(here.prompts, right_PI, strict=True):
        task, status = posed.tasks[prompt], f"{probe}_status"
        items = in_language(
            posed.inputs.outcomes_of(subject.checkpoint, task, own["format"]), language
        )
        row = {
            **own,
            "prompt": prompt,
            **left_out_of(items[status]),
            **rate("accuracy", right, contexts),
        }
        why = posed.inputs.incomparable.get((task, subject.checkpoint))
        yield row | {"reason": joined_reasons(few, why, why_left_out(items, status))}


def extremes(right_PI: Floats, contexts: ItemNumbers) -> Row:
    """The intervals of the worst accuracy and of the spread over P prompts.

    The worst is above the least lower bound, and below every prompt's upper bound;
    these share the error. Likewise, the spread is below the greatest upper bound of the
    difference of any two prompts, and above every lower bound.
    """
    level, prompts = ALPHA / 2, len(right_PI)
    each = [Mean(right, contexts) for right in right_PI]
    if each[0].contexts < FEWEST:
        few = too_few(each[0].contexts)
        return bounds("worst", few) | bounds("spread", few)
    pairs = [
        Mean(one - other, contexts, low=-1.0)
        for one, other in combinations(right_PI, 2)
    ]
    shared = level / (prompts * (prompts - 1))
    worst = (
        min(mean.lower(level) for mean in each),
        min(mean.upper(level / prompts) for mean in each),
    )
    least = max(max(pair.lower(shared), -pair.upper(shared)) for pair in pairs)
    most = max(max(pair.upper(level), -pair.lower(level)) for pair in pairs)
    return bounds("worst", worst) | bounds("spread", (max(0.0, least), most))


def _prompts(probe: str, frame: pd.DataFrame) -> list[Series]:
    """The mean over the prompts, and a little above it each prompt as a hollow dot.
    The table names the prompts."""
    every = [prompt for prompt in frame["prompt"].unique() if prompt != ALL]
    return [
        Series(
            "accuracy",
            probe,
            "mean over prompts",
            {"probe": probe, "prompt": ALL},
            0.12,
        ),
        *(
            Series(
                "of_prompt",
                "muted",
                label,
                {"probe": probe, "prompt": prompt},
                -0.16,
                True,
            )
            for prompt, label in zip(
                every, ["one prompt", *[""] * len(every)], strict=False
            )
        ),
    ]


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
        *col.SUBJECT,
        *col.TEXT("format", "probe"),
        col.LANGUAGE,
        Column("prompt", col.TEXT),
        *col.COUNT("prompts", "n", "dropped", "excluded", "engine_error"),
        *col.PERCENTAGE("accuracy", "worst", interval=True),
        *col.TEXT("worst_prompt", "best_prompt"),
        Column("spread", col.POINTS, interval=True),
        Column("cochran_p", col.P_VALUE, "Cochran p"),
        Column("against_base", col.TEXT),
    ),
    compute=_rows,
    figure=tuple(
        Dots(title, partial(_prompts, probe))
        for probe, title in (
            ("greedy", "Open, under each prompt"),
            ("choice", "Choice, under each prompt"),
        )
    ),
    # a column without whiskers
    plotted=lambda frame: frame.assign(of_prompt=frame["accuracy"])[
        (frame["format"] == "open") & (frame["language"] == ALL) & (frame["n"] > 0)
    ],
    silent=True,
)

SHOTS = ("zero", "one")


def _one_shot_rows(inputs: Inputs) -> Iterator[Row]:
    zeros = {format: inputs.comparisons(format) for format in ("open_capped", "open")}
    for key, one in inputs.comparisons("one_shot").items():
        if one.outcomes.empty:
            continue
        task, format = (
            one.subject.task,
            "open" if zeros["open_capped"][key].outcomes.empty else "open_capped",
        )
        both = zeros[format][key].measured("greedy")
        both = both.merge(
            one.measured("greedy"), on=list(ITEM), suffixes=("_zero", "_one")
        )
        for language, items in slices(both, inputs.languages(task)):
            row = {
                **one.subject.row,
                "language": language,
                "zero_shot_format": format,
                "n": len(items),
            }
            row |= one.counts(language, "greedy")
            why = why_unpaired(one, language, "greedy")
            if items.empty:
                yield row | {
                    "reason": joined_reasons(
                        "no item is measured in both formats and both checkpoints", why
                    )
                }
                continue
            gaps, contexts = [], inputs.contexts_of(task, items)
            for shot in SHOTS:
                dense, pruned = (
                    as_floats(items[f"produced_{side}_{shot}"]) for side in SIDES
                )
                row |= rate(f"{shot}_shot_dense", dense, contexts) | rate(
                    f"{shot}_shot_pruned", pruned, contexts
                )
                row |= paired_difference(
                    f"{shot}_shot_gap",
                    (dense, pruned),
                    contexts,
                    f"{shot}_shot_mcnemar_p",
                )
                gaps.append(dense - pruned)
            row |= difference(
                "repaired", gaps[0] - gaps[1], contexts, low=-2.0, high=2.0
            )
            yield row | {"reason": why}


_CAPPED = (
    "the format open_capped with the probe greedy (0-shot here is open, with whole"
    " contexts)"
)
_GAPS = (("zero_shot_gap", "greedy", "0-shot"), ("one_shot_gap", "kept", "1-shot"))

ONE_SHOT = Table(
    name="one_shot",
    title="Does one example repair it?",
    reading=(
        "The gap to the dense model without and with one example in the prompt. If the"
        " example closes the gap, the answer was still there. zero_shot_format shows"
        " whether the prompt without the example had its context cut in the same way"
        " (open_capped)."
    ),
    needs=(
        "the formats open_capped and one_shot with the probe greedy, on a checkpoint"
        " and its base"
    ),
    columns=(
        *col.BY_LANGUAGE,
        *col.COUNT("n", "excluded", "engine_error", "unpaired"),
        Column("zero_shot_format", col.TEXT),
        *col.PERCENTAGE(
            *(f"{shot}_shot_{side}" for shot in SHOTS for side in SIDES), interval=True
        ),
        Column("zero_shot_gap", col.POINTS, interval=True),
        *col.P_VALUE("zero_shot_mcnemar_p", "zero_shot_holm_p"),
        Column("one_shot_gap", col.POINTS, interval=True),
        *col.P_VALUE("one_shot_mcnemar_p", "one_shot_holm_p"),
        Column("repaired", col.POINTS, interval=True),
    ),
    compute=_one_shot_rows,
    figure=(
        Dots(
            "Gap to the dense model",
            tuple(Series(*each) for each in _GAPS),
            "points",
            width=1.15,
            linked=True,
        ),
        *(
            Heat(
                f"{label} gap by language, points",
                column,
                colour,
                strength=lambda gap: 2 * abs(gap),
            )
            for column, colour, label in _GAPS
        ),
    ),
    corrections=tuple(
        Holm(("task", "language"), f"{shot}_shot_mcnemar_p", f"{shot}_shot_holm_p")
        for shot in SHOTS
    ),
    lacks=(Lack("zero_shot_format", _CAPPED, "open_capped"),),
)
