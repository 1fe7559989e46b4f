"""Control pairs: 60 claims with a known verdict, in controls.json.

A judge that always answers no (or yes) gives plausible numbers. So every judge decides
these claims too. They are easier than models' answers: to pass them is the least."""

import json
from functools import cache
from importlib.resources import files

import pandas as pd

from evaluator.judging.matcher import Claim

_LEAST = 0.8  # of either kind that a judge should have right, by convention


@cache
def controls() -> dict[Claim, bool]:
    """The claims, and whether each response matches."""
    text = files("evaluator.judging").joinpath("controls.json").read_text("utf-8")
    found = {}
    for row in json.loads(text):
        about = {"question": row["question"], "answers": tuple(row["answers"])}
        for response in row["matching"]:
            found[Claim(**about, response=response)] = True
        found[Claim(**about, response=row["other"])] = False
    return found


def told(verdicts: pd.DataFrame) -> str:
    """What one judge made of them, in words: its verdicts, named by the claims'
    numbers."""
    matches = list(controls().values())
    judged = verdicts[verdicts["verdict"].notna()]
    counts = []
    for kind in (True, False):
        is_kind = judged["item_id"].map(lambda number: matches[int(number)]) == kind
        own = judged[is_kind]
        counts.append((int(own["verdict"].sum()), len(own)))
    (accepted, right), (wrongly, wrong) = counts
    text = f"accepts {accepted} of {right} right and {wrongly} of {wrong} wrong answers"
    if accepted < _LEAST * right or wrong - wrongly < _LEAST * wrong:
        text += ": do not trust its verdicts"
    return text
