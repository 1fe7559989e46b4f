"""Every table on small cases that were worked out by hand; the arithmetic stands beside the expectation."""

from __future__ import annotations

import pandas as pd
import pytest
from scipy.stats import binomtest

from evaluator.metrics import Inputs, compute_tables, headline_of, headline_sentence, reduce_records
from evaluator.metrics.headline import COLUMNS as HEADLINE
from evaluator.metrics.inputs import ROUNDED
from tests.support.records import Seen, records
from tests.support.tables import only, tables

BOTH = Seen(greedy=True, choice=True)

# english: one item of every fate, a tie, an item that the dense model did not produce, an excluded one, a failed one.
DENSE = {
    "english/1": BOTH,
    "english/2": BOTH,
    "english/3": BOTH,
    "english/4": BOTH,
    "english/5": Seen(greedy=False, choice=True),
    "english/6": BOTH,
    "english/7": Seen(greedy=False, choice=False, status="excluded"),
    "english/8": BOTH,
    "swahili/1": BOTH,  # swahili is missing in the pruned checkpoint
}
PRUNED = {
    "english/1": Seen(greedy=True, choice=True),  # kept
    "english/2": Seen(greedy=False, choice=True),  # mc_only
    "english/3": Seen(greedy=True, choice=False),  # produced_only
    "english/4": Seen(greedy=False, choice=False),  # lost
    "english/5": Seen(greedy=True, choice=True),  # not known by the dense model
    "english/6": Seen(greedy=True, choice="tie"),  # a tie is wrong: produced_only
    "english/7": Seen(greedy=False, choice=False, status="excluded"),
    "english/8": Seen(greedy=True, choice=True, status="engine_error"),
}


@pytest.fixture(scope="module")
def case() -> dict[str, pd.DataFrame]:
    return tables(records("dense", DENSE), records("pruned", PRUNED, base="dense"))


def test_fates_count_each_fate_once_and_show_what_was_left_out(case):
    row = only(case["fates"], language="english")
    assert row[["n", "items", "kept", "mc_only", "produced_only", "lost"]].tolist() == [5, 6, 1, 1, 2, 1]
    assert (row["excluded"], row["engine_error"]) == (1, 1)
    assert row["dissociation_rate"] == pytest.approx(1 / 5)
    # one lost item of four options stands for 1 / 3 lucky guess: (1 - 1/3) / 5
    assert row["mc_only_corrected"] == pytest.approx(2 / 15)
    exact = binomtest(1, 5).proportion_ci(method="exact")
    assert (row["mc_only_rate_low"], row["mc_only_rate_high"]) == pytest.approx((exact.low, exact.high))
    assert not row["re_run"]


def test_fates_pool_the_items_common_to_both_and_name_the_missing_language(case):
    assert only(case["fates"], language="all")["n"] == 5
    missing = only(case["fates"], language="swahili")
    assert missing["n"] == 0
    assert pd.isna(missing["dissociation_rate"])
    assert missing["reason"] == "no item of this language is common to the checkpoint and its base"


def test_accuracy_counts_and_pairs(case):
    pruned = only(case["accuracy"], checkpoint="pruned", probe="greedy", language="english")
    assert pruned[["n", "excluded", "engine_error", "n_paired"]].tolist() == [6, 1, 1, 6]
    assert pruned["accuracy"] == pytest.approx(4 / 6)  # items 1, 3, 5 and 6
    assert pruned["dense_accuracy"] == pytest.approx(5 / 6)
    assert pruned["drop"] == pytest.approx(1 / 6)
    # dense alone is right on 2 and 4, pruned alone on 5: two-sided exact McNemar of 2 against 1 is 1
    assert pruned["mcnemar_p"] == pytest.approx(1.0)
    assert pruned["normalised_drop"] == pytest.approx((1 / 6) / (5 / 6))
    dense = only(case["accuracy"], checkpoint="dense", probe="greedy", language="all")
    assert (dense["n"], dense["excluded"], dense["engine_error"]) == (8, 1, 0)
    assert dense["accuracy"] == pytest.approx(7 / 8)  # item 8 and swahili too
    mean = only(case["accuracy"], checkpoint="dense", probe="greedy", language="mean")
    assert mean["accuracy"] == pytest.approx((6 / 7 + 1) / 2)


def test_a_tie_is_wrong_in_choice_and_no_sentinel_stands_for_a_missing_language(case):
    english = only(case["accuracy"], checkpoint="pruned", probe="choice", language="english")
    assert english["accuracy"] == pytest.approx(3 / 6)  # items 1, 2 and 5
    assert english["normalised_drop"] == pytest.approx((1 - 0.5) / (1 - 0.25))
    missing = only(case["accuracy"], checkpoint="pruned", probe="choice", language="swahili")
    assert missing["n"] == 0
    assert pd.isna(missing["accuracy"])
    assert pd.isna(missing["accuracy_low"])
    assert missing["reason"].startswith("no item was measured")


def test_pr_gap_is_the_difference_of_normalised_drops(case):
    row = only(case["pr_gap"], language="all")
    # open: (5/6 - 4/6) / (5/6) = 0.2; choice: (1 - 3/6) / (1 - 1/4) = 2/3
    assert (row["d_open"], row["d_choice"]) == pytest.approx((0.2, 2 / 3))
    assert row["delta_pr"] == pytest.approx(0.2 - 2 / 3)
    mean = only(case["pr_gap"], language="mean")
    assert (mean["delta_pr"], mean["languages"]) == (pytest.approx(0.2 - 2 / 3), 1)
    assert mean["reason"] == "undefined in: swahili"


def test_a_dense_accuracy_at_the_floor_has_no_normalised_drop():
    dense = {f"english/{i}": Seen(greedy=True, choice=i == 1) for i in range(1, 5)}  # 1 of 4 with 4 options: the floor
    pruned = {f"english/{i}": Seen(greedy=i > 2, choice=False) for i in range(1, 5)}
    found = tables(records("dense", dense), records("pruned", pruned, base="dense"))
    gap = only(found["pr_gap"], language="all")
    assert pd.isna(gap["delta_pr"])
    assert pd.isna(gap["d_choice"])
    assert gap["d_open"] == pytest.approx(0.5)
    assert gap["reason"] == "choice: dense accuracy 0.250 is not above the floor 0.250"
    row = only(found["accuracy"], checkpoint="pruned", probe="choice", language="all")
    assert pd.isna(row["normalised_drop"])
    assert row["drop"] == pytest.approx(0.25)
    rung = only(found["ladder"], rung="choice", language="all")
    assert pd.isna(rung["normalised_drop"])
    assert rung["drop"] == pytest.approx(0.25)


def test_the_floor_follows_the_number_of_options():
    dense = {"english/1": BOTH, "english/2": Seen(greedy=True, choice=True, options=2)}
    pruned = {"english/1": BOTH, "english/2": Seen(greedy=True, choice=False, options=2)}
    row = only(tables(records("dense", dense), records("p", pruned, base="dense"))["pr_gap"], language="all")
    assert row["choice_floor"] == pytest.approx((1 / 4 + 1 / 2) / 2)
    assert row["d_choice"] == pytest.approx(0.5 / (1 - 0.375))


def test_a_checkpoint_without_its_base_has_rows_with_the_reason():
    found = tables(records("pruned", PRUNED, base="nowhere"))
    for name in ("fates", "pr_gap"):
        row = only(found[name])
        assert row["n"] == 0
        assert row["reason"].startswith("base 'nowhere' has no records of task 't'")
    assert pd.isna(only(found["fates"])["mc_only_rate"])
    row = only(found["accuracy"], probe="greedy", language="english")
    assert row["accuracy"] == pytest.approx(4 / 6)
    assert pd.isna(row["drop"])
    assert "nowhere" in row["reason"]


def test_recovery_keeps_to_the_items_with_beams_and_splits_off_the_failures():
    half = {
        "english/1": Seen(greedy=True, beams=[True, False], samples=[False, False]),
        "english/2": Seen(greedy=False, beams=[False, True], samples=[True, True]),
        "english/3": Seen(greedy=False, beams=[False, False], samples=[False, True]),
        "english/4": Seen(greedy=False, beams=[False, False], samples=[False, False]),
        "english/5": Seen(greedy=True),  # not in the first half
        "english/6": Seen(greedy=False, beams=[False], samples=[True], status="engine_error"),
    }
    dense = {key: Seen(greedy=True, beams=[True, True], samples=[True, True]) for key in half}
    found = tables(records("dense", dense), records("p", half, base="dense"))["recovery"]

    def row(population: str, probe: str) -> pd.Series:
        return only(found, checkpoint="p", language="all", population=population, probe=probe)

    assert (row("all_items", "greedy")["hits"], row("all_items", "greedy")["n"]) == (1, 4)
    assert (row("all_items", "beam")["hits"], row("all_items", "beam")["n"]) == (2, 4)
    assert (row("all_items", "sample")["hits"], row("all_items", "sample")["engine_error"]) == (2, 1)
    assert row("all_items", "beam")["tries"] == 2
    assert row("all_items", "sample")["drop"] == pytest.approx(0.5)
    assert (row("greedy_failures", "beam")["hits"], row("greedy_failures", "beam")["n"]) == (1, 3)
    assert row("greedy_failures", "sample")["rate"] == pytest.approx(2 / 3)
    none = only(found, checkpoint="dense", language="all", population="greedy_failures", probe="beam")
    assert none["n"] == 0
    assert pd.isna(none["rate"])
    assert none["reason"] == "greedy missed none of the items"


def test_ranks_by_group_dense_beside_pruned():
    dense = {
        "english/1": Seen(greedy=True, choice=True, rank=1, margin=0.0),
        "english/2": Seen(greedy=True, choice=True, rank=1, margin=0.0),
        "english/3": Seen(greedy=True, choice=True, rank=2, margin=-0.5),
        "english/4": Seen(greedy=False, choice=True, rank=17, margin=-4.0),
    }
    pruned = {
        "english/1": Seen(greedy=False, choice=True, rank=3, margin=-1.0),  # mc_only
        "english/2": Seen(greedy=False, choice=True, rank=4, margin=-2.0),  # mc_only
        "english/3": Seen(greedy=True, choice=True, rank=1, margin=0.0),
        "english/4": Seen(greedy=False, choice=False, rank=30, margin=-6.0),
    }
    found = tables(records("dense", dense), records("p", pruned, base="dense"))["rank"]
    mc_only = only(found, checkpoint="p", language="all", group="mc_only", side="own")
    assert (mc_only["n"], mc_only["rank_median"], mc_only["margin_median"]) == (2, 3.5, -1.5)
    assert only(found, checkpoint="p", language="all", group="mc_only", side="base")["rank_median"] == 1
    everything = only(found, checkpoint="p", language="all", group="all", side="own")
    # ranks 1, 3, 4, 30: linear quartiles 2.5 and 10.5
    assert everything[["rank_q1", "rank_median", "rank_q3"]].tolist() == [2.5, 3.5, 10.5]
    bands = ["rank_1", "rank_2_5", "rank_6_20", "rank_over_20"]
    assert everything[bands].tolist() == [0.25, 0.5, 0.0, 0.25]
    failures = only(found, checkpoint="p", language="all", group="dense_failures", side="own")
    assert (failures["n"], failures["rank_median"]) == (1, 30)
    assert only(found, checkpoint="dense", language="all", group="dense_failures")["rank_median"] == 17


def test_aligned_ranks_stand_beside_ranks_where_they_are_defined():
    """A model that answers in sentences: the rank right after the prompt says nothing, the aligned one does."""
    dense = {
        "english/1": Seen(greedy=True, choice=True, rank=900, margin=-9.0, aligned=1),
        "english/2": Seen(greedy=True, choice=True, rank=700, margin=-8.0, aligned=1),
        "english/3": Seen(greedy=True, choice=True, rank=800, margin=-8.5, aligned=1),
        "english/4": Seen(greedy=False, choice=True, rank=999, margin=-9.5, aligned="not said"),
    }
    pruned = {
        "english/1": Seen(greedy=False, choice=True, rank=950, margin=-9.0, aligned=2),  # mc_only
        "english/2": Seen(greedy=False, choice=True, rank=850, margin=-8.0, aligned=5),  # mc_only
        "english/3": Seen(greedy=True, choice=True, rank=800, margin=-8.5, aligned=1),
        "english/4": Seen(greedy=False, choice=True, rank=999, margin=-9.5, aligned="not said"),
    }
    found = tables(records("dense", dense), records("p", pruned, base="dense"))
    rank = found["rank"]
    mc_only = only(rank, checkpoint="p", language="all", group="mc_only", side="own")
    assert mc_only[["n", "rank_median", "aligned_n", "aligned_rank_median"]].tolist() == [2, 900.0, 2, 3.5]
    assert mc_only[["aligned_rank_1", "aligned_rank_2_5", "aligned_rank_6_20"]].tolist() == [0.0, 1.0, 0.0]
    assert only(rank, checkpoint="p", language="all", group="mc_only", side="base")["aligned_rank_median"] == 1
    everything = only(rank, checkpoint="p", language="all", group="all", side="own")
    # 1, 2, 5 of three items; the fourth is not defined
    assert everything[["n", "aligned_n", "aligned_rank_median"]].tolist() == [4, 3, 2.0]
    failures = only(rank, checkpoint="p", language="all", group="dense_failures", side="own")
    assert (failures["n"], failures["aligned_n"]) == (1, 0)
    assert pd.isna(failures["aligned_rank_median"])
    row = only(headline_of(found), checkpoint="p")
    assert (row["mc_only_median_rank"], row["mc_only_median_aligned_rank"]) == (900.0, 3.5)


def test_ladder_uses_the_items_measured_in_every_rung():
    open_dense = {f"english/{i}": Seen(greedy=True, choice=True) for i in range(1, 5)}
    open_pruned = {f"english/{i}": Seen(greedy=i == 4, choice=True) for i in range(1, 5)}
    shown_dense = {f"english/{i}": Seen(greedy=True) for i in range(1, 4)}
    shown_pruned = {f"english/{i}": Seen(greedy=i < 3) for i in range(1, 4)}
    found = tables(
        pd.concat([records("dense", open_dense), records("dense", shown_dense, form="shown")]),
        pd.concat([records("p", open_pruned, base="dense"), records("p", shown_pruned, base="dense", form="shown")]),
    )
    drops = {rung: only(found["ladder"], rung=rung, language="all") for rung in ("open", "shown", "choice")}
    assert [drops[rung]["n"] for rung in drops] == [3, 3, 3]
    assert [drops[rung]["drop"] for rung in drops] == pytest.approx([1.0, 1 / 3, 0.0])
    assert drops["choice"]["normalised_drop"] == 0.0


def test_candidates_and_one_shot_compare_the_same_items():
    forms = {"open": [1, 0, 0, 1], "distractors_only": [0, 0, 0, 1], "unrelated": [0, 0, 0], "shown": [1, 1, 0, 1]}
    parts = [
        records("dense", {f"english/{i}": Seen(greedy=bool(hit)) for i, hit in enumerate(hits)}, form=form)
        for form, hits in forms.items()
    ]
    found = tables(pd.concat(parts))["candidates"]
    got = {form: only(found, language="all", format=form) for form in forms}
    assert {form: row["n"] for form, row in got.items()} == dict.fromkeys(forms, 3)  # unrelated lacks the fourth item
    assert [row["accuracy"] for row in got.values()] == pytest.approx([1 / 3, 0, 0, 2 / 3])
    assert got["shown"]["difference"] == pytest.approx(1 / 3)

    zero = {"dense": [1, 1, 1, 0], "p": [1, 0, 0, 0]}
    one = {"dense": [1, 1, 1, 1], "p": [1, 1, 1, 0]}
    parts = [
        records(
            name,
            {f"english/{i}": Seen(greedy=bool(hit)) for i, hit in enumerate(hits[name])},
            base=None if name == "dense" else "dense",
            form=form,
        )
        for name in ("dense", "p")
        for form, hits in (("open", zero), ("one_shot", one))
    ]
    row = only(tables(pd.concat(parts))["one_shot"], language="all")
    assert (row["zero_shot_gap"], row["one_shot_gap"], row["repaired"]) == pytest.approx((0.5, 0.25, 0.25))


def test_recovery_over_seeds_is_mean_and_range_among_the_first_seeds_failures():
    greedy = {"english/1": False, "english/2": False, "english/3": True}
    hits = {0: [True, False, False], 1: [True, True, False]}
    parts = [
        records(
            "dense",
            {
                key: Seen(greedy=said, samples=[hit])
                for (key, said), hit in zip(greedy.items(), hits[seed], strict=True)
            },
            seed=seed,
        )
        for seed in (0, 1)
    ]
    row = only(tables(pd.concat(parts))["recovery_seeds"], language="all")
    assert row[["seeds", "n_min", "lowest", "mean", "highest"]].tolist() == [2, 2, 0.5, 0.75, 1.0]


def test_calibration_shows_the_gap_between_choice_and_open():
    pruned = {
        "english/1": BOTH,
        "english/2": Seen(greedy=False, choice=True),
        "arabic/1": Seen(greedy=False, choice=True),
    }
    found = tables(records("dense", DENSE), records("p", pruned, base="dense", calibration="c4"))["calibration"]
    pooled = only(found, checkpoint="p", language="all")
    assert (pooled["open_accuracy"], pooled["choice_accuracy"]) == pytest.approx((1 / 3, 1.0))
    mean = only(found, checkpoint="p", language="mean")
    assert mean["choice_minus_open"] == pytest.approx((0.5 + 1.0) / 2)


def test_a_dense_re_run_is_the_noise_floor_beside_the_others():
    flipped = {**DENSE, "english/1": Seen(greedy=False, choice=True)}
    again = records("again", flipped, base="dense", digest="dense").assign(method=None, pattern=None, sparsity=None)
    found = tables(records("dense", DENSE), again, records("pruned", PRUNED, base="dense"))["fates"]
    row = only(found, checkpoint="again", language="all")
    assert row["re_run"]
    assert (row["n"], row["kept"], row["mc_only"]) == (7, 6, 1)
    assert pd.isna(row["noise_floor"])
    pruned = only(found, checkpoint="pruned", language="all")
    assert not pruned["re_run"]
    assert pruned["noise_floor"] == pytest.approx(1 / 7)


def test_a_re_run_of_the_base_is_no_member_of_holms_family():
    """Two checkpoints of other weights and a second run of the base: two tests, unless it was served otherwise."""
    dense = {f"english/{i}": Seen(greedy=True) for i in range(20)}
    lost = {key: Seen(greedy=i >= 8) for i, key in enumerate(dense)}
    of_base = [records(name, lost, base="dense") for name in ("one", "two")]
    for dtype, tests in (("float32", 2), ("bfloat16", 3)):
        again = records("again", dense, base="dense", digest="dense", dtype=dtype)
        found = tables(records("dense", dense), again, *of_base)["accuracy"]
        one, re_run = (only(found, checkpoint=name, language="all") for name in ("one", "again"))
        assert (one["mcnemar_p"], one["holm_p"]) == pytest.approx((2 * 0.5**8, tests * 2 * 0.5**8))
        assert re_run["mcnemar_p"] == 1.0
        assert pd.isna(re_run["holm_p"]) == (tests == 2)


@pytest.mark.parametrize(
    ("pattern", "noisy"),
    [
        ("W8A8 (per channel)", True),
        ("unstructured + FP8 (rtn, per channel)", True),
        ("W4A8 (group 128)", True),
        ("FP8 W8A16 (per channel)", False),
        ("W4A16 (gptq, group 128)", False),
        ("2:4", False),
    ],
)
def test_quantised_activations_have_a_noise_floor_that_their_rows_name(pattern, noisy):
    found = tables(records("dense", DENSE), records("p", PRUNED, base="dense").assign(pattern=pattern))
    for name in ("accuracy", "fates", "pr_gap"):
        reasons = found[name].loc[found[name]["checkpoint"] == "p", "reason"].fillna("")
        assert reasons.str.startswith(ROUNDED).all() == noisy
        assert (
            not found[name].loc[found[name]["checkpoint"] == "dense", "reason"].fillna("").str.contains(ROUNDED).any()
        )


def test_a_checkpoint_without_a_manifest_is_no_re_run():
    other = records("other", PRUNED, base="dense").assign(method=None, pattern=None, sparsity=None)
    found = tables(records("dense", DENSE), other)["fates"]
    assert not found["re_run"].any()
    assert found["noise_floor"].isna().all()


def test_a_pair_without_the_choice_probe_says_so():
    said = {"english/1": Seen(greedy=True)}
    found = tables(records("dense", said), records("p", said, base="dense"))
    assert only(found["fates"], language="all")["reason"] == (
        "no item was measured with both probes greedy and choice in both checkpoints"
    )
    assert only(found["pr_gap"])["reason"] == "needs the probes greedy and choice"
    assert only(found["ladder"], rung="open", language="all")["drop"] == 0.0


def test_a_dense_model_that_knows_nothing_leaves_no_fates():
    nothing = {"english/1": Seen(greedy=False, choice=True)}
    row = only(tables(records("dense", nothing), records("p", nothing, base="dense"))["fates"], language="all")
    assert (row["n"], row["items"]) == (0, 1)
    assert pd.isna(row["dissociation_rate"])
    assert row["reason"] == "the dense model both produced and recognised none of the items"


def test_translations_of_one_item_share_their_id_and_stay_apart():
    dense = {"english/1": BOTH, "arabic/1": BOTH}
    pruned = {"english/1": BOTH, "arabic/1": Seen(greedy=False, choice=True)}
    found = tables(records("dense", dense), records("p", pruned, base="dense"))["fates"]
    assert {row["language"]: row["mc_only"] for _, row in found.iterrows()} == {"all": 1, "arabic": 1, "english": 0}


def sentence_of(found: dict[str, pd.DataFrame]) -> str:
    return headline_sentence(headline_of(found)).replace("\N{NO-BREAK SPACE}", " ")


def test_the_headline_reads_the_tables(case):
    row = only(headline_of(case), checkpoint="pruned")
    assert (row["known"], row["kept"], row["mc_only"], row["lost"]) == (5, 0.2, 0.2, 0.2)
    assert row["open_accuracy"] == pytest.approx(4 / 6)
    sentence = sentence_of(case)
    # on the six items measured in both: open 5 and then 4, choice 6 and then 3
    assert sentence.startswith("pruned: open accuracy 5 → 4 of 6, choice 6 → 3 of 6. Of 5 answers")
    assert sentence.endswith("1 is lost; 2 are still said but no longer recognised.")
    assert (row["open_n_paired"], row["choice_n_paired"]) == (6, 6)
    assert headline_of(case)["checkpoint"].tolist() == ["dense", "pruned"]


def test_a_headline_without_a_fate_says_why():
    nothing = {"english/1": Seen(greedy=False, choice=True)}
    parts = [records("dense", nothing), records("p", nothing, base="dense")]
    sentence = headline_sentence(headline_of(tables(*parts)))
    assert sentence.startswith("The dense model both produced and recognised none of the items")


def test_a_base_alone_measured_is_not_told_to_know_nothing():
    """The compressed checkpoint failed on every item: nothing is known of the fates, and the base is not to blame."""
    known = {f"english/{i}": Seen(greedy=True, choice=True) for i in range(4)}
    failed = {key: Seen(greedy=True, choice=True, status="engine_error", why="out of memory") for key in known}
    headline = headline_of(tables(records("dense", known), records("p", failed, base="dense")))
    assert only(headline, checkpoint="dense")[["open_accuracy", "choice_accuracy"]].tolist() == [1.0, 1.0]
    assert headline["known"].isna().all()
    assert headline_sentence(headline) == (
        "No checkpoint was measured beside its base with greedy and choice: no answer has a fate."
    )


def test_hard_choice_has_a_column_of_the_headline_where_it_was_asked():
    dense = {f"english/{i}": Seen(greedy=True, choice=True, hard=i > 0) for i in range(4)}
    headline = headline_of(tables(records("dense", dense)))
    assert (only(headline)["choice_accuracy"], only(headline)["hard_accuracy"]) == (1.0, 0.75)
    without = headline_of(tables(records("dense", {"english/0": Seen(greedy=True, choice=True)})))
    assert without["hard_accuracy"].isna().all()


def test_a_headline_without_pairs_says_what_to_run():
    sentence = headline_sentence(headline_of(tables(records("dense", DENSE))))
    assert sentence.endswith("evaluate a dense and a pruned one together.")


def test_a_table_without_its_inputs_says_which_probe_to_run():
    outcomes = reduce_records(records("dense", {"english/1": Seen(greedy=True)}))
    notes = {name: table.note for name, table in compute_tables(Inputs(outcomes)).items()}
    assert notes["accuracy"] == ""
    assert notes["rank"] == "No records for this table: it needs the probe rank."
    assert "probe beam or sample" in notes["recovery"]
    assert all(notes[name] for name in ("fates", "pr_gap", "candidates", "one_shot", "recovery_seeds"))


def asked(hits: int, n: int = 4, *, choice: bool = True, task: str = "t", name: str = "p", base: str | None = "dense"):
    seen = {f"english/{i}": Seen(greedy=i < hits, choice=choice) for i in range(n)}
    return records(name, seen, base=base, task=task)


def test_a_headline_of_increases_tells_them():
    sentence = sentence_of(tables(asked(2, name="dense", base=None), asked(4)))
    assert sentence == (
        "p: open accuracy 2 → 4 of 4, choice 4 → 4 of 4. Of 2 answers that the dense model produced and "
        "recognised, every one is still said and recognised."
    )


def test_a_headline_names_the_task_and_the_base_where_there_are_several():
    found = tables(
        asked(20, 20, name="dense", base=None),
        asked(5, 20),
        asked(20, 20, name="dense", base=None, task="u"),
        asked(15, 20, task="u"),
        asked(5, 20, name="other", base=None),
        asked(5, 20, name="q", base="other"),
    )
    assert sentence_of(found) == (
        "p on t: open accuracy 100 % → 25 %, choice 100 % → 100 %. Of 20 answers that dense produced and recognised, "
        "75 % are still recognised but no longer said, and none is lost."
    )


def test_a_share_of_few_is_a_count_and_of_twenty_a_percentage():
    nineteen, twenty = (tables(asked(n, n, name="dense", base=None), asked(n - 3, n)) for n in (19, 20))
    assert sentence_of(nineteen).endswith("recognised, 3 are still recognised but no longer said, and none is lost.")
    assert sentence_of(twenty).endswith("recognised, 15 % are still recognised but no longer said, and none is lost.")
    row = only(headline_of(nineteen), checkpoint="p")
    assert (row["known"], row["mc_only"]) == (19, 3 / 19)  # the CSV keeps numbers
    shown = {column.name: column.shown(row) for column in HEADLINE}
    assert (shown["known"], shown["kept"], shown["mc_only"], shown["lost"]) == ("19", "16 of 19", "3 of 19", "0 of 19")
    narrow = {column.name: column.shown(row, narrow=True) for column in HEADLINE}
    assert (narrow["kept"], narrow["mc_only"], narrow["open_accuracy"]) == ("16/19", "3/19", "84.2")


def test_few_answers_that_sampling_finds_are_counted():
    dense = {f"english/{i}": Seen(greedy=True, choice=True, samples=[True]) for i in range(4)}
    pruned = {key: Seen(greedy=i > 1, choice=True, samples=[i == 0]) for i, key in enumerate(dense)}
    sentence = sentence_of(tables(records("dense", dense), records("p", pruned, base="dense")))
    assert sentence.endswith("none is lost; of 2 answers that greedy decoding misses, sampling finds 1.")
    pruned = {key: Seen(greedy=i > 0, choice=True, samples=[False]) for i, key in enumerate(dense)}
    sentence = sentence_of(tables(records("dense", dense), records("p", pruned, base="dense")))
    assert "recognised, 1 is still recognised but no longer said" in sentence
    assert sentence.endswith("of 1 answer that greedy decoding misses, sampling finds 0.")


def test_a_headline_without_anything_mc_only_says_none():
    found = tables(asked(400, 400, name="dense", base=None), asked(399, 400, choice=False))
    assert "100 % → over 99 %, choice 100 % → 0 %. Of 400 answers" in sentence_of(found)
    assert "none is still recognised but no longer said, and under 1 % are lost; over 99 % are" in sentence_of(found)


def test_a_re_run_is_not_the_headline_unless_it_is_alone():
    again = asked(3, name="again").assign(weights_digest="dense", method=None)
    found = tables(asked(4, name="dense", base=None), again)
    assert sentence_of(found) == (
        "again has the weights of its base: of 4 answers that the dense model produced and recognised, 1 changed "
        "its fate, which is the noise of the measurement."
    )
    found = tables(asked(4, name="dense", base=None), again, asked(4))
    assert sentence_of(found).startswith("p: open accuracy 4 → 4 of 4")


def test_what_a_table_lacks_is_said():
    outcomes = pd.concat([reduce_records(asked(4, name="dense", base=None)), reduce_records(asked(1))])
    lacks = {name: table.lacks for name, table in compute_tables(Inputs(outcomes)).items()}
    assert lacks["ladder"] == "Not in this run: the format shown with the probe greedy."
    assert lacks["accuracy"] == ""
    assert lacks["candidates"] == ""  # there is nothing of it: its note says what to run
