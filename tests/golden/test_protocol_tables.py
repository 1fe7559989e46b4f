"""The protocol's further tables on small cases, worked out by hand."""

import math
from dataclasses import replace

import pandas as pd
import pytest

from evaluator.metrics.tables.calibration import kind_of
from tests.support.records import Seen, numbered, records
from tests.support.tables import assert_has, only, pair, select, tables

KNOWN = Seen(greedy=True, choice=True)
UNSAID = Seen(greedy=False, choice=True)


def said(*answers: int, **more: object) -> dict[str, Seen]:
    return numbered(english=[Seen(greedy=bool(hit), **more) for hit in answers])


def test_hard_distractors_beside_the_standard_ones():
    hard = replace(KNOWN, hard=True)
    # Item 4 is not known among hard distractors, so not compared; hard_choice did not
    # run on item 5.
    dense = [hard, hard, hard, replace(KNOWN, hard=False), KNOWN]
    # mc_only both ways; with standard distractors alone; not; a tie is wrong.
    own = [replace(UNSAID, hard=True), replace(UNSAID, hard=False), hard]
    own += [replace(UNSAID, hard="tie"), UNSAID]
    found = pair(numbered(english=dense), numbered(english=own))["hard_distractors"]
    row = only(found, checkpoint="p")
    assert_has(row, n=4, standard_accuracy=1.0, hard_accuracy=0.5, difference=-0.5)
    # standard alone is right on items 2 and 4: two-sided exact McNemar of 0 against 2
    # is 2 * (1/2)^2
    assert_has(row, mcnemar_p=0.5, known=3, standard_dissociation=2 / 3)
    assert_has(row, hard_dissociation=1 / 3, dissociation_difference=-1 / 3)
    assert_has(only(found, checkpoint="dense"), n=4, hard_accuracy=0.75, known=None)


def test_choice_by_kind_of_distractors():
    """Golds are years. The base picks all of them; the checkpoint only those that
    stand among names."""
    dense, pruned = {}, {}
    for kind, language, texts, picked in (
        ("all", "english", ("1990", "1812", "1756", "1402"), (1, 0, 0, 0)),
        ("some", "swahili", ("1990", "Nile", "1812", "Po"), (1, 0)),
        ("none", "english", ("1990", "Nile", "Po", "water"), (1, 1, 1)),
    ):
        for number, hit in enumerate(picked):
            key = f"{language}/{kind}{number}"
            dense[key] = Seen(choice=True, option_texts=texts)
            pruned[key] = Seen(choice=bool(hit), option_texts=texts)
    pruned["english/all3"] = replace(dense["english/all3"], status="engine_error")
    found = pair(dense, pruned)["distractors"]
    own = select(found, checkpoint="p")
    assert_has(own, same_kind=["all", "some", "none"], n=[3, 2, 3], n_paired=[3, 2, 3])
    # a failed item has no options to sort it by
    assert_has(own, engine_error=[1, 1, 1], accuracy=[1 / 3, 1 / 2, 1])
    # two of three are lost, none is gained: exact McNemar 2 * (1/2)^2
    assert_has(
        own, base_accuracy=[1, 1, 1], drop=[2 / 3, 1 / 2, 0], mcnemar_p=[0.5, 1, 1]
    )
    by_language = found[(found["checkpoint"] == "p") & (found["language"] != "all")]
    assert_has(by_language, language=["english", "swahili", "english"], n=[3, 2, 3])
    assert_has(by_language, same_kind=["all", "some", "none"])
    alone = select(found, checkpoint="dense")
    assert_has(alone, n=[4, 2, 3], drop=[None, None, None])


def test_zero_shot_prefers_capped_prompt():
    parts = {}
    for form, dense, pruned in (
        ("open", (1, 1, 1, 1), (0, 0, 0, 0)),
        ("open_capped", (1, 1, 1, 0), (0, 0, 1, 0)),
        ("one_shot", (1, 1, 1, 1), (1, 1, 1, 0)),
    ):
        base = records("dense", said(*dense), form=form)
        own = records("p", said(*pruned), base="dense", form=form)
        parts[form] = pd.concat([base, own])
    row = only(tables(*parts.values())["one_shot"])
    assert_has(
        row, zero_shot_format="open_capped", zero_shot_dense=0.75, zero_shot_pruned=0.25
    )
    assert_has(row, one_shot_dense=1.0, one_shot_pruned=0.75)
    assert_has(row, zero_shot_gap=0.5, one_shot_gap=0.25, repaired=0.25)
    # 2 against 0; 1 against 0
    assert_has(row, zero_shot_mcnemar_p=0.5, one_shot_mcnemar_p=1.0)
    row = only(tables(parts["open"], parts["one_shot"])["one_shot"])
    assert_has(row, zero_shot_format="open", zero_shot_gap=1.0)


def test_an_item_has_all_seeds():
    """The run's seed is 3; samples were drawn under 1, 2 and 3 as well: greedy
    stands under 3 only."""
    parts = [records("dense", said(0, 0, 1, 0, samples=[True]), seed=3)]
    for seed, hits in ((1, (1, 0, 1, 0)), (2, (0, 0, 0, 0))):
        drawn = numbered(english=[Seen(samples=[bool(hit)]) for hit in hits])
        parts.append(records("dense", drawn, seed=seed))
    found = tables(pd.concat(parts))
    assert_has(only(found["accuracy"], probe="greedy"), accuracy=0.25)
    # among items 1, 2 and 4: 2/3, 1/3 and 1/3 of the seeds
    row = only(found["recovery"], population="greedy_failures", probe="sample")
    assert_has(row, n=3, rate=4 / 9, hits=None, tries=1)
    seeds = only(found["recovery_seeds"])
    # among the three failures: 1/3 under seed 1, 0 under seed 2, 1 under seed 3
    assert_has(seeds, seeds=3, n_min=3, n_max=3, lowest=0, mean=4 / 9, highest=1)
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
    for source in sources:
        assert kind_of(source) == kind, source


def test_calibration_per_language():
    """Each language is asked of the checkpoint that was calibrated on it."""
    dense = numbered(english=[KNOWN], swahili=[KNOWN], thai=[KNOWN])
    parts = [records("dense", dense)]
    for name, wrong, source, sparsity in (
        ("en", "swahili", "wikipedia:en", 0.4977),
        ("sw", "english", "wikipedia:swahili", 0.5),
        ("c4", "swahili", "c4", 0.5),
    ):
        seen = {**dense, f"{wrong}/1": UNSAID}
        made = records(name, seen, base="dense", calibration=source)
        parts.append(made.assign(sparsity=sparsity, requested_sparsity=0.5))
    found = tables(*parts)["calibration"]
    together = "wanda-0.5 per language"
    kinds = found.drop_duplicates("checkpoint")
    assert_has(kinds, checkpoint=["c4", "en", "sw", together])
    assert_has(kinds, kind=["english", "english", "per_language", "per_language"])
    row = only(found, checkpoint=together, language="mean")
    # english from en, swahili from sw
    assert_has(row, open_accuracy=1.0, n=2)
    # nothing was calibrated on Thai
    assert row["reason"].startswith("unweighted mean over 2 of 3 languages;")
    assert_has(only(found, checkpoint="c4", language="swahili"), choice_minus_open=1.0)


def test_perplexity_weighs_windows_by_tokens():
    """Perplexity weighs windows by their tokens and stands in the ladder."""

    def windows(*read: tuple[float, int]) -> dict[str, Seen]:
        return numbered(text=[Seen(window=window) for window in read])

    known = numbered(english=[KNOWN, KNOWN])
    own = {**known, "english/2": UNSAID}
    found = tables(
        records("dense", known),
        records("p", own, base="dense"),
        records("dense", windows((-20.0, 10), (-4.0, 2)), task="text-wiki"),
        records("p", windows((-30.0, 10), (-6.0, 2)), base="dense", task="text-wiki"),
    )
    row = only(found["perplexity"], checkpoint="p")
    assert_has(
        row, n=2, tokens=12, perplexity=math.exp(36 / 12), perplexity_ratio=math.e
    )
    assert_has(row, perplexity_dense=math.exp(24 / 12), perplexity_ratio_low=None)
    assert "2 contexts are too few for an interval" in row["reason"]
    rung = only(found["ladder"], rung="open")
    assert_has(rung, perplexity_task="text-wiki", drop=0.5, perplexity=math.exp(3))
    assert "text-wiki" not in set(found["accuracy"]["task"])  # a text is no question


def test_holm_corrects_over_checkpoints():
    """Holm corrects every family over its checkpoints."""
    parts = []
    for name, kept in (("dense", 8), ("a", 0), ("b", 1)):
        seen = []
        for number in range(8):
            right = number < kept
            seen.append(Seen(greedy=right, choice=True, beams=[right]))
        base = None if name == "dense" else "dense"
        parts.append(records(name, numbered(english=seen), base=base))
    found = tables(*parts)
    for table, where in (
        ("accuracy", {"probe": "greedy"}),
        ("ladder", {"rung": "open"}),
        ("recovery", {"probe": "beam", "population": "all_items"}),
    ):
        rows = select(found[table], **where)
        rows = rows[rows["checkpoint"] != "dense"]
        # 8 and 7 discordant, one way
        assert_has(rows, mcnemar_p=[2 / 2**8, 2 / 2**7], holm_p=[4 / 2**8, 2 / 2**7])
