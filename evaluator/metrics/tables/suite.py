"""Table `suite`: the suite `zero-shot`, as pruning papers print it; a row for each
checkpoint.

A task's own column is lm-eval's `acc` on the same items, and `_norm` its `acc_norm`,
where lm-eval has one. `_open` is the share of answers that are said. `mean` is over the
tasks, each with the same weight; `mean_norm` takes `acc_norm` where there is one, as
other papers do; `mean_open` is over the tasks with an open answer. `wikitext2` is the
perplexity of that text."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from evaluator.metrics.columns import (
    BY_LANGUAGE,
    COUNT,
    COUNTED,
    FACTOR,
    PERCENTAGE,
    Column,
    Row,
)
from evaluator.metrics.comparable import settings_of
from evaluator.metrics.inputs import Inputs, Subject
from evaluator.metrics.items import ALL, Items, joined_reasons
from evaluator.metrics.measures import Share, known, mean_of, of_mean
from evaluator.metrics.table import Dots, Lack, Series, Table
from evaluator.metrics.tables.perplexity import PERPLEXITY, readings_of
from evaluator.tasks.base import task_and_prompt

SUITE, TEXT = "zero-shot", "wikitext2"
_WINDOWS = f"{TEXT}_n"
_ACC, _NORM, _OPEN = "", "_norm", "_open"
# the probe and the outcome of each kind of column
_KINDS = {
    _ACC: ("choice", "acc"),
    _NORM: ("choice", "acc_norm"),
    _OPEN: ("greedy", "produced"),
}
_EVERY = tuple(_KINDS)
_TASKS = {
    "boolq": (_ACC, _OPEN),
    "rte": (_ACC, _OPEN),
    "hellaswag": (_ACC, _NORM),
    "winogrande": (_ACC,),
    "arc_easy": _EVERY,
    "arc_challenge": _EVERY,
    "openbookqa": _EVERY,
}
_TITLES = {
    "boolq": "BoolQ",
    "rte": "RTE",
    "hellaswag": "HellaSwag",
    "winogrande": "WinoGrande",
    "arc_easy": "ARC-e",
    "arc_challenge": "ARC-c",
    "openbookqa": "OBQA",
}


def _rows(inputs: Inputs) -> Iterator[Row]:
    asked: dict[str, dict[str, Subject]] = {}
    for subject in inputs.checkpoints:
        task, suite = task_and_prompt(subject.task)
        settings = settings_of(inputs.run, subject.checkpoint, subject.task)
        # a prompt of the user's own may have the suite's name
        own = bool(settings) and settings.get("suite") != SUITE
        if suite == SUITE and task in _TASKS and not own:
            asked.setdefault(subject.checkpoint, {})[task] = subject
    read: dict[str, Row] = {}
    for reading in readings_of(inputs):
        if reading.row["task"] == TEXT:
            its = read[reading.row["checkpoint"]] = {_WINDOWS: reading.row["n"]}
            for name, value in reading.row.items():
                if name.startswith("perplexity") and "dense" not in name:
                    its[name.replace("perplexity", TEXT)] = value
    for name, subjects in asked.items():
        yield _row(inputs, subjects) | read.get(name, {})


def _row(inputs: Inputs, subjects: Mapping[str, Subject]) -> Row:
    row: Row = {**next(iter(subjects.values())).row, "task": SUITE, "language": ALL}
    row |= {"n": 0, "excluded": 0, "engine_error": 0}
    parts: dict[str, list[tuple[str, Items]]] = {kind: [] for kind in _KINDS}
    reasons = []
    for task, subject in subjects.items():
        items = inputs.of(subject)
        for kind in _TASKS[task]:
            probe, outcome = _KINDS[kind]
            some = items.measured(probe)
            row[f"{task}{kind}_n"] = len(some)
            row |= Share(f"{task}{kind}", outcome)(some)
            if len(some):
                parts[kind].append((outcome, some))
                if kind == _ACC and _NORM not in _TASKS[task]:
                    parts[_NORM].append((outcome, some))
        row["n"] += row[f"{task}_n"]
        for name, count in items.left_out("choice_status").items():
            row[name] += count
        if why := items.why_left_out("choice_status"):
            reasons.append(f"{task}: {why}")
    for kind, tasks in parts.items():
        row |= _mean(f"mean{kind}", tasks)
        row[f"mean{kind}_n"] = sum(len(items) for _, items in tasks)
    if len(parts[_ACC]) < len(_TASKS):
        reasons.append(f"mean of {len(parts[_ACC])} of {len(_TASKS)} tasks")
    return row | {"reason": joined_reasons(*reasons)}


def _mean(name: str, tasks: Sequence[tuple[str, Items]]) -> Row:
    """The unweighted mean over tasks, which share no context."""
    if not tasks:
        return {}
    values, contexts, weights, start = [], [], [], 0
    for outcome, items in tasks:
        numbers, some = known(items, outcome)
        values.append(numbers)
        contexts.append(some["context"] + start)
        weights.append(np.full(len(numbers), 1 / (len(tasks) * max(1, len(numbers)))))
        start += 1 + int(some["context"].max(initial=0))
    joined, of = np.concatenate(values), np.concatenate(contexts)
    return of_mean(name, mean_of(joined, of, weights=np.concatenate(weights)))


MEANS = [f"mean{kind}" for kind in _KINDS]
_WORDS = {_ACC: "", _NORM: " norm", _OPEN: " said"}


def _columns() -> Iterator[Column]:
    for name in MEANS:
        yield from PERCENTAGE.estimates(name, n=f"{name}_n")
        yield from COUNT(f"{name}_n", csv_only=True)
    for task, kinds in _TASKS.items():
        for kind in kinds:
            name, title = f"{task}{kind}", _TITLES[task] + _WORDS[kind]
            yield from PERCENTAGE.estimates(name, title=title, n=f"{name}_n")
            yield from COUNT(f"{name}_n", csv_only=True)


TABLE = Table(
    name="suite",
    title="What would a pruning paper print?",
    reading=(
        "Accuracy of picking, as lm-eval measures it (acc; norm: acc_norm), and beside"
        " it the share of right answers that are said to the same prompt. The means give"
        " each task the same weight; mean norm takes acc_norm where lm-eval has it."
        " wikitext2: perplexity. If picked holds and said falls, papers that print the"
        " first see nothing."
    ),
    needs="the suite zero-shot (--suite zero-shot)",
    columns=(
        *BY_LANGUAGE,
        *COUNTED,
        *_columns(),
        *PERPLEXITY.estimates(TEXT, n=_WINDOWS),
        *FACTOR.estimates(f"{TEXT}_ratio", n=_WINDOWS),
        *COUNT(_WINDOWS, csv_only=True),
    ),
    compute=_rows,
    figure=(
        Dots(
            "Mean of the tasks",
            (Series("mean", "choice", "picked"), Series("mean_open", "greedy", "said")),
            linked=True,
        ),
    ),
    lacks=(Lack(TEXT, "the text of the suite (task wikitext2)"),),
)
