"""Tables `grading` and `extraction`: is a wrong answer graded as right, and is a right
one not found?

`grading`: what does only the paper's rule count as right?

A row for each checkpoint and each probe of answers to the open prompt, on all graded
answers: `n` of them, right by the strict rule (`strict`), by the paper's (`paper`),
and by the paper's alone (`only_paper`), with the first examples. The rules are those
of `evaluator.core.grading`. `rate` is strict / n. The CSV has all rows. The page has
those whose share by the paper's rule is outside of the interval of `rate`.

`extraction`: in how many greedy answers to the open prompt did the task's grader read
no answer (`none`; a cut thought has none), or several? And what does it accept of texts
that are no answer: the gold answer of the next item (`other`), nothing (`empty`), and
the question itself (`question`)? These are shares of the row's first items, FLOOR at
most. `lists_options`: the open prompt does."""

import re
from collections.abc import Iterator

import pandas as pd

from evaluator.core.errors import mapping_at, one_line
from evaluator.core.graders import GRADERS
from evaluator.core.records import Item, is_group
from evaluator.metrics.columns import (
    BY_LANGUAGE,
    COUNT,
    COUNTED,
    FLAG,
    PERCENTAGE,
    REASON,
    TEXT,
    WORDS,
    Column,
    Row,
    rows_of,
)
from evaluator.metrics.comparable import settings_of
from evaluator.metrics.cuts import Cut, add
from evaluator.metrics.inputs import Inputs
from evaluator.metrics.items import ALL, Array, Items
from evaluator.metrics.measures import Share, as_floats, rate
from evaluator.metrics.table import Table
from evaluator.store.outcomes import GRADED

_EXAMPLES = 3
_CHARACTERS = 40  # of an example
FLOOR = 200  # items
_LISTS = re.compile(r"\{[{%][^{}]*\boptions\b")  # a template


def _rows(inputs: Inputs) -> Iterator[Row]:
    for subject in inputs.checkpoints:
        items = inputs.of(subject)
        for probe in GRADED:
            done = items.take(items[f"{probe}_graded"] > 0)
            if len(done):
                row = {"task": subject.task, "checkpoint": subject.checkpoint}
                row |= items.left_out(f"{probe}_status")
                yield row | {"probe": probe} | _graded(done, probe)


def _graded(done: Items, probe: str) -> Row:
    graded = done[f"{probe}_graded"]
    row: Row = {"n": int(graded.sum())}
    for name in ("strict", "paper", "only_paper"):
        row[name] = int(done[f"{probe}_{name}"].sum())
    row["examples"] = _examples(done[f"{probe}_example"])
    row["paper_rate"] = float((done[f"{probe}_paper"] / graded).mean())
    return row | rate("rate", done[f"{probe}_strict"] / graded, done)


def _examples(texts: Array) -> str | None:
    short = dict.fromkeys(one_line(text, _CHARACTERS) for text in texts if text)
    return " | ".join([*short][:_EXAMPLES]) or None


def _differing(frame: pd.DataFrame) -> pd.DataFrame:
    # all may be missing
    low, high = (frame[name].astype("float64") for name in ("rate_low", "rate_high"))
    inside = frame["paper_rate"].between(low, high)
    return frame[~inside & (frame["strict"] != frame["paper"])]


TABLE = Table(
    name="grading",
    title="Is a wrong answer graded as correct?",
    reading=(
        "Strict is the default rule: digits beside the answer's digits make it another"
        " number, and a short answer stands alone. The paper's rule counts any text"
        " that contains the answer. Only paper is what it counts and the strict rule"
        " does not: read the examples. The page shows rows where the rules differ by"
        " more than the interval."
    ),
    needs="the grader text, and the probe greedy, beam or sample",
    columns=(
        *TEXT("task", "checkpoint", "probe"),
        *COUNT("n", "excluded", "engine_error", "strict", "paper", "only_paper"),
        Column("rate", PERCENTAGE, "strict rate", interval=True),
        *PERCENTAGE("paper_rate"),
        *WORDS("examples"),
    ),
    compute=_rows,
    page=_differing,
)


_EXTRACTED = Cut(
    probes=("greedy",),
    where=lambda items: items.has("extracted"),
    measures=(
        Share("none", lambda items: as_floats(items["extracted"] == 0)),
        Share("several", lambda items: as_floats(items["extracted"] > 1)),
    ),
)


def _extractions(inputs: Inputs) -> Iterator[Row]:
    floors: dict[tuple[str, str, str], Row] = {}
    for subject in inputs.checkpoints:
        if not inputs.of(subject).has("extracted").any():
            continue
        settings = settings_of(inputs.run, subject.checkpoint, subject.task)
        template = str(mapping_at(settings, "template").get("text", ""))
        for row in _EXTRACTED.rows(inputs, subject):
            row["grader"] = str(settings.get("grader"))
            row["lists_options"] = listed = _LISTS.search(template) is not None
            key = row["grader"], subject.task, row["language"]
            if key not in floors:
                floors[key] = _floor(inputs, *key, listed=listed)
            yield add(row, floors[key])


def _floor(
    inputs: Inputs, grader: str, task: str, language: str, *, listed: bool
) -> Row:
    items = inputs.items
    if items is None or grader not in GRADERS.names:
        return {"reason": f"other, empty, question: no items, or no grader {grader}"}
    items = items[items["task"].eq(task)]
    if is_group(language):
        groups = items["groups"].fillna("").map(tuple)
        items = items[[language in own for own in groups]]
    elif language != ALL:
        items = items[items["language"].eq(language)]
    if len(items) < 2:
        return {"reason": "other, empty, question: they take two items"}
    judge, asked = GRADERS[grader], []
    for row in rows_of(items.head(FLOOR)):
        row |= {name: tuple(row.get(name, ())) for name in ("answers", "options")}
        item = Item(**row)
        asked.append(item.posed(item.options if listed else ()))
    others = [judge.stated(item) for item in (*asked[1:], *asked[:1])]
    texts = {
        "other": others,
        "empty": [""] * len(asked),
        "question": [item.question for item in asked],
    }
    floor: Row = {}
    for name, said in texts.items():
        floor[name] = sum(map(judge.is_right, said, asked)) / len(asked)
    return floor


EXTRACTION = Table(
    name="extraction",
    title="Did the grader find an answer?",
    reading=(
        "None: the grader read no answer in a greedy output; several: it read more than"
        " one, which is none. Both count as wrong: if a checkpoint has more of them than"
        " its base, read its outputs. Other, empty, question: what the grader accepts of"
        " another item's gold answer, of nothing and of the question itself. That is its"
        " floor: an accuracy near it shows nothing."
    ),
    needs="a task with the grader number, letter or math, and the probe greedy",
    columns=(
        *BY_LANGUAGE,
        *TEXT("grader"),
        *FLAG("lists_options"),
        *COUNTED,
        *PERCENTAGE.estimates("none", "several"),
        *PERCENTAGE("other", "empty", "question"),
        REASON,
    ),
    compute=_extractions,
)
