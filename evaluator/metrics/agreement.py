"""Table `matching`: accuracy when a matcher model may also say that a response is right, and how far graders agree.

Accuracy, of the greedy answers to the open prompt: a response that contains a gold answer is right for every grader; of
the others, containment says none, a matcher those that it judged to match, the panel those for which more than half of
its matchers did (a tie is a no). All graders of a checkpoint are compared on the items that all of them have judged.

Agreement between two graders is over the items for which both have a verdict of their own, as the share of equal
verdicts and as Scott's pi, which takes away the agreement of two graders who say yes equally often, at random:
pi = (p_o - p_e) / (1 - p_e), p_e = p^2 + (1 - p)^2, p the mean of both graders' shares of yes (W. A. Scott, Public
Opinion Quarterly 19, 1955). With containment it needs verdicts on responses that contain a gold answer too, which
`resurface match --all` asks for.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pandas as pd

from evaluator.matching import majority
from evaluator.metrics.inputs import ITEM, SETTING, Inputs, Row, numbers, rate, slices, table_frame, truth
from evaluator.metrics.intervals import Floats
from evaluator.metrics.outcomes import MEASURED

CONTAINMENT, PANEL = "containment", "panel (majority)"
_COUNTS = ("n", "excluded", "engine_error", "unjudged", "yes")
COLUMNS = (
    *("task", "checkpoint", "base", *SETTING, "language", "grader", "against"),
    *_COUNTS,
    *(f"{name}{end}" for name in ("accuracy", "agreement", "scott_pi") for end in ("", "_low", "_high")),
    "reason",
)


def matching(inputs: Inputs) -> pd.DataFrame:
    """The table. A row without `against` is a grader's accuracy, one with it the agreement of two.

    `yes` counts the right responses; `unjudged` the measured items that lack a verdict which the row needs, the
    matcher's own engine errors among them.
    """
    rows: list[Row] = []
    for setting in inputs.checkpoints:
        graded, matchers = _graded(inputs, setting)
        if not matchers:
            continue
        contained = graded[CONTAINMENT] == 1
        # Verdicts on what containment denies, and on nothing else, would compare it with itself.
        on_all = [m for m in matchers if not contained.any() or graded.loc[contained, m].notna().any()]
        for language, part in slices(graded, inputs.languages(setting["task"])):
            status = part["greedy_status"]
            row: Row = {**setting, "language": language}
            row |= {name: int((status == name).sum()) for name in ("excluded", "engine_error")}
            part = part[status.isin(MEASURED)]
            rows += [row | each for each in _accuracies(part, matchers)]
            rows += [
                row | _agreement(inputs, setting["task"], part, first, second, first in matchers or second in on_all)
                for first, second in combinations([CONTAINMENT, *matchers], 2)
            ]
    return table_frame(rows, COLUMNS, _COUNTS)


def scott_pi(agreed: Floats, first: Floats, second: Floats) -> Floats:
    """Scott's pi from the shares of equal verdicts and of each grader's yes; NaN where chance alone agrees on all."""
    yes = (first + second) / 2
    chance = yes**2 + (1 - yes) ** 2
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(chance < 1, (agreed - chance) / (1 - chance), np.nan))


def _graded(inputs: Inputs, setting: Row) -> tuple[pd.DataFrame, list[str]]:
    """The checkpoint's items with a column of 1.0, 0.0 or NaN (no verdict) per grader, and the matchers."""
    items = inputs.part(setting["checkpoint"], setting["task"], "open")
    graded = items[[*ITEM, "greedy_status"]].assign(**{CONTAINMENT: truth(items["produced"])})
    verdicts = inputs.verdicts
    if verdicts is None or graded.empty:
        return graded, []
    ours = verdicts[
        (verdicts["task"] == setting["task"])
        & (verdicts["format"] == "open")
        & (verdicts["probe"] == "greedy")
        & verdicts["status"].isin(MEASURED)
    ]
    known = sorted(ours["matcher"].unique().tolist())
    ours = ours[
        (ours["checkpoint"] == setting["checkpoint"]) & (ours["weights_digest"] == setting["weights_digest"])
    ].sort_values("seed")
    # A matcher that was not asked about this checkpoint is no grader of it. Where containment left nothing to ask, none
    # has verdicts, and all agree.
    asked = sorted(ours["matcher"].unique().tolist()) or (known if (graded[CONTAINMENT].dropna() == 1).all() else [])
    for matcher in asked:
        own = ours[ours["matcher"] == matcher].drop_duplicates(["language", "item_id"])
        own = own[["language", "item_id", "verdict"]].rename(columns={"verdict": matcher})
        own[matcher] = own[matcher].astype("float64")
        graded = graded.merge(own, on=["language", "item_id"], how="left", validate="one_to_one")
    return graded, asked


def _accuracies(items: pd.DataFrame, matchers: list[str]) -> list[Row]:
    contained = items[CONTAINMENT] == 1
    done = items[contained | items[matchers].notna().all(axis=1)]
    unjudged = len(items) - len(done)
    votes = {matcher: ((done[CONTAINMENT] == 1) | (done[matcher] == 1)).to_numpy() for matcher in matchers}
    said = {CONTAINMENT: (done[CONTAINMENT] == 1).to_numpy(), **votes}
    if len(matchers) > 1:
        said[PANEL] = np.array([majority(each) for each in zip(*votes.values(), strict=True)], dtype=bool)
    reason = None if len(done) else "no item was judged"
    if unjudged:
        reason = "some responses have no verdict: run resurface match with the same matchers again"
    return [
        {"grader": grader, "n": len(done), "unjudged": unjudged, "yes": int(yes.sum()), "reason": reason}
        | rate("accuracy", int(yes.sum()), len(done))
        for grader, yes in said.items()
    ]


def _agreement(inputs: Inputs, task: str, items: pd.DataFrame, first: str, second: str, comparable: bool) -> Row:
    both = items[items[[first, second]].notna().all(axis=1)]
    row: Row = {"grader": first, "against": second, "n": len(both), "unjudged": len(items) - len(both)}
    if not comparable:
        return row | {
            "n": 0,
            "unjudged": len(items),
            "reason": "needs verdicts on all responses: resurface match --all",
        }
    if both.empty:
        return row | {"reason": "no item was judged by both"}
    one, other = truth(both[first]), truth(both[second])
    agreed = (one == other).astype(np.float64)
    resampler, drawn = inputs.resampler(task), numbers(both)
    draws = resampler.means(drawn, agreed, one, other)
    pi = float(scott_pi(agreed.mean(), one.mean(), other.mean()))
    row |= {"agreement": float(agreed.mean()), "scott_pi": None if np.isnan(pi) else pi}
    row["agreement_low"], row["agreement_high"] = resampler.interval(drawn, draws[0])
    if np.isnan(pi):
        return row | {"reason": "both graders say the same of every item: Scott's pi is undefined"}
    row["scott_pi_low"], row["scott_pi_high"] = resampler.interval(drawn, scott_pi(*draws))
    return row
