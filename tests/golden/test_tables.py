"""Every table on small cases that were worked out by hand; the arithmetic stands
beside the expectation."""

from dataclasses import replace

import pandas as pd
import pytest
from scipy.stats import binomtest

from evaluator.metrics import headline_sentence
from evaluator.metrics.comparable import ROUNDED
from evaluator.metrics.headline import partly_measured
from tests.support.records import Seen, numbered, records
from tests.support.tables import Tables, assert_has, only, pair, select, tables

BOTH, SILENT = Seen(greedy=True, choice=True), Seen(greedy=False, choice=True)
EXCLUDED = Seen(greedy=False, choice=False, status="excluded")

# english: one item of every fate, an item that the dense model did not produce, a tie,
# an excluded and a failed one.
DENSE = numbered(
    english=[BOTH, BOTH, BOTH, BOTH, SILENT, BOTH, EXCLUDED, BOTH], swahili=[BOTH]
)
PRUNED = {  # swahili is missing
    "english/1": BOTH,  # kept
    "english/2": SILENT,  # mc_only
    "english/3": Seen(greedy=True, choice=False),  # produced_only
    "english/4": Seen(greedy=False, choice=False),  # lost
    "english/5": BOTH,  # not known by the dense model
    "english/6": Seen(greedy=True, choice="tie"),  # a tie is wrong: produced_only
    "english/7": EXCLUDED,
    "english/8": replace(BOTH, status="engine_error"),
}


@pytest.fixture(scope="module")
def case():
    return pair(DENSE, PRUNED, "pruned")


def test_fates_by_hand(case):
    row = only(case["fates"], language="english")
    assert_has(row, n=5, items=6, excluded=1, engine_error=1, re_run=False)
    assert_has(row, kept=1, mc_only=1, produced_only=2, lost=1, dissociation_rate=1 / 5)
    # one lost item of four options stands for 1 / 3 lucky guess: (1 - 1/3) / 5
    assert_has(row, mc_only_corrected=2 / 15)
    exact = binomtest(1, 5).proportion_ci(method="exact")
    assert_has(row, mc_only_rate_low=exact.low, mc_only_rate_high=exact.high)
    assert_has(only(case["fates"]), n=5, unpaired=1)
    why = "no item of this language is common to the checkpoint and its base"
    missing = only(case["fates"], language="swahili")
    assert_has(missing, n=0, dissociation_rate=None, reason=why)


def test_accuracy_counts_and_pairs(case):
    found = case["accuracy"].set_index(["checkpoint", "probe", "language"])
    pruned = found.loc[("pruned", "greedy", "english")]
    assert_has(pruned, n=6, excluded=1, engine_error=1, n_paired=6, accuracy=4 / 6)
    # Right are items 1, 3, 5 and 6 of six. Dense alone is right on 2 and 4, pruned
    # alone on 5: McNemar of 2 against 1.
    assert_has(pruned, dense_accuracy=5 / 6, drop=1 / 6, mcnemar_p=1.0)
    assert_has(pruned, normalised_drop=(1 / 6) / (5 / 6))
    dense = found.loc[("dense", "greedy", "all")]  # item 8 and swahili too
    assert_has(dense, n=8, excluded=1, engine_error=0, accuracy=7 / 8)
    assert_has(found.loc[("dense", "greedy", "mean")], accuracy=(6 / 7 + 1) / 2)
    # A tie is wrong in choice: right are items 1, 2 and 5.
    english = found.loc[("pruned", "choice", "english")]
    assert_has(english, accuracy=3 / 6, normalised_drop=(1 - 0.5) / (1 - 0.25))
    missing = found.loc[("pruned", "choice", "swahili")]
    assert_has(missing, n=0, accuracy=None, accuracy_low=None)
    assert missing["reason"].startswith("no item was measured")


def test_pr_gap_by_hand(case):
    row = only(case["pr_gap"])
    # open: (5/6 - 4/6) / (5/6) = 0.2; choice: (1 - 3/6) / (1 - 1/4) = 2/3
    assert_has(row, d_open=0.2, d_choice=2 / 3, delta_pr=0.2 - 2 / 3)
    mean = only(case["pr_gap"], language="mean")
    assert_has(mean, delta_pr=0.2 - 2 / 3, languages=1, n=6)
    assert_has(mean, reason="unweighted mean over 1 of 2 languages")
    # 1 of 4 with 4 options: the floor
    dense = numbered(english=[BOTH, *[Seen(greedy=True, choice=False)] * 3])
    pruned = [Seen(greedy=i > 1, choice=False) for i in range(4)]
    found = pair(dense, numbered(english=pruned))
    why = "choice: dense accuracy 0.250 is not above the floor 0.250"
    assert_has(
        only(found["pr_gap"]), delta_pr=None, d_choice=None, d_open=0.5, reason=why
    )
    row = only(found["accuracy"], checkpoint="p", probe="choice")
    assert_has(row, normalised_drop=None, drop=0.25)
    assert_has(only(found["ladder"], rung="choice"), normalised_drop=None, drop=0.25)
    dense = numbered(english=[BOTH, replace(BOTH, options=2)])
    pruned = numbered(english=[BOTH, Seen(greedy=True, choice=False, options=2)])
    row = only(pair(dense, pruned)["pr_gap"])
    assert_has(row, choice_floor=(1 / 4 + 1 / 2) / 2, d_choice=0.5 / (1 - 0.375))


def test_recovery_of_all_and_of_failures():
    half = numbered(
        english=[
            Seen(greedy=True, beams=[True, False], samples=[False, False]),
            Seen(greedy=False, beams=[False, True], samples=[True, True]),
            Seen(greedy=False, beams=[False, False], samples=[False, True]),
            Seen(greedy=False, beams=[False, False], samples=[False, False]),
            Seen(greedy=True),  # not in the first half
            Seen(greedy=False, beams=[False], samples=[True], status="engine_error"),
        ]
    )
    right = Seen(greedy=True, beams=[True, True], samples=[True, True])
    found = pair(dict.fromkeys(half, right), half)["recovery"]
    own = select(found, checkpoint="p").set_index(["population", "probe"])
    every = own.loc["all_items"].loc[["greedy", "beam", "sample"]]
    assert_has(every, hits=[1, 2, 2], n=[4, 4, 4])
    assert_has(every.loc["sample"], engine_error=1, drop=0.5)
    assert_has(every.loc["beam"], tries=2)
    assert_has(own.loc[("greedy_failures", "beam")], hits=1, n=3)
    assert_has(own.loc[("greedy_failures", "sample")], rate=2 / 3)
    none = only(found, checkpoint="dense", population="greedy_failures", probe="beam")
    assert_has(none, n=0, rate=None, reason="greedy missed no item")
    beams = numbered(english=[Seen(greedy=False, beams=[True])])
    found = pair(beams, beams)["recovery"]
    none = only(found, checkpoint="p", population="greedy_failures", probe="sample")
    assert_has(none, n=0, reason="the run does not ask sample")


def test_length_of_context_by_depth():
    """Six items, two in each third of a context of 500 tokens; of those in the last
    third one failed."""
    known = Seen(greedy=True, choice=True, fidelity=[0.5, 0.25])
    silent = replace(known, greedy=False)
    lost = Seen(greedy=False, choice=False, fidelity=[1.0, 2.0, 3.0])
    failed = replace(known, status="engine_error")
    parts = []
    for name, base, seen in (
        ("dense", None, [known] * 6),
        ("p", "dense", [known, silent, lost, known, failed, known]),
    ):
        made = records(name, numbered(english=seen), base=base)
        depth = (made["item_id"].astype(int) - 1) / 6
        long = made.assign(task="t@500", context_tokens=500, context_depth=depth)
        parts += [made, long]
    own = select(tables(*parts)["length_of_context"], checkpoint="p")
    assert_has(own, context_tokens=[0, 500, 500, 500, 500])
    assert_has(own, depth=["all", "all", "first", "middle", "last"])
    for name in ("n", "n_paired", "known", "kld_n"):
        assert_has(own, **{name: [5, 5, 2, 2, 1]})
    assert_has(own, accuracy=[3 / 5, 3 / 5, 1 / 2, 1 / 2, 1])
    assert_has(own, drop=[2 / 5, 2 / 5, 1 / 2, 1 / 2, 0])
    assert_has(own, lost_rate=[1 / 5, 1 / 5, 0, 1 / 2, 0])
    assert_has(own, mc_only_rate=[1 / 5, 1 / 5, 1 / 2, 0, 0])
    assert_has(own, kld=[9 / 11, 9 / 11, 0.375, 6.75 / 5, 0.375])


def ranked(*seen: tuple[bool, bool, int, float, int | str | None]) -> dict[str, Seen]:
    """Of each item: greedy, choice, rank, margin, aligned rank."""
    names = ("greedy", "choice", "rank", "margin", "aligned")
    return numbered(
        english=[Seen(**dict(zip(names, each, strict=True))) for each in seen]
    )


def test_ranks_by_group_dense_beside_pruned():
    first = (True, True, 1, 0.0, None)
    dense = ranked(
        first, first, (True, True, 2, -0.5, None), (False, True, 17, -4.0, None)
    )
    mc_only = ((False, True, 3, -1.0, None), (False, True, 4, -2.0, None))
    pruned = ranked(*mc_only, first, (False, False, 30, -6.0, None))
    pooled = select(pair(dense, pruned)["rank"])
    pooled = pooled.set_index(["checkpoint", "group", "side"])
    own = pooled.loc[("p", "mc_only", "own")]
    assert_has(own, n=2, rank_median=3.5, margin_median=-1.5)
    assert_has(pooled.loc[("p", "mc_only", "base")], rank_median=1)
    everything = pooled.loc[("p", "all", "own")]
    # ranks 1, 3, 4, 30: linear quartiles 2.5 and 10.5
    assert_has(everything, rank_q1=2.5, rank_median=3.5, rank_q3=10.5)
    assert_has(everything, rank_1=0.25, rank_2_5=0.5, rank_6_20=0.0, rank_over_20=0.25)
    assert_has(pooled.loc[("p", "dense_failures", "own")], n=1, rank_median=30)
    assert_has(pooled.loc[("dense", "dense_failures", "own")], rank_median=17)


def test_aligned_ranks_beside_ranks():
    """A model that answers in sentences: the rank right after the prompt says
    nothing, the aligned one does."""
    unsaid = (False, True, 999, -9.5, "not said")
    dense = ranked(
        (True, True, 900, -9.0, 1),
        (True, True, 700, -8.0, 1),
        (True, True, 800, -8.5, 1),
        unsaid,
    )
    # The first two are mc_only.
    pruned = ranked(
        (False, True, 950, -9.0, 2),
        (False, True, 850, -8.0, 5),
        (True, True, 800, -8.5, 1),
        unsaid,
    )
    found = pair(dense, pruned)
    pooled = select(found["rank"]).set_index(["checkpoint", "group", "side"])
    mc_only = pooled.loc[("p", "mc_only", "own")]
    assert_has(mc_only, n=2, aligned_n=2, aligned_rank_median=3.5, rank_median=900.0)
    assert_has(mc_only, aligned_rank_1=0.0, aligned_rank_2_5=1.0, aligned_rank_6_20=0.0)
    assert_has(pooled.loc[("p", "mc_only", "base")], aligned_rank_median=1)
    # 1, 2, 5 of three items
    assert_has(
        pooled.loc[("p", "all", "own")], n=4, aligned_n=3, aligned_rank_median=2.0
    )
    failures = pooled.loc[("p", "dense_failures", "own")]
    assert_has(failures, n=1, aligned_n=0, aligned_rank_median=None)
    row = only(found.headline, checkpoint="p")
    assert_has(row, mc_only_median_rank=900.0, mc_only_median_aligned_rank=3.5)


def said(*hits: int, **more: object) -> dict[str, Seen]:
    return numbered(english=[Seen(greedy=bool(hit), **more) for hit in hits])


def test_ladder_and_candidates_share_items():
    """Ladder and candidates compare the items that every rung measured."""
    found = tables(
        records("dense", said(1, 1, 1, 1, choice=True)),
        records("dense", said(1, 1, 1), form="shown"),
        records("p", said(0, 0, 0, 1, choice=True), base="dense"),
        records("p", said(1, 1, 0), base="dense", form="shown"),
    )["ladder"]
    rungs = select(found).set_index("rung").loc[["open", "shown", "choice"]]
    assert_has(rungs, n=[3, 3, 3], drop=[1.0, 1 / 3, 0.0])
    assert_has(rungs.loc["choice"], normalised_drop=0.0)
    forms = {
        "open": (1, 0, 0, 1),
        "distractors_only": (0, 0, 0, 1),
        "unrelated": (0, 0, 0),
        "shown": (1, 1, 0, 1),
    }
    parts = [records("dense", said(*hits), form=form) for form, hits in forms.items()]
    found = select(tables(*parts)["candidates"]).set_index("format").loc[list(forms)]
    # unrelated lacks the fourth item
    assert_has(found, n=[3, 3, 3, 3], accuracy=[1 / 3, 0, 0, 2 / 3])
    assert_has(found.loc["shown"], difference=1 / 3)


def test_calibration_gap_and_missing_choice():
    pruned = numbered(english=[BOTH, SILENT], arabic=[SILENT])
    found = pair(DENSE, pruned, calibration="c4")["calibration"]
    assert_has(only(found, checkpoint="p"), open_accuracy=1 / 3, choice_accuracy=1.0)
    mean = only(found, checkpoint="p", language="mean")
    assert_has(mean, choice_minus_open=(0.5 + 1.0) / 2)
    found = pair(said(1), said(1))
    why = "no item was measured with both probes greedy and choice in both checkpoints"
    assert_has(only(found["fates"]), reason=why)
    assert_has(only(found["pr_gap"]), reason="needs the probes greedy and choice")
    assert_has(only(found["ladder"], rung="open"), drop=0.0)


def test_re_run_is_noise_floor():
    """A dense re-run is the noise floor and no member of Holm's family."""
    dense = {"method": None, "pattern": None, "sparsity": None}
    again = {**DENSE, "english/1": SILENT}
    again = records("again", again, base="dense", digest="dense").assign(**dense)
    # its weights compute something else with another rope_theta
    other = records("other", PRUNED, base="dense", digest="dense")
    other = other.assign(**dense, architecture="theta 10000")
    pruned = records("pruned", PRUNED, base="dense")
    found = tables(records("dense", DENSE), again, other, pruned)["fates"]
    pooled = select(found).set_index("checkpoint").loc[["again", "other", "pruned"]]
    assert_has(pooled, re_run=[True, False, False], noise_floor=[None, 1 / 7, 1 / 7])
    assert_has(pooled.loc["again"], n=7, kept=6, mc_only=1)
    # Two checkpoints of other weights and a second run of the base: two tests, unless
    # it was served otherwise.
    dense, lost = said(*[1] * 20), said(*[0] * 8, *[1] * 12)
    of_base = [records(name, lost, base="dense") for name in ("one", "two")]
    for dtype, tests in (("float32", 2), ("bfloat16", 3)):
        again = records("again", dense, base="dense", digest="dense", dtype=dtype)
        found = tables(records("dense", dense), again, *of_base)["accuracy"]
        one, re_run = (only(found, checkpoint=name) for name in ("one", "again"))
        assert_has(one, mcnemar_p=2 * 0.5**8, holm_p=tests * 2 * 0.5**8)
        assert_has(re_run, mcnemar_p=1.0, holm_p=None if tests == 2 else 1.0)


@pytest.mark.parametrize(
    ("pattern", "noisy"),
    [
        ("W8A8 (per channel)", True),
        ("unstructured + FP8 (rtn, per channel)", True),
        ("FP8 W8A16 (per channel)", False),
    ],
)
def test_quantised_activations_are_noted(pattern, noisy):
    """Quantised activations have a noise floor that their rows name."""
    pruned = records("p", PRUNED, base="dense").assign(pattern=pattern)
    found = tables(records("dense", DENSE), pruned)["accuracy"]
    reasons = found.set_index("checkpoint")["reason"].fillna("")
    assert reasons.loc[["p"]].str.startswith(ROUNDED).all() == noisy
    assert not reasons.drop("p").str.contains(ROUNDED).any()


def sentence_of(found: Tables) -> str:
    return headline_sentence(found.headline).replace("\N{NO-BREAK SPACE}", " ")


def test_headline_without_fates():
    found = pair(numbered(english=[SILENT]), numbered(english=[SILENT]))
    why = "the dense model both said and picked none of the items"
    assert_has(only(found["fates"]), n=0, items=1, dissociation_rate=None, reason=why)
    assert sentence_of(found).startswith(f"T{why[1:]}")
    alone = sentence_of(tables(records("dense", DENSE)))
    assert alone.endswith("evaluate a dense and a compressed one together (--base).")
    # The compressed checkpoint failed on every item: nothing is known of the fates, and
    # the base is not to blame.
    failed = replace(BOTH, status="engine_error", why="out of memory")
    found = pair(numbered(english=[BOTH] * 4), numbered(english=[failed] * 4))
    dense = only(found.headline, checkpoint="dense")
    assert_has(dense, open_accuracy=1.0, choice_accuracy=1.0)
    assert_has(found.headline, known=[None, None])
    assert sentence_of(found) == (
        "No checkpoint was measured beside its base with greedy and choice: no answer"
        " has a fate."
    )


def test_headline_reads_tables(case):
    row = only(case.headline, checkpoint="pruned")
    assert_has(row, known=5, kept=0.2, mc_only=0.2, lost=0.2, open_accuracy=4 / 6)
    assert_has(row, open_n_paired=6, choice_n_paired=6)
    sentence = sentence_of(case)
    # on the six items measured in both: open 5 and then 4, choice 6 and then 3
    assert sentence.startswith(
        "pruned: said 5 → 4 of 6, picked 6 → 3 of 6. Of 5 answers"
    )
    assert_has(
        case.headline, checkpoint=["dense", "pruned"], hard_accuracy=[None, None]
    )
    fewer = pair(numbered(english=[BOTH] * 40), numbered(english=[BOTH] * 30))
    assert "% on its 30 of 40 items. Of 30 answers" in sentence_of(fewer)


@pytest.mark.parametrize(
    ("own", "told"),
    [
        ([BOTH] * 30, "p on t: of 30 of 40 items, on which dense says 66.7 %"),
        ([BOTH] * 3, "p on t: of 3 of 40 items, on which dense says 3 of 3"),
        ([BOTH] * 40, None),
    ],
)
def test_a_part_is_told_with_the_base_on_the_same_items(own, told):
    found = pair(numbered(english=[BOTH] * 20 + [SILENT] * 20), numbered(english=own))
    assert [*partly_measured(found.headline)] == ([told] if told else [])


def asked(
    hits: int,
    n: int = 4,
    *,
    choice: bool = True,
    task: str = "t",
    name: str = "p",
    base: str | None = "dense",
) -> pd.DataFrame:
    seen = said(*[1] * hits, *[0] * (n - hits), choice=choice)
    return records(name, seen, base=base, task=task)


def test_headline_names_task_and_base():
    sentence = sentence_of(tables(asked(2, name="dense", base=None), asked(4)))
    assert sentence == (
        "p: said 2 → 4 of 4, picked 4 → 4 of 4. Of 2 answers that the dense"
        " model said and picked, every one is kept."
    )
    found = tables(
        asked(201, 201, name="dense", base=None), asked(200, 201, choice=False)
    )
    sentence = sentence_of(found)
    assert "100 % → over 99 %, picked 100 % → 0 %. Of 201 answers" in sentence
    assert "picked only, and under 1 % are lost; over 99 % are" in sentence
    found = tables(
        asked(20, 20, name="dense", base=None),
        asked(5, 20),
        asked(20, 20, name="dense", base=None, task="u"),
        asked(15, 20, task="u"),
        asked(5, 20, name="other", base=None),
        asked(5, 20, name="q", base="other"),
    )
    assert sentence_of(found) == (
        "p on t: said 100 % → 25 %, picked 100 % → 100 %. Of 20 answers"
        " that dense said and picked, 75 % are picked only, and none is lost."
    )
