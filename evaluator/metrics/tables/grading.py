"""Table `grading`: what does only the paper's rule count as right?

A row for each checkpoint and each probe of answers to the open prompt, on all graded
answers: `n` of them, right by the strict rule (`strict`), by the paper's (`paper`),
and by the paper's alone (`only_paper`), with the first examples. The rules are those
of `evaluator.core.grading`. `rate` is strict / n. The CSV has all rows. The page has
those whose share by the paper's rule is outside of the interval of `rate`."""

from collections.abc import Iterator

import pandas as pd

from evaluator.core.errors import one_line
from evaluator.metrics.columns import COUNT, PERCENTAGE, TEXT, WORDS, Column, Row
from evaluator.metrics.inputs import Inputs
from evaluator.metrics.items import Array, Items
from evaluator.metrics.measures import rate
from evaluator.metrics.table import Table
from evaluator.store.outcomes import GRADED

_EXAMPLES = 3
_CHARACTERS = 40  # of an example


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
    needs="the probe greedy, beam or sample",
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
