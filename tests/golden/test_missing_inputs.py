"""Every table with every probe and every format missing: it says what to run, and is
never silently empty."""

import pandas as pd
import pytest

from evaluator.core.records import FORMATS
from evaluator.metrics import FilledTable, Inputs, compute_tables, reduce_records
from evaluator.probes import PROBES
from tests.support.records import Seen, judged, numbered, records

# One item that stays, two that go unsaid; every probe, every format, two seeds of
# samples.
FOUND = {"choice": True, "hard": True, "beams": [True], "samples": [True]}
DENSE = Seen(greedy=True, rank=1, margin=0.0, aligned=1, fidelity=(0.1,), **FOUND)
MISSED = Seen(greedy=False, rank=7, margin=-2.0, aligned=3, fidelity=(0.1,), **FOUND)
# The tables that name what is missing. The others are of any probe.
WITH = {
    "greedy": (
        "accuracy fates ladder recovery rank pr_gap candidates hard_distractors"
        " recovery_seeds one_shot calibration fertility matching flips"
        " recovery_percent length"
    ),
    "choice": (
        "accuracy fates ladder rank pr_gap hard_distractors calibration fertility flips"
        " recovery_percent"
    ),
    "hard_choice": "hard_distractors",
    "beam": "recovery",
    "sample": "recovery recovery_seeds seeds",
    "rank": "rank",
    "aligned_rank": "rank",
    "perplexity": "perplexity",
    "shown": "ladder candidates",
    "distractors_only": "candidates",
    "unrelated": "candidates",
    "one_shot": "one_shot",
    "open_capped": "one_shot",
}


@pytest.fixture(scope="module")
def whole():
    parts = []
    for name, base, second in (("dense", None, DENSE), ("p", "dense", MISSED)):
        own = {"base": base, "calibration": base and "c4"}
        seen = numbered(english=[DENSE, second, MISSED])
        drawn = dict.fromkeys(seen, Seen(samples=[True]))
        parts += [records(name, seen, **own), records(name, drawn, seed=1, **own)]
        said = {key: Seen(greedy=item.greedy) for key, item in seen.items()}
        parts += [records(name, said, form=form, **own) for form in FORMATS[1:]]
        text = {"text/0": Seen(window=(-9.0, 3), fidelity=(0.1,))}
        parts.append(records(name, text, task="book", **own))
    return pd.concat(parts, ignore_index=True)


def computed(frame: pd.DataFrame) -> dict[str, FilledTable]:
    said = {"english/1": True, "english/2": True, "english/3": False}
    verdicts = judged("m", "p", said)
    if not (frame["probe"] == "greedy").any():
        verdicts = verdicts.iloc[:0]
    return compute_tables(Inputs(reduce_records(frame), None, verdicts))


@pytest.fixture(scope="module")
def filled(whole):
    """The tables that such a run fills: they lack nothing, the others say what they
    need."""
    found = computed(whole)
    names = {name for name, table in found.items() if table.rows}
    for name, table in found.items():
        told = "" if name in names else "No rows: it needs "
        assert (table.note + table.lacks).startswith(told), name
        assert told or not table.note + table.lacks, name
    return names


def test_missing_checkpoints_are_named(whole):
    """A run without pruned checkpoints or base says so."""
    tables = computed(whole[whole["checkpoint"] == "dense"])
    names = "accuracy fates ladder recovery pr_gap one_shot hard_distractors fertility"
    for name in names.split():
        assert "base" in f"{tables[name].note} {tables[name].lacks}", name
    tables = computed(whole[whole["checkpoint"] == "p"])
    why = "base 'dense' has no records of task 't': evaluate it into the same run"
    for name in ("fates", "ladder", "pr_gap"):
        assert why in tables[name].note
    for name in ("accuracy", "hard_distractors"):
        own = tables[name].frame
        assert own["reason"].str.contains("base 'dense' has no records").any(), name
        assert own.filter(regex="accuracy$").notna().any(axis=None), name


_SEVERAL = ("greedy", "shown")  # the others take long


@pytest.mark.parametrize(
    "missing",
    [
        pytest.param(name, marks=() if name in _SEVERAL else pytest.mark.more)
        for name in (*PROBES.names, *FORMATS[1:])
    ],
)
def test_a_table_says_what_it_lacks(whole, filled, missing):
    column = "probe" if missing in PROBES else "format"
    told = set()
    for name, table in computed(whole[whole[column] != missing]).items():
        if name in filled and missing in f"{table.note} {table.lacks}":
            told.add(name)
        assert table.note or not table.frame.empty
    assert told == set(WITH.get(missing, "").split())
