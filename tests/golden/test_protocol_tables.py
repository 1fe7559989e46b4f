"""The protocol's further tables on small cases, worked out by hand."""

import math
from dataclasses import replace

import pandas as pd
import pytest

from evaluator.metrics import TABLES, Inputs, reduce_records
from evaluator.metrics.tables.calibration import kind_of
from tests.support.records import Seen, numbered, records
from tests.support.tables import has, only, pair, select, tables


def said(*answers: int, language: str = "english") -> dict[str, Seen]:
    return {
        f"{language}/{number}": Seen(greedy=bool(hit))
        for number, hit in enumerate(answers)
    }


def test_hard_distractors_beside_the_standard_ones():
    known, unsaid = (
        Seen(greedy=True, choice=True, hard=True),
        Seen(greedy=False, choice=True),
    )
    # Item 4 is not known among hard distractors, so not compared; hard_choice did not
    # run on item 5.
    dense = numbered(
        english=[
            known,
            known,
            known,
            replace(known, hard=False),
            Seen(greedy=True, choice=True),
        ]
    )
    # mc_only both ways; with standard distractors alone; not; a tie is wrong.
    own = [
        replace(unsaid, hard=True),
        replace(unsaid, hard=False),
        known,
        replace(unsaid, hard="tie"),
        unsaid,
    ]
    found = pair(dense, numbered(english=own))["hard_distractors"]
    row = only(found, checkpoint="p")
    has(row, n=4, standard_accuracy=1.0, hard_accuracy=0.5, difference=-0.5)
    # standard alone is right on items 2 and 4: two-sided exact McNemar of 0 against 2
    # is 2 * (1/2)^2
    has(
        row,
        mcnemar_p=0.5,
        known=3,
        standard_dissociation=2 / 3,
        hard_dissociation=1 / 3,
        dissociation_difference=-1 / 3,
    )
    own = only(found, checkpoint="dense")
    has(own, n=4, hard_accuracy=0.75, known=None)


def test_choice_by_kind_of_distractors():
    """Golds are years. The base picks all of them; the checkpoint only those that
    stand among names."""
    among = {
        "all": ("1990", "1812", "1756", "1402"),
        "some": ("1990", "Nile", "1812", "Po"),
        "none": ("1990", "Nile", "Po", "water"),
    }
    picked = {
        "all": (True, False, False, False),
        "some": (True, False),
        "none": (True, True, True),
    }
    dense, pruned = {}, {}
    for kind, hits in picked.items():
        for number, hit in enumerate(hits):
            language = "swahili" if kind == "some" else "english"
            dense[f"{language}/{kind}{number}"] = Seen(
                choice=True, option_texts=among[kind]
            )
            pruned[f"{language}/{kind}{number}"] = Seen(
                choice=hit, option_texts=among[kind]
            )
    failed = Seen(
        choice=True,
        option_texts=among["all"],
        status="engine_error",
        why="out of memory",
    )
    pruned["english/all3"] = failed
    found = pair(dense, pruned)["distractors"]
    own = select(found, checkpoint="p").set_index("same_kind")
    assert own.index.tolist() == ["all", "some", "none"]
    assert own["n"].tolist() == own["n_paired"].tolist() == [3, 2, 3]
    # a failed item has no options to sort it by
    assert own["engine_error"].tolist() == [1, 1, 1]
    assert own["accuracy"].tolist() == pytest.approx([1 / 3, 1 / 2, 1])
    assert own["base_accuracy"].tolist() == [1, 1, 1]
    assert own["drop"].tolist() == pytest.approx([2 / 3, 1 / 2, 0])
    # two of three are lost, none is gained: exact McNemar 2 * (1/2)^2
    assert own["mcnemar_p"].tolist() == pytest.approx([0.5, 1.0, 1.0])
    by_language = found[(found["checkpoint"] == "p") & (found["language"] != "all")]
    assert by_language[["language", "same_kind", "n"]].to_numpy().tolist() == [
        ["english", "all", 3], ["english", "none", 3], ["swahili", "some", 2],
    ]  # fmt: skip
    alone = select(found, checkpoint="dense")
    assert alone["n"].tolist() == [4, 2, 3]
    assert alone["drop"].isna().all()


def test_zero_shot_prefers_capped_prompt():
    """Zero shot is the capped open prompt where it was asked."""
    forms = {
        "open": {"dense": (1, 1, 1, 1), "p": (0, 0, 0, 0)},
        "open_capped": {"dense": (1, 1, 1, 0), "p": (0, 0, 1, 0)},
        "one_shot": {"dense": (1, 1, 1, 1), "p": (1, 1, 1, 0)},
    }
    parts = {
        form: pd.concat([records("dense", said(*both["dense"]), form=form),
                         records("p", said(*both["p"]), base="dense", form=form)])
        for form, both in forms.items()
    }  # fmt: skip
    row = only(tables(pd.concat(parts.values()))["one_shot"])
    assert row["zero_shot_format"] == "open_capped"
    assert row[["zero_shot_dense", "zero_shot_pruned", "one_shot_dense", "one_shot_pruned"]].tolist() == [
        0.75, 0.25, 1.0, 0.75,
    ]  # fmt: skip
    has(row, zero_shot_gap=0.5, one_shot_gap=0.25, repaired=0.25)
    # 2 against 0; 1 against 0
    has(row, zero_shot_mcnemar_p=0.5, one_shot_mcnemar_p=1.0)
    row = only(tables(parts["open"], parts["one_shot"])["one_shot"])
    has(row, zero_shot_format="open", zero_shot_gap=1.0)


def test_sample_seeds_leave_other_probes_alone():
    """The run's seed is 3; samples were drawn under 1, 2 and 3 as well: greedy
    stands under 3 only."""
    known = {key: Seen(greedy=said, choice=True, samples=[True]) for key, said in
             (("english/1", False), ("english/2", False), ("english/3", True), ("english/4", False))}  # fmt: skip
    parts = [records("dense", known, seed=3)]
    for seed, hits in ((1, (1, 0, 1, 0)), (2, (0, 0, 0, 0))):
        drawn = {
            key: Seen(samples=[bool(hit)]) for key, hit in zip(known, hits, strict=True)
        }
        parts.append(records("dense", drawn, seed=seed))
    found = tables(pd.concat(parts))
    assert only(found["accuracy"], probe="greedy")["accuracy"] == 0.25
    row = only(found["recovery"], population="greedy_failures", probe="sample")
    # the run's own seed: its samples of items 1, 2 and 4 all hit
    has(row, n=3, hits=3)
    seeds = only(found["recovery_seeds"])
    has(seeds, seeds=3, n_min=3, n_max=3)
    # among the three failures: 1/3 under seed 1, 0 under seed 2, 1 under seed 3
    has(seeds, lowest=0, mean=4 / 9, highest=1)
    assert seeds["mean_low"] <= seeds["mean"] <= seeds["mean_high"]


@pytest.mark.parametrize(
    ("kind", "sources"),
    [
        ("english", ("c4", "c4:windows", "wikipedia:en", "gazetteer:english")),
        ("per_language", ("wikipedia:swahili", "gazetteer:swahili")),
        ("multilingual", ("wikipedia:sw,ar", "balanced:en,sw", "gazetteer")),
        ("other", ("text:mine.txt", "wikitext2", "gazetteer:swahili + c4")),
    ],
)
def test_kind_of_calibration(kind, sources):
    """The kind of a calibration is in its name."""
    assert {source: kind_of(source) for source in sources} == dict.fromkeys(
        sources, kind
    )


def test_calibration_per_language():
    """Per language calibration asks each language of its own checkpoint."""
    right, silent = Seen(greedy=True, choice=True), Seen(greedy=False, choice=True)
    dense = numbered(english=[right], swahili=[right], thai=[right])
    en, sw, c4 = (
        records(name, {**dense, f"{wrong}/1": silent}, base="dense", calibration=source)
        for name, wrong, source in (
            ("en", "swahili", "wikipedia:en"), ("sw", "english", "wikipedia:swahili"), ("c4", "swahili", "c4"),
        )
    )  # fmt: skip
    en, sw = (
        en.assign(sparsity=0.4977, requested_sparsity=0.5),
        sw.assign(requested_sparsity=0.5),
    )
    found = tables(records("dense", dense), en, sw, c4)["calibration"]
    kinds = (
        found.drop_duplicates("checkpoint").set_index("checkpoint")["kind"].to_dict()
    )
    together = "wanda-0.5 per language"
    assert kinds == {
        "c4": "english",
        "en": "english",
        "sw": "per_language",
        together: "per_language",
    }
    row = only(found, checkpoint=together, language="mean")
    # english from en, swahili from sw
    has(row, open_accuracy=1.0, n=2)
    # nothing was calibrated on Thai
    assert row["reason"].startswith("unweighted mean over 2 of 3 languages;")
    assert only(found, checkpoint="c4", language="swahili")["choice_minus_open"] == 1.0


TEXT = {"task": "text-wiki", "form": "open"}


def windows(*read: tuple[float, int]) -> dict[str, Seen]:
    return {f"text/{number}": Seen(window=window) for number, window in enumerate(read)}


def test_perplexity_weighs_windows_by_tokens():
    """Perplexity weighs windows by their tokens and stands in the ladder."""
    known = numbered(english=[Seen(greedy=True, choice=True)] * 2)
    parts = [
        records("dense", known),
        records(
            "p", {**known, "english/2": Seen(greedy=False, choice=True)}, base="dense"
        ),
        records("dense", windows((-20.0, 10), (-4.0, 2)), **TEXT),
        records("p", windows((-30.0, 10), (-6.0, 2)), base="dense", **TEXT),
    ]
    found = tables(*parts)
    row = only(found["perplexity"], checkpoint="p")
    has(
        row,
        n=2,
        tokens=12,
        perplexity=math.exp(36 / 12),
        perplexity_dense=math.exp(24 / 12),
        perplexity_ratio=math.e,
        perplexity_ratio_low=None,
        perplexity_ratio_high=None,
    )
    assert "2 contexts are too few for an interval" in row["reason"]
    rung = only(found["ladder"], rung="open")
    has(rung, perplexity_task="text-wiki", drop=0.5, perplexity=math.exp(3))
    for name in ("accuracy", "fates", "pr_gap", "rank", "ladder"):
        assert "text-wiki" not in set(found[name]["task"])  # a text is no question
    frame = reduce_records(records("m", windows((0.0, 0), (-1.0, 1)), **TEXT))
    assert frame["perplexity_status"].tolist() == ["engine_error", "ok"]
    row = only(TABLES["perplexity"].fill(Inputs(frame)).frame)
    has(row, n=1, engine_error=1, perplexity=math.e)


def test_unpaired_items_are_counted():
    """Items asked of one side only are counted."""
    dense = {f"english/{i}": Seen(greedy=True, choice=True) for i in range(4)}
    pruned = {f"english/{i}": Seen(greedy=True, choice=True) for i in range(2, 5)}
    found = pair(dense, pruned)
    for name in ("fates", "pr_gap"):
        row = only(found[name])
        # 0 and 1 in the dense, 4 in the pruned
        has(row, n=2, unpaired=3)


def test_holm_corrects_over_checkpoints():
    """Holm corrects every family over its checkpoints."""
    dense = {
        f"english/{i}": Seen(greedy=True, choice=True, beams=[True]) for i in range(8)
    }
    parts = [records("dense", dense)]
    for name, kept in (("a", 0), ("b", 1)):
        pruned = {
            f"english/{i}": Seen(greedy=i < kept, choice=True, beams=[i < kept])
            for i in range(8)
        }
        parts.append(records(name, pruned, base="dense"))
    found = tables(*parts)
    for frame, where in (
        (found["accuracy"], {"probe": "greedy"}),
        (found["ladder"], {"rung": "open"}),
        (found["recovery"], {"probe": "beam", "population": "all_items"}),
    ):
        a, b = (only(frame, checkpoint=name, **where) for name in ("a", "b"))
        # 8 and 7 discordant, one way
        assert (a["mcnemar_p"], b["mcnemar_p"]) == pytest.approx((2 / 2**8, 2 / 2**7))
        assert (a["holm_p"], b["holm_p"]) == pytest.approx((4 / 2**8, 2 / 2**7))
