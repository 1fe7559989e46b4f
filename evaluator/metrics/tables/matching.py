"""Table `matching`: accuracy if a matcher model may also accept a response, and how
far it agrees with the strict grader.

It has rows for greedy answers in every format with verdicts (one response to an
item), and for beams and samples (several). An item is right

- for containment, if one of its responses contains a gold answer;
- for a matcher, also if the matcher accepts any other response;
- for the majority, if most of the matchers hold it right (a tie is a no).

All graders of a checkpoint are compared on the same items: those that each grader
has the verdicts to decide.

`agreement` is the share of items on which the matcher's own verdict equals
containment's, of those with its verdicts on all responses (`resurface match --all`).
`controls` is what the matcher made of claims whose verdict is known."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle

import numpy as np
import pandas as pd

from evaluator.judging.controls import told
from evaluator.metrics.columns import (
    COUNT,
    LANGUAGE,
    PERCENTAGE,
    SUBJECT,
    TEXT,
    WORDS,
    Row,
)
from evaluator.metrics.fates import HIT
from evaluator.metrics.inputs import ITEM, Inputs, Subject, rows_where
from evaluator.metrics.items import Items, joined_reasons
from evaluator.metrics.measures import as_floats, rate
from evaluator.metrics.table import Dots, Series, Table
from evaluator.store.outcomes import MEASURED, chosen_seed

CONTAINMENT, MAJORITY = "containment", "majority"
# by matcher, with a row for each item: how many responses it accepted (`yes`), and
# whether all have verdicts (`whole`)
Tallies = Mapping[str, pd.DataFrame]


def _rows(inputs: Inputs) -> Iterator[Row]:
    """`yes` counts the right items, `unjudged` the measured items without a verdict
    that the row needs."""
    if inputs.verdicts is None:
        return
    passed = {}
    if inputs.controls is not None:
        for matcher, verdicts in inputs.controls.groupby("matcher"):
            passed[matcher] = told(verdicts)
    for subject in inputs.checkpoints:
        for format in inputs.formats:
            for probe in HIT if format == "open" else ("greedy",):
                items = _items(inputs, subject, format, probe)
                tallies = _tallies(inputs, subject, items, format, probe)
                if not tallies:
                    continue
                own = subject.row | {"format": format, "probe": probe}
                every = Items.of_columns({**items, **_columns(tallies)})
                for language, here in every.slices(inputs.cuts[subject.task]):
                    row = own | {"language": language, **here.left_out("status")}
                    done = here.take(here.having(["status"], *MEASURED))
                    for graded in _graded(done, [*tallies]):
                        controls = passed.get(graded["grader"])
                        yield row | graded | {"controls": controls}


def _items(inputs: Inputs, subject: Subject, format: str, probe: str) -> pd.DataFrame:
    """Each item's status, whether a response `contained` a gold answer (1, 0 or NaN),
    and its number of `responses`."""
    own = inputs.run_seed(subject.checkpoint, subject.task)
    answers = inputs.all_outcomes_of(subject.checkpoint, subject.task)
    status = answers[f"{probe}_status"]
    answers = answers[status.notna() & (answers["format"] == format)]
    answers = answers[answers["seed"] == chosen_seed(answers["seed"], own)]
    answers = answers.reset_index(drop=True)
    return answers[[*ITEM]].assign(
        groups=inputs.asked(subject.task)["groups"].to_numpy()[answers["item"]],
        status=answers[f"{probe}_status"],
        contained=as_floats(answers[HIT[probe]]),
        responses=1.0 if probe == "greedy" else as_floats(answers[f"{probe}s"]),
    )


def _tallies(
    inputs: Inputs, subject: Subject, items: pd.DataFrame, format: str, probe: str
) -> Tallies:
    assert inputs.verdicts is not None
    equal = {"task": subject.task, "format": format, "probe": probe}
    of_task = rows_where(inputs.verdicts, equal)
    equal = {"checkpoint": subject.checkpoint, "weights_digest": subject.weights_digest}
    ours = rows_where(of_task, equal)
    own = inputs.run_seed(subject.checkpoint, subject.task)
    ours = ours[ours["seed"] == chosen_seed(ours["seed"], own)]
    matchers = set(ours["matcher"])
    # nothing was left to judge if containment accepted everything
    if not matchers and len(items) and (items["contained"].dropna() == 1).all():
        matchers = set(of_task["matcher"])
    keys = pd.MultiIndex.from_frame(items[["language", "item_id"]])
    said = ours.assign(verdict=ours["verdict"].astype("float64"))
    tallies = {}
    for matcher in sorted(matchers):
        by_item = said[said["matcher"] == matcher].groupby(["language", "item_id"])
        tally = by_item["verdict"].agg(yes="sum", judged="count")
        tally = tally.reindex(keys).fillna(0.0).set_axis(items.index)
        tallies[matcher] = tally.assign(whole=tally["judged"] >= items["responses"])
    return tallies


def _columns(tallies: Tallies) -> dict[str, pd.Series]:
    return {
        f"{matcher} {name}": tally[name]
        for matcher, tally in tallies.items()
        for name in ("yes", "whole")
    }


def _graded(items: Items, matchers: Sequence[str]) -> Iterator[Row]:
    """A row per grader, on the items that all graders can decide."""
    contained = items["contained"] == 1
    right = {CONTAINMENT: contained}
    done = np.ones(len(items), dtype=bool)
    for name in matchers:
        right[name] = contained | (items[f"{name} yes"] > 0)
        done &= right[name] | items[f"{name} whole"]
    if len(matchers) > 1:
        votes = np.sum([right[name] for name in matchers], axis=0)
        right[MAJORITY] = 2 * votes > len(matchers)
    unjudged = int((~done).sum())
    why = None if len(items) else "no item was judged"
    if unjudged:
        why = (
            f"{unjudged} items lack a verdict, as a response is too long or the engine"
            " failed: run resurface match with the same matchers again"
        )
    for grader, yes in right.items():
        row: Row = {"grader": grader, "n": int(done.sum()), "unjudged": unjudged}
        row |= {"yes": int(yes[done].sum())}
        row |= rate("accuracy", yes[done], items.take(done))
        needs = None
        if grader in matchers:
            whole = items[f"{grader} whole"] & items.has("contained")
            # verdicts on answers without a gold answer alone would compare the
            # matcher with itself
            if contained.any() and not (contained & whole).any():
                needs = "agreement needs all verdicts: resurface match --all"
            else:
                equal = contained[whole] == (items[f"{grader} yes"][whole] > 0)
                row |= rate("agreement", equal, items.take(whole))
        yield row | {"reason": joined_reasons(why, needs, row.get("reason"))}


_COLOURS = ("greedy", "choice", "beam", "sample", "shown", "lost")


def _judged_first(frame: pd.DataFrame) -> pd.DataFrame:
    """Greedy open answers, or else the first kind with verdicts."""
    first = frame.loc[frame["n"] > 0, ["format", "probe"]].drop_duplicates().head(1)
    return frame.merge(first, on=["format", "probe"])


def _graders(frame: pd.DataFrame) -> Sequence[Series]:
    graders = frame["grader"].drop_duplicates().tolist()
    spread = max(len(graders) - 1, 1)
    series = []
    for number, (grader, colour) in enumerate(
        zip(graders, cycle(_COLOURS), strict=False)
    ):
        shift = 0.36 * (number / spread - 0.5)
        series.append(Series("accuracy", colour, grader, {"grader": grader}, shift))
    return series


TABLE = Table(
    name="matching",
    title="Does a second grader change the picture?",
    reading=(
        "A matcher model reads the question, the gold answers and the response, and"
        " decides whether the response means one of the gold answers. A response that"
        " contains a gold answer counts as right without it. The majority of several"
        " matchers decides; a tie is a no. Agreement compares the matcher alone with"
        " containment, if all responses were judged. Controls are claims whose verdict"
        " is known, and easier than real answers. The figure shows said answers,"
        " or else the first judged kind."
    ),
    needs=(
        "the probe greedy and a matcher model's verdicts: run resurface match RUN"
        " --matcher CHECKPOINT"
    ),
    columns=(
        *SUBJECT,
        *TEXT("format", "probe"),
        LANGUAGE,
        *TEXT("grader"),
        *COUNT("n", "excluded", "engine_error", "unjudged", "yes"),
        *PERCENTAGE.estimates("accuracy", "agreement"),
        *WORDS("controls"),
    ),
    compute=_rows,
    figure=(Dots("Accuracy by grader", _graders),),
    plotted=_judged_first,
)
