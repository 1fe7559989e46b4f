"""Table `matching`: accuracy when a matcher model may also say that a response is right, and how far graders agree.

It has rows for greedy answers in every format that was judged, and for beams and samples. Accuracy is over items: an
item is right for containment if one of its responses (greedy has one, beam and sample several) contains a gold answer.
For a matcher it is right then too, and if the matcher judged one of the others to match; for the panel if that holds of
more than half of its matchers (a tie is a no). All graders of a checkpoint are compared on the items for which each of
them has the verdicts that decide it.

Agreement between two graders is the share of equal verdicts, and Scott's pi, which takes away the agreement of two
graders who say yes equally often, at random: pi = (p_o - p_e) / (1 - p_e), p_e = p^2 + (1 - p)^2, p the mean of both
graders' shares of yes (W. A. Scott, Public Opinion Quarterly 19, 1955). Two matchers are compared on the responses that
both have judged, each response being one; a matcher and containment on the items of which all responses were judged,
which `resurface match --all` asks for. Intervals resample items, with all of their responses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd

from evaluator.metrics.inputs import ITEM, SETTING, Inputs, Row, numbers, rate, slices, table_frame, truth
from evaluator.metrics.intervals import Floats
from evaluator.metrics.outcomes import MEASURED
from evaluator.metrics.recovery import HIT
from evaluator.probes.matcher import majority

CONTAINMENT, PANEL = "containment", "panel (majority)"
_COUNTS = ("n", "excluded", "engine_error", "unjudged", "yes")
COLUMNS = (
    *("task", "checkpoint", "base", *SETTING, "format", "probe", "language", "grader", "against"),
    *_COUNTS,
    *(f"{name}{end}" for name in ("accuracy", "agreement", "scott_pi") for end in ("", "_low", "_high")),
    "reason",
)
_RESPONSE = ("language", "item_id", "index")  # names a response among those of one checkpoint, format and probe


@dataclass(frozen=True, eq=False)
class _Graded:
    """What graders said of one checkpoint's answers: `items` has a status, `contained` (1, 0 or NaN), how many
    `responses` there are, and for every matcher `yes <matcher>` and `judged <matcher>`: of how many it said so, and of
    how many it said anything. `verdicts` are the matchers' own, of single responses."""

    items: pd.DataFrame
    verdicts: pd.DataFrame
    matchers: list[str]

    def on_all(self, matcher: str) -> bool:
        """Whether it judged contained answers too: verdicts on what containment denies would compare it with itself."""
        contained = self.items["contained"] == 1
        whole = self.items[f"judged {matcher}"] >= self.items["responses"]
        return not contained.any() or bool((contained & whole).any())


def matching(inputs: Inputs) -> pd.DataFrame:
    """The table. A row without `against` is a grader's accuracy, one with it the agreement of two.

    `yes` counts the right items; `unjudged` the measured items that lack a verdict which the row needs, the
    matcher's own engine errors among them.
    """
    rows: list[Row] = []
    if inputs.verdicts is None:
        return table_frame(rows, COLUMNS, _COUNTS)
    for setting in inputs.checkpoints:
        for form in inputs.formats:
            for probe in HIT if form == "open" else ("greedy",):
                rows += _rows(inputs, setting, form, probe)
    return table_frame(rows, COLUMNS, _COUNTS)


def _rows(inputs: Inputs, setting: Row, form: str, probe: str) -> list[Row]:
    rows: list[Row] = []
    graded = _graded(inputs, setting, form, probe)
    if not graded.matchers:
        return rows
    for language, part in slices(graded.items, inputs.languages(setting["task"])):
        row: Row = {**setting, "format": form, "probe": probe, "language": language}
        row |= {name: int((part["status"] == name).sum()) for name in ("excluded", "engine_error")}
        part = part[part["status"].isin(MEASURED)]
        rows += [row | each for each in _accuracies(part, graded.matchers)]
        for matcher in graded.matchers:
            rows.append(row | _with_containment(inputs, setting["task"], part, matcher, graded.on_all(matcher)))
        for first, second in combinations(graded.matchers, 2):
            rows.append(row | _of_matchers(inputs, setting["task"], part, graded.verdicts, first, second))
    return rows


def scott_pi(agreed: Floats, first: Floats, second: Floats) -> Floats:
    """Scott's pi from the shares of equal verdicts and of each grader's yes; NaN where chance alone agrees on all."""
    yes = (first + second) / 2
    chance = yes**2 + (1 - yes) ** 2
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(chance < 1, (agreed - chance) / (1 - chance), np.nan))


def _graded(inputs: Inputs, setting: Row, form: str, probe: str) -> _Graded:
    checkpoint, task = setting["checkpoint"], setting["task"]
    part = inputs.part(checkpoint, task, form)
    part = part[part[f"{probe}_status"].notna()]
    items = part[list(ITEM)].assign(status=part[f"{probe}_status"], contained=truth(part[HIT[probe]]))
    items["responses"] = 1.0 if probe == "greedy" else truth(part[f"{probe}s"])
    verdicts = inputs.verdicts
    assert verdicts is not None
    of_task = verdicts[(verdicts["task"] == task) & (verdicts["format"] == form) & (verdicts["probe"] == probe)]
    ours = of_task[
        (of_task["checkpoint"] == checkpoint) & (of_task["weights_digest"] == setting["weights_digest"])
    ]  # fmt: skip
    own = inputs.run_seed(checkpoint, task)
    ours = ours[ours["seed"] == (own if (ours["seed"] == own).any() else ours["seed"].min())]
    # A matcher that was not asked about this checkpoint is no grader of it. Where containment left nothing to ask, none
    # has verdicts, and all agree.
    all_contained = len(items) > 0 and bool((items["contained"].dropna() == 1).all())
    matchers = sorted(set(ours["matcher"]) or set(of_task["matcher"] if all_contained else ()))
    said = ours.assign(verdict=ours["verdict"].astype("float64"), long=ours["status"] == "excluded")
    for matcher in matchers:
        of_items = said[said["matcher"] == matcher].groupby(["language", "item_id"])
        sums = {"yes": of_items["verdict"].sum(), "judged": of_items["verdict"].count(), "long": of_items["long"].sum()}
        columns = pd.DataFrame({f"{name} {matcher}": each for name, each in sums.items()}).reset_index()
        items = items.merge(columns, on=["language", "item_id"], how="left", validate="one_to_one")
        items = items.fillna(dict.fromkeys(columns.columns[2:], 0.0))
    return _Graded(items, said[said["verdict"].notna()], matchers)


def _accuracies(items: pd.DataFrame, matchers: Sequence[str]) -> list[Row]:
    contained = (items["contained"] == 1).to_numpy()
    says = {matcher: contained | (items[f"yes {matcher}"] > 0).to_numpy() for matcher in matchers}
    decided = [says[each] | (items[f"judged {each}"] >= items["responses"]).to_numpy() for each in matchers]
    done = np.logical_and.reduce(decided)
    said = {CONTAINMENT: contained, **says}
    if len(matchers) > 1:
        votes = zip(*says.values(), strict=True)
        said[PANEL] = np.array([majority(each) for each in votes], dtype=bool)
    reason = _unjudged(items[~done], matchers) if len(items) else "no item was judged"
    n = int(done.sum())
    return [
        {"grader": grader, "n": n, "unjudged": len(items) - n, "yes": int(yes[done].sum()), "reason": reason}
        | rate("accuracy", int(yes[done].sum()), n)
        for grader, yes in said.items()
    ]


def _unjudged(items: pd.DataFrame, matchers: Sequence[str]) -> str | None:
    """What to do about items without the verdicts that decide them."""
    if items.empty:
        return None
    long = int((items[[f"long {matcher}" for matcher in matchers]] > 0).any(axis=1).sum())
    told = [f"{long} items have a response that is too long for a matcher's prompt"] if long else []
    if len(items) > long:
        told.append(f"{len(items) - long} items have no verdict: run resurface match with the same matchers again")
    return "; ".join(told)


def _with_containment(inputs: Inputs, task: str, items: pd.DataFrame, matcher: str, comparable: bool) -> Row:
    whole = items[(items[f"judged {matcher}"] >= items["responses"]) & items["contained"].notna()]
    row: Row = {"grader": CONTAINMENT, "against": matcher, "n": len(whole), "unjudged": len(items) - len(whole)}
    if not comparable:
        needs = "needs verdicts on all responses: resurface match --all"
        return row | {"n": 0, "unjudged": len(items), "reason": needs}
    one, other = truth(whole["contained"]), truth(whole[f"yes {matcher}"] > 0)
    return row | _agreement(inputs, task, whole, (one == other).astype(np.float64), one, other, np.ones(len(whole)))


def _of_matchers(
    inputs: Inputs, task: str, items: pd.DataFrame, verdicts: pd.DataFrame, first: str, second: str
) -> Row:
    """Agreement of two matchers on single responses; sums of each item's, so that items are what is resampled."""
    one, other = (
        verdicts.loc[verdicts["matcher"] == name, [*_RESPONSE, "verdict"]].rename(columns={"verdict": column})
        for name, column in ((first, "one"), (second, "other"))
    )
    both = one.merge(other, on=list(_RESPONSE), validate="one_to_one").assign(count=1.0)
    both["agreed"] = (both["one"] == both["other"]).astype("float64")
    sums = both.groupby(["language", "item_id"])[["agreed", "one", "other", "count"]].sum().reset_index()
    known = items[list(ITEM)].merge(sums, on=["language", "item_id"], validate="one_to_one")
    row: Row = {"grader": first, "against": second, "n": int(known["count"].sum())}
    row["unjudged"] = len(items) - len(known)
    return row | _agreement(inputs, task, known, *(truth(known[each]) for each in ("agreed", "one", "other", "count")))


def _agreement(
    inputs: Inputs, task: str, items: pd.DataFrame, agreed: Floats, one: Floats, other: Floats, count: Floats
) -> Row:
    """Agreement and Scott's pi from each item's sums over what was compared."""
    if items.empty:
        return {"reason": "nothing was judged by both"}
    resampler, drawn, total = inputs.resampler(task), numbers(items), count.sum()
    shares = [each.sum() / total for each in (agreed, one, other)]
    sums = resampler.means(drawn, agreed, one, other, count)
    draws = sums[:3] / sums[3]
    pi = float(scott_pi(*(np.asarray(share) for share in shares)))
    row: Row = {"agreement": float(shares[0]), "scott_pi": None if np.isnan(pi) else pi}
    row["agreement_low"], row["agreement_high"] = resampler.interval(drawn, draws[0])
    if np.isnan(pi):
        return row | {"reason": "both graders say the same of everything: Scott's pi is undefined"}
    row["scott_pi_low"], row["scott_pi_high"] = resampler.interval(drawn, scott_pi(*draws))
    return row
