"""No interval of any table leaves its quantity's range, and each begins below its
end."""

import math
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

import evaluator.metrics.columns as col
from evaluator.metrics import TABLES
from tests.support.records import Seen
from tests.support.tables import Tables, whole_inputs

INFINITE = math.inf
# The values that a quantity of each kind may have.
OF_KIND = {
    col.PERCENTAGE: (0, 1), col.POINTS: (-1, 1), col.SCORE: (0, 1), col.SHARE: (0, 1), col.RANK: (1, INFINITE),
    col.AMOUNT: (0, INFINITE), col.FACTOR: (0, INFINITE), col.DIVERGENCE: (0, INFINITE), col.NATS: (-INFINITE, 0),
    col.RATIO: (-INFINITE, INFINITE),
}  # fmt: skip
# The quantities whose kind does not tell their range.
OF_COLUMN = {
    "kappa": (-1, 1),
    "scott_pi": (-1, 1),
    "delta_p": (-1, 1),
    "recovery": (0, INFINITE),
    "above_guessing": (-INFINITE, INFINITE),  # an accuracy below the floor
    "mc_only_corrected": (-1, 1),  # more lost answers than luck explains
    "repaired": (-2, 2),  # a difference of two differences, like the next one
    "excess": (-2, 2),
    "spread": (0, 1),
    "perplexity": (0, INFINITE),
}

SEEN = st.builds(
    Seen,
    greedy=st.booleans(),
    choice=st.booleans(),
    hard=st.booleans(),
    beams=st.lists(st.booleans(), min_size=2, max_size=2),
    samples=st.lists(st.booleans(), min_size=2, max_size=2),
    rank=st.integers(1, 9),
    margin=st.sampled_from([0.0, -0.25, -4.0]),
    aligned=st.integers(1, 9),
    fidelity=st.lists(st.sampled_from([0.0, 1e-9, 0.125, 2.0]), min_size=2, max_size=2),
    gold_score=st.sampled_from([None, -40.0, -2.5, -1e-9]),
    tokens=st.integers(1, 32),
    ended=st.booleans(),
    prompt=st.just(50),
)
# Of one item, what the base and two checkpoints did; and how many such items there are.
ITEMS = st.lists(
    st.tuples(SEEN, SEEN, SEEN, st.integers(1, 20)), min_size=1, max_size=5
)
FULL = {
    "beams": [True, False],
    "samples": [True, False],
    "rank": 2,
    "margin": -1.0,
    "aligned": 2,
}
BOTH = Seen(greedy=True, choice=True, hard=True, fidelity=(0.5, 0.25), **FULL)
WRONG = replace(
    BOTH,
    greedy=False,
    choice=False,
    hard=False,
    rank=3,
    margin=-2.0,
    aligned=5,
    fidelity=(1.0, 0.125),
)


INTERVALS = {
    (table.name, column)
    for table in TABLES
    for column in table.columns
    if column.interval
}


def wrong_intervals(items):
    """Intervals that leave their range or begin above their end, and the intervals
    that there are."""
    seen = {"dense": {}, "a": {}, "b": {}}
    for *answers, copies in items:
        for _ in range(copies):
            number = len(seen["dense"])
            key = f"{('english', 'thai')[number % 2]}/{number}"
            for checkpoint, answer in zip(seen, answers, strict=True):
                seen[checkpoint][key] = answer
    frames = Tables(whole_inputs(seen))
    wrong, present = [], set()
    for name, column in INTERVALS:
        low, high = (
            frames[name][f"{column.name}{end}"].dropna().astype("float64")
            for end in ("_low", "_high")
        )
        least, most = OF_COLUMN.get(column.name) or OF_KIND[column.kind]
        if not ((low >= least).all() and (high <= most).all() and (low <= high).all()):
            wrong.append(f"{name}.{column.name}: {low.min()!r} to {high.max()!r}")
        if len(low):
            present.add((name, column))
    return wrong, present


@settings(max_examples=4)
@given(ITEMS)
def test_intervals_stay_in_range(items):
    assert wrong_intervals(items)[0] == []


def test_every_interval_is_checked():
    """Answers on which all checkpoints agree: single precision put a kappa's upper
    end at 1.0000014 there."""
    wrong, present = wrong_intervals(
        [(BOTH, BOTH, BOTH, 35), (WRONG, WRONG, WRONG, 7), (WRONG, BOTH, WRONG, 7)]
    )
    assert wrong == []
    missing = {f"{name}.{column.name}" for name, column in INTERVALS - present}
    assert missing == {
        # rates like others
        "distractors.accuracy", "distractors.drop", "judges.paraphrase_accepted",
        # rates and means like others, of controls (test_noise.py)
        "noise.acceptance", "noise.changed_rate", "noise.distance", "noise.flip_rate",
        "noise.kld", "noise.same_top",
        "fertility.fertility",  # a mean; all options have two tokens here
    }  # fmt: skip
