"""No interval leaves its quantity's range, and each begins below its end: where the
intervals are made, and once in all tables."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import evaluator.metrics.columns as col
from evaluator.metrics import TABLES
from evaluator.metrics.bootstrap import intervals, language_intervals
from evaluator.metrics.fates import normalised
from evaluator.metrics.intervals import ALPHA, Mean, Ratio
from evaluator.metrics.items import Items
from evaluator.metrics.measures import Unbounded
from evaluator.metrics.tables.pr_gap import delta_pr_of
from tests.support.records import Seen
from tests.support.tables import Tables, whole_inputs

# what an item may have: right or wrong, a share, a difference
SHARES = st.sampled_from([0.0, 1.0, 0.25, 1 / 3, 1e-9])
GAPS = st.sampled_from([-1.0, 0.0, 1.0, -1 / 3])
AMOUNTS = st.sampled_from([0.0, 1e-9, 0.125, 2.0, 40.0])


def columns(*values):
    """Items with a value of each kind and a context."""
    rows = st.lists(st.tuples(*values, st.integers(0, 30)), min_size=1, max_size=60)
    return rows.map(lambda items: [np.array(each) for each in zip(*items, strict=True)])


def holds(interval, low=-math.inf, high=math.inf, value=None):
    if isinstance(interval, str):  # too few contexts, say
        return
    assert low <= interval[0] <= interval[1] <= high
    if value is not None:
        assert interval[0] <= value + 1e-9
        assert value <= interval[1] + 1e-9


@given(columns(SHARES, GAPS), st.sampled_from([ALPHA, 0.01, 0.5]))
def test_intervals_of_means(items, level):
    shares, gaps, contexts = items
    holds(Mean(shares, contexts).interval(level), 0, 1, shares.mean())
    holds(Mean(gaps, contexts, low=-1).interval(level), -1, 1, gaps.mean())
    weights = np.arange(1, len(gaps) + 1) / np.arange(1, len(gaps) + 1).sum()
    weighted = Mean(gaps, contexts, low=-1, weights=weights)
    holds(weighted.interval(level), -1, 1, gaps @ weights)


@given(columns(SHARES, SHARES))
def test_intervals_of_ratios(items):
    over, under, contexts = items
    if under.sum():
        holds(
            Ratio(over, under, contexts).interval(), 0, value=over.sum() / under.sum()
        )


@given(columns(AMOUNTS))
def test_intervals_without_bounds(items):
    values, contexts = items
    found = Unbounded.ratio(values, np.ones(len(values)), contexts)
    holds(found.interval(), value=found.value)
    holds(found.interval("log"), 0, value=found.value)
    holds(found.interval("exp"), 0)


@given(columns(*[st.sampled_from([0.0, 1.0])] * 4))
def test_intervals_of_statistics(items):
    """What guessing gives is a quarter."""
    before, after, chosen, still, contexts = items
    floor = np.full(len(before), 0.25)
    languages = np.array(["a", "b"])[contexts % 2]
    asked = Items.of_columns({"language": languages, "context": contexts})
    kinds = [(*pair, 0.25) for pair in product((0, 1), repeat=2)]
    values = [before, after, floor]
    for found in (intervals, language_intervals):
        for interval in found(normalised, values, asked, kinds):
            holds(interval)
    pairs = [(*one, *other) for one, other in product(kinds, kinds)]
    for interval in intervals(
        delta_pr_of, [*values, chosen, still, floor], asked, pairs
    ):
        holds(interval)


INFINITE = math.inf
# The values that a quantity of each kind may have.
OF_KIND = {
    col.PERCENTAGE: (0, 1), col.POINTS: (-1, 1), col.SCORE: (0, 1), col.SHARE: (0, 1), col.RANK: (1, INFINITE),
    col.AMOUNT: (0, INFINITE), col.FACTOR: (0, INFINITE), col.DIVERGENCE: (0, INFINITE), col.NATS: (-INFINITE, 0),
    col.RATIO: (-INFINITE, INFINITE),
}  # fmt: skip
# The quantities whose kind does not tell their range.
OF_COLUMN = {
    "delta_p": (-1, 1),
    "recovery": (0, INFINITE),
    "above_guessing": (-INFINITE, INFINITE),  # an accuracy below the floor
    "mc_only_corrected": (-1, 1),  # more lost answers than luck explains
    "repaired": (-2, 2),  # a difference of two differences
    "spread": (0, 1),
}
FULL = {
    "beams": [True, False],
    "samples": [True, False],
    "rank": 2,
    "margin": -1.0,
    "aligned": 2,
}
# Its answers are shorter than the limit, so that the token that ends one is known.
BOTH = Seen(greedy=True, choice=True, hard=True, fidelity=(0.5, 0.25), tokens=2, **FULL)
WRONG = replace(
    BOTH, greedy=False, choice=False, hard=False, rank=3, margin=-2.0, aligned=5, fidelity=(1.0, 0.125), tokens=3
)  # fmt: skip


@pytest.mark.more
def test_every_interval_of_the_tables():
    """Few items, on which all checkpoints agree or not."""
    kinds = [(BOTH, BOTH, BOTH)] * 10 + [
        (WRONG, WRONG, WRONG),
        (WRONG, BOTH, WRONG),
    ] * 2
    seen = {"dense": {}, "a": {}, "b": {}}
    for number, answers in enumerate(kinds):
        for checkpoint, answer in zip(seen, answers, strict=True):
            seen[checkpoint][f"{('english', 'thai')[number % 2]}/{number}"] = answer
    frames, missing = Tables(whole_inputs(seen)), set()
    for table in TABLES:
        for column in table.columns:
            if not column.interval:
                continue
            ends = frames[table.name][[f"{column.name}_low", f"{column.name}_high"]]
            ends = ends.dropna().astype("float64")
            for low, high in ends.itertuples(index=False):
                least, most = OF_COLUMN.get(column.name) or OF_KIND[column.kind]
                assert least <= low <= high <= most, (table.name, column.name)
            if ends.empty:
                missing.add(f"{table.name}.{column.name}")
    # rates and means of tasks that only a suite has (golden/test_suite.py)
    missing = {name for name in missing if not name.startswith("suite.")}
    assert missing == {
        "distractors.accuracy", "distractors.drop",  # rates like others
        "extraction.none", "extraction.several",  # the same, of graders that extract
        # rates and means like others, of controls (test_noise.py)
        "noise.acceptance", "noise.changed_rate", "noise.distance", "noise.flip_rate",
        "noise.kld", "noise.same_top",
        "fertility.fertility",  # a mean; all options have two tokens here
    }  # fmt: skip
