"""Every table with every probe and every format missing: it says what to run, and is
never silently empty."""

import pandas as pd
import pytest

from evaluator.core.records import FORMATS
from evaluator.metrics import (
    TABLES,
    FilledTable,
    Inputs,
    compute_tables,
    reduce_records,
)
from evaluator.probes import PROBES
from tests.support.records import Seen, judged, records

# One item that stays, one that goes unsaid; every probe, every format, two seeds of
# samples.
FOUND = {
    "choice": True,
    "hard": True,
    "beams": [True],
    "samples": [True],
    "fidelity": (0.1,),
}
DENSE = Seen(greedy=True, rank=1, margin=0.0, aligned=1, **FOUND)
MISSED = Seen(greedy=False, rank=7, margin=-2.0, aligned=3, **FOUND)
PRUNED = {"english/1": DENSE, "english/2": MISSED, "english/3": MISSED}
WITH = {
    "greedy": {"accuracy", "fates", "ladder", "recovery", "rank", "pr_gap", "candidates", "hard_distractors",
               "recovery_seeds", "one_shot", "calibration", "fertility", "matching", "flips", "recovery_percent",
               "length"},
    "choice": {"accuracy", "fates", "ladder", "rank", "pr_gap", "hard_distractors", "calibration", "fertility",
               "flips", "recovery_percent"},
    "hard_choice": {"hard_distractors"},
    "beam": {"recovery"},
    "sample": {"recovery", "recovery_seeds"},
    "rank": {"rank"},
    "aligned_rank": {"rank"},
    "perplexity": {"perplexity"},
    "fidelity": set(),  # the table is of either: the other is asked of other tasks
    "text_fidelity": set(),
    "shown": {"ladder", "candidates"},
    "distractors_only": {"candidates"},
    "unrelated": {"candidates"},
    "one_shot": {"one_shot"},
    "open_capped": {"one_shot"},
    "direct": set(),  # these three are asked where a model thinks
    "aligned_beam": set(),
    "aligned_choice": set(),
    # of the open format nothing but greedy is missing where it is not asked
    "open": set(),
}  # fmt: skip


@pytest.fixture(scope="module")
def whole():
    parts = []
    for name, base, seen in (
        ("dense", None, {**PRUNED, "english/2": DENSE}),
        ("p", "dense", PRUNED),
    ):
        setting = {"base": base, "calibration": "c4" if base else None}
        parts.append(records(name, seen, **setting))
        parts.append(
            records(
                name, {key: Seen(samples=[True]) for key in seen}, seed=1, **setting
            )
        )
        parts += [
            records(
                name,
                {key: Seen(greedy=item.greedy) for key, item in seen.items()},
                form=form,
                **setting,
            )
            for form in FORMATS[1:]
        ]
        parts.append(
            records(
                name,
                {"text/0": Seen(window=(-9.0, 3), fidelity=(0.1,))},
                task="book",
                **setting,
            )
        )
    return pd.concat(parts, ignore_index=True)


def computed(frame: pd.DataFrame) -> dict[str, FilledTable]:
    verdicts = judged(
        "m", "p", {"english/1": True, "english/2": True, "english/3": False}
    )
    if not (frame["probe"] == "greedy").any():
        verdicts = verdicts.iloc[:0]
    return compute_tables(Inputs(reduce_records(frame), None, verdicts))


def test_missing_checkpoints_are_named(whole):
    """A whole run lacks nothing and one without pruned checkpoints or base says so."""
    told = {name: (table.note, table.lacks) for name, table in computed(whole).items()}
    assert told == dict.fromkeys(TABLES.names, ("", ""))
    tables = computed(whole[whole["checkpoint"] == "dense"])
    for name in (
        "accuracy",
        "fates",
        "ladder",
        "recovery",
        "pr_gap",
        "one_shot",
        "hard_distractors",
        "fertility",
    ):
        assert "base" in f"{tables[name].note} {tables[name].lacks}", name
    tables = computed(whole[whole["checkpoint"] == "p"])
    for name in ("fates", "ladder", "pr_gap"):
        assert (
            "base 'dense' has no records of task 't': evaluate it into the same run"
            in tables[name].note
        )
    for name in ("accuracy", "hard_distractors"):
        own = tables[name].frame
        assert own["reason"].str.contains("base 'dense' has no records").any(), name
        assert own.filter(regex="accuracy$").notna().any(axis=None), name
    rank = tables["rank"].frame
    own = rank[(rank["group"] == "all") & (rank["language"] == "english")]
    assert own[["side", "n", "rank_median"]].to_numpy().tolist() == [["own", 3, 7.0]]
    for name in (
        "accuracy",
        "recovery",
        "candidates",
        "hard_distractors",
        "calibration",
        "fertility",
        "perplexity",
    ):
        assert not tables[name].note, name


@pytest.mark.parametrize(  # every table is computed for each: most are for test-more
    "missing",
    [
        pytest.param(
            name,
            marks=() if name in ("greedy", "fidelity", "shown") else pytest.mark.more,
        )
        for name in (*PROBES.names, *FORMATS[1:])
    ],
)
def test_a_table_says_what_it_lacks(whole, missing):
    column = "probe" if missing in PROBES else "format"
    tables = computed(whole[whole[column] != missing])
    told = {
        name
        for name, table in tables.items()
        if missing in f"{table.note} {table.lacks}"
    }
    assert told == WITH[missing]
    assert all(
        not each.frame.empty
        for each in tables.values()
        if not each.note and not each.table.silent
    )
