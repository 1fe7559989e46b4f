"""Every table on small cases that were worked out by hand; the arithmetic stands
beside the expectation."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest

from evaluator.metrics import headline_sentence
from evaluator.metrics.headline import COLUMNS as HEADLINE
from evaluator.metrics.inputs import ROUNDED
from evaluator.metrics.intervals import Mean
from evaluator.metrics.tables.recovery import pass_at
from tests.support.records import Seen, numbered, records
from tests.support.tables import Tables, has, only, pair, select, tables

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
    """Fates count each fate once and show what was left out."""
    row = only(case["fates"], language="english")
    has(
        row,
        n=5,
        items=6,
        kept=1,
        mc_only=1,
        produced_only=2,
        lost=1,
        excluded=1,
        engine_error=1,
        re_run=False,
        dissociation_rate=1 / 5,
    )
    # one lost item of four options stands for 1 / 3 lucky guess: (1 - 1/3) / 5
    has(row, mc_only_corrected=2 / 15)
    exact = binomtest(1, 5).proportion_ci(method="exact")
    has(row, mc_only_rate_low=exact.low, mc_only_rate_high=exact.high)
    assert only(case["fates"])["n"] == 5
    missing = only(case["fates"], language="swahili")
    has(
        missing,
        n=0,
        dissociation_rate=None,
        reason="no item of this language is common to the checkpoint and its base",
    )


def test_accuracy_counts_and_pairs(case):
    found = case["accuracy"].set_index(["checkpoint", "probe", "language"])
    pruned = found.loc[("pruned", "greedy", "english")]
    has(pruned, n=6, excluded=1, engine_error=1, n_paired=6)
    # Right are items 1, 3, 5 and 6 of six. Dense alone is right on 2 and 4, pruned
    # alone on 5: McNemar of 2 against 1.
    numbers = ["accuracy", "dense_accuracy", "drop", "mcnemar_p", "normalised_drop"]
    assert pruned[numbers].tolist() == pytest.approx(
        [4 / 6, 5 / 6, 1 / 6, 1.0, (1 / 6) / (5 / 6)]
    )
    dense = found.loc[("dense", "greedy", "all")]  # item 8 and swahili too
    has(dense, n=8, excluded=1, engine_error=0, accuracy=7 / 8)
    assert found.loc[("dense", "greedy", "mean"), "accuracy"] == pytest.approx(
        (6 / 7 + 1) / 2
    )
    # A tie is wrong in choice: right are items 1, 2 and 5.
    english = found.loc[("pruned", "choice", "english")]
    has(english, accuracy=3 / 6, normalised_drop=(1 - 0.5) / (1 - 0.25))
    # No sentinel stands for a missing language.
    missing = found.loc[("pruned", "choice", "swahili")]
    has(missing, n=0, accuracy=None, accuracy_low=None)
    assert missing["reason"].startswith("no item was measured")


def test_pr_gap_by_hand(case):
    """Pr gap is the difference of normalised drops above the floor of the options."""
    row = only(case["pr_gap"])
    # open: (5/6 - 4/6) / (5/6) = 0.2; choice: (1 - 3/6) / (1 - 1/4) = 2/3
    has(row, d_open=0.2, d_choice=2 / 3, delta_pr=0.2 - 2 / 3)
    mean = only(case["pr_gap"], language="mean")
    has(mean, delta_pr=0.2 - 2 / 3, languages=1, reason="undefined in: swahili")
    # 1 of 4 with 4 options: the floor
    dense = numbered(english=[BOTH, *[Seen(greedy=True, choice=False)] * 3])
    found = pair(
        dense, numbered(english=[Seen(greedy=i > 1, choice=False) for i in range(4)])
    )
    gap = only(found["pr_gap"])
    has(
        gap,
        delta_pr=None,
        d_choice=None,
        d_open=0.5,
        reason="choice: dense accuracy 0.250 is not above the floor 0.250",
    )
    for name, of in (
        ("accuracy", {"checkpoint": "p", "probe": "choice"}),
        ("ladder", {"rung": "choice"}),
    ):
        row = only(found[name], **of)
        has(row, normalised_drop=None, drop=0.25)
    pruned = numbered(english=[BOTH, Seen(greedy=True, choice=False, options=2)])
    row = only(
        pair(numbered(english=[BOTH, replace(BOTH, options=2)]), pruned)["pr_gap"]
    )
    has(row, choice_floor=(1 / 4 + 1 / 2) / 2, d_choice=0.5 / (1 - 0.375))


def test_recovery_of_all_and_of_failures():
    """Recovery keeps to the items with beams and splits off the failures."""
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
    found = pair(
        {
            key: Seen(greedy=True, beams=[True, True], samples=[True, True])
            for key in half
        },
        half,
    )["recovery"]
    own = select(found, checkpoint="p").set_index(["population", "probe"])
    every = own.loc["all_items"]
    assert every.loc[
        ["greedy", "beam", "sample"], ["hits", "n"]
    ].to_numpy().tolist() == [[1, 4], [2, 4], [2, 4]]
    assert (every.loc["sample", "engine_error"], every.loc["beam", "tries"]) == (1, 2)
    assert every.loc["sample", "drop"] == pytest.approx(0.5)
    failures = own.loc["greedy_failures"]
    assert failures.loc["beam", ["hits", "n"]].tolist() == [1, 3]
    assert failures.loc["sample", "rate"] == pytest.approx(2 / 3)
    none = only(found, checkpoint="dense", population="greedy_failures", probe="beam")
    has(none, n=0, rate=None, reason="greedy missed none of the items")


def test_pass_at_k_equals_all_subsets():
    """Of every item, every subset of K samples; and of the most frequent answers,
    each with equal chances."""
    drawn = {key: [[bool(bits >> at & 1) for at in range(6)] for bits in each] for key, each in (
        ("dense", (0b111111, 0b001011, 0b000111)), ("p", (0b000001, 0b000000, 0b011110)))}  # fmt: skip
    both = {
        name: numbered(english=[Seen(greedy=True, samples=each) for each in own])
        for name, own in drawn.items()
    }
    found = pair(both["dense"], both["p"])["recovery"]

    def by_hand(samples, k):
        # two answers, "gold" and "bad": the more frequent one, or one of both
        if not k:
            return (
                1
                + (2 * sum(samples) > len(samples))
                - (2 * sum(samples) < len(samples))
            ) / 2
        return np.mean([any(subset) for subset in combinations(samples, k)])

    for name, k in (("pass@1", 1), ("pass@2", 2), ("pass@5", 5), ("majority", 0)):
        row = only(found, checkpoint="p", population="all_items", probe=name)
        values = {
            side: np.array([by_hand(samples, k) for samples in own])
            for side, own in drawn.items()
        }
        has(
            row,
            tries=k or 6,
            n=3,
            n_paired=3,
            rate=values["p"].mean(),
            drop=(values["dense"] - values["p"]).mean(),
        )
        between = Mean(values["dense"] - values["p"], np.arange(3), low=-1.0).interval()
        assert (row["drop_low"], row["drop_high"]) == pytest.approx(between)
    for k, n in combinations(range(1, 9), 2):
        assert pass_at(k, np.array([n]), np.array([0])) == 0  # exactly


def test_length_of_context_by_depth():
    """Six items, two in each third of a context of 500 tokens; of those in the last
    third one failed."""
    known = Seen(greedy=True, choice=True, fidelity=[0.5, 0.25])
    silent, lost = (
        replace(known, greedy=False),
        Seen(greedy=False, choice=False, fidelity=[1.0, 2.0, 3.0]),
    )
    seen = {
        "dense": [known] * 6,
        "p": [known, silent, lost, known, replace(known, status="engine_error"), known],
    }
    parts = []
    for name, each in seen.items():
        made = records(
            name, numbered(english=each), base="dense" if name == "p" else None
        )
        long = {
            "task": "t@500",
            "context_tokens": 500,
            "context_depth": (made["item_id"].astype(int) - 1) / 6,
        }
        parts += [made, made.assign(**long)]
    found = tables(*parts)["length_of_context"]
    own = select(found, checkpoint="p").set_index(["context_tokens", "depth"])
    assert own.index.tolist() == [
        (0, "all"),
        *((500, depth) for depth in ("all", "first", "middle", "last")),
    ]
    assert (
        own["n"].tolist()
        == own["n_paired"].tolist()
        == own["known"].tolist()
        == [5, 5, 2, 2, 1]
    )
    assert own["accuracy"].tolist() == pytest.approx([3 / 5, 3 / 5, 1 / 2, 1 / 2, 1])
    assert own["drop"].tolist() == pytest.approx([2 / 5, 2 / 5, 1 / 2, 1 / 2, 0])
    assert own["lost_rate"].tolist() == pytest.approx([1 / 5, 1 / 5, 0, 1 / 2, 0])
    assert own["mc_only_rate"].tolist() == pytest.approx([1 / 5, 1 / 5, 1 / 2, 0, 0])
    assert own["kld_n"].tolist() == [5, 5, 2, 2, 1]
    assert own["kld"].tolist() == pytest.approx(
        [9 / 11, 9 / 11, 0.375, 6.75 / 5, 0.375]
    )


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
    found = pair(dense, pruned)["rank"]
    pooled = select(found).set_index(["checkpoint", "group", "side"])
    assert pooled.loc[
        ("p", "mc_only", "own"), ["n", "rank_median", "margin_median"]
    ].tolist() == [2, 3.5, -1.5]
    assert pooled.loc[("p", "mc_only", "base"), "rank_median"] == 1
    everything = pooled.loc[("p", "all", "own")]
    # ranks 1, 3, 4, 30: linear quartiles 2.5 and 10.5
    has(everything, rank_q1=2.5, rank_median=3.5, rank_q3=10.5)
    bands = ["rank_1", "rank_2_5", "rank_6_20", "rank_over_20"]
    assert everything[bands].tolist() == [0.25, 0.5, 0.0, 0.25]
    assert pooled.loc[
        ("p", "dense_failures", "own"), ["n", "rank_median"]
    ].tolist() == [1, 30]
    assert pooled.loc[("dense", "dense_failures", "own"), "rank_median"] == 17


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
    names = ["n", "aligned_n", "aligned_rank_median"]
    mc_only = pooled.loc[("p", "mc_only", "own")]
    assert mc_only[[*names, "rank_median"]].tolist() == [2, 2, 3.5, 900.0]
    has(mc_only, aligned_rank_1=0.0, aligned_rank_2_5=1.0, aligned_rank_6_20=0.0)
    assert pooled.loc[("p", "mc_only", "base"), "aligned_rank_median"] == 1
    # 1, 2, 5 of three items
    assert pooled.loc[("p", "all", "own"), names].tolist() == [4, 3, 2.0]
    failures = pooled.loc[("p", "dense_failures", "own")]
    has(failures, n=1, aligned_n=0, aligned_rank_median=None)
    row = only(found.headline, checkpoint="p")
    has(row, mc_only_median_rank=900.0, mc_only_median_aligned_rank=3.5)


def said(*hits: int, **more: object) -> dict[str, Seen]:
    return numbered(english=[Seen(greedy=bool(hit), **more) for hit in hits])


def test_ladder_and_candidates_share_items():
    """Ladder and candidates compare the items that every rung measured."""
    found = tables(
        records("dense", said(1, 1, 1, 1, choice=True)),
        records("dense", said(1, 1, 1), form="shown"),
        records("p", said(0, 0, 0, 1, choice=True), base="dense"),
        records("p", said(1, 1, 0), base="dense", form="shown"),
    )
    drops = {
        rung: only(found["ladder"], rung=rung) for rung in ("open", "shown", "choice")
    }
    assert [drops[rung]["n"] for rung in drops] == [3, 3, 3]
    assert [drops[rung]["drop"] for rung in drops] == pytest.approx([1.0, 1 / 3, 0.0])
    assert drops["choice"]["normalised_drop"] == 0.0
    forms = {
        "open": (1, 0, 0, 1),
        "distractors_only": (0, 0, 0, 1),
        "unrelated": (0, 0, 0),
        "shown": (1, 1, 0, 1),
    }
    found = tables(
        *(records("dense", said(*hits), form=form) for form, hits in forms.items())
    )["candidates"]
    got = select(found).set_index("format").loc[list(forms)]
    assert got["n"].tolist() == [3, 3, 3, 3]  # unrelated lacks the fourth item
    assert got["accuracy"].tolist() == pytest.approx([1 / 3, 0, 0, 2 / 3])
    assert got.loc["shown", "difference"] == pytest.approx(1 / 3)


def test_calibration_gap_and_missing_choice():
    """Calibration shows the gap and a pair without choice or knowledge says so."""
    found = pair(
        DENSE, numbered(english=[BOTH, SILENT], arabic=[SILENT]), calibration="c4"
    )["calibration"]
    pooled = only(found, checkpoint="p")
    has(pooled, open_accuracy=1 / 3, choice_accuracy=1.0)
    mean = only(found, checkpoint="p", language="mean")
    has(mean, choice_minus_open=(0.5 + 1.0) / 2)
    found = pair(said(1), said(1))
    why = "no item was measured with both probes greedy and choice in both checkpoints"
    assert only(found["fates"])["reason"] == why
    assert only(found["pr_gap"])["reason"] == "needs the probes greedy and choice"
    assert only(found["ladder"], rung="open")["drop"] == 0.0


def test_re_run_is_noise_floor():
    """A dense re run is the noise floor and no member of Holm's family."""
    dense = {"method": None, "pattern": None, "sparsity": None}
    again = records(
        "again", {**DENSE, "english/1": SILENT}, base="dense", digest="dense"
    ).assign(**dense)
    # without a manifest, but of other weights
    other = records("other", PRUNED, base="dense").assign(**dense)
    found = tables(
        records("dense", DENSE), again, other, records("pruned", PRUNED, base="dense")
    )["fates"]
    pooled = select(found).set_index("checkpoint")
    assert pooled["re_run"].to_dict() == {
        "again": True,
        "other": False,
        "pruned": False,
    }
    assert pooled.loc["again", ["n", "kept", "mc_only"]].tolist() == [7, 6, 1]
    assert pd.isna(pooled.loc["again", "noise_floor"])
    assert pooled["noise_floor"].drop("again").tolist() == pytest.approx([1 / 7, 1 / 7])
    # Two checkpoints of other weights and a second run of the base: two tests, unless
    # it was served otherwise.
    dense, lost = said(*[1] * 20), said(*[0] * 8, *[1] * 12)
    of_base = [records(name, lost, base="dense") for name in ("one", "two")]
    for dtype, tests in (("float32", 2), ("bfloat16", 3)):
        again = records("again", dense, base="dense", digest="dense", dtype=dtype)
        found = tables(records("dense", dense), again, *of_base)["accuracy"]
        one, re_run = (only(found, checkpoint=name) for name in ("one", "again"))
        has(one, mcnemar_p=2 * 0.5**8, holm_p=tests * 2 * 0.5**8)
        assert re_run["mcnemar_p"] == 1.0
        assert pd.isna(re_run["holm_p"]) == (tests == 2)


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
    found = tables(
        records("dense", DENSE),
        records("p", PRUNED, base="dense").assign(pattern=pattern),
    )
    for name in ("accuracy", "fates", "pr_gap"):
        reasons = found[name].set_index("checkpoint")["reason"].fillna("")
        assert reasons.loc[["p"]].str.startswith(ROUNDED).all() == noisy
        assert not reasons.drop("p").str.contains(ROUNDED).any()


def test_headline_without_fates():
    """A base that knows nothing leaves no fates and one alone measured is not told to."""
    found = pair(numbered(english=[SILENT]), numbered(english=[SILENT]))
    row = only(found["fates"])
    has(
        row,
        n=0,
        items=1,
        dissociation_rate=None,
        reason="the dense model both produced and recognised none of the items",
    )
    sentence = headline_sentence(found.headline)
    assert sentence.startswith(
        "The dense model both produced and recognised none of the items"
    )
    sentence = headline_sentence(tables(records("dense", DENSE)).headline)
    assert sentence.endswith("evaluate a dense and a pruned one together.")
    # The compressed checkpoint failed on every item: nothing is known of the fates, and
    # the base is not to blame.
    failed = replace(BOTH, status="engine_error", why="out of memory")
    headline = pair(
        numbered(english=[BOTH] * 4), numbered(english=[failed] * 4)
    ).headline
    has(only(headline, checkpoint="dense"), open_accuracy=1.0, choice_accuracy=1.0)
    assert headline["known"].isna().all()
    said = (
        "No checkpoint was measured beside its base with greedy and choice: no answer"
        " has a fate."
    )
    assert headline_sentence(headline) == said


def test_translations_of_one_item():
    """Translations of one item share their id and stay apart."""
    found = pair(
        numbered(english=[BOTH], arabic=[BOTH]),
        numbered(english=[BOTH], arabic=[SILENT]),
    )["fates"]
    assert found.set_index("language")["mc_only"].to_dict() == {
        "all": 1,
        "arabic": 1,
        "english": 0,
    }


def sentence_of(found: Tables) -> str:
    return headline_sentence(found.headline).replace("\N{NO-BREAK SPACE}", " ")


def test_headline_reads_tables(case):
    """The headline reads the tables and hard choice where it was asked."""
    row = only(case.headline, checkpoint="pruned")
    has(row, known=5, kept=0.2, mc_only=0.2, lost=0.2, open_accuracy=4 / 6)
    sentence = sentence_of(case)
    # on the six items measured in both: open 5 and then 4, choice 6 and then 3
    assert sentence.startswith(
        "pruned: open accuracy 5 → 4 of 6, choice 6 → 3 of 6. Of 5 answers"
    )
    assert sentence.endswith("1 is lost; 2 are still said but no longer recognised.")
    has(row, open_n_paired=6, choice_n_paired=6)
    assert case.headline["checkpoint"].tolist() == ["dense", "pruned"]
    headline = tables(
        records(
            "dense", numbered(english=[replace(BOTH, hard=i > 0) for i in range(4)])
        )
    ).headline
    has(only(headline), choice_accuracy=1.0, hard_accuracy=0.75)
    assert (
        tables(records("dense", numbered(english=[BOTH])))
        .headline["hard_accuracy"]
        .isna()
        .all()
    )


def asked(
    hits: int,
    n: int = 4,
    *,
    choice: bool = True,
    task: str = "t",
    name: str = "p",
    base: str | None = "dense",
):
    return records(
        name, said(*[1] * hits, *[0] * (n - hits), choice=choice), base=base, task=task
    )


def test_headline_names_task_and_base():
    """A headline of increases names task and base where there are several."""
    sentence = sentence_of(tables(asked(2, name="dense", base=None), asked(4)))
    assert (
        sentence
        == "p: open accuracy 2 → 4 of 4, choice 4 → 4 of 4. Of 2 answers that the dense"
        " model produced and recognised, every one is still said and recognised."
    )
    found = tables(
        asked(400, 400, name="dense", base=None), asked(399, 400, choice=False)
    )
    assert "100 % → over 99 %, choice 100 % → 0 %. Of 400 answers" in sentence_of(found)
    assert (
        "none is still recognised but no longer said, and under 1 % are lost; over 99"
        " % are" in sentence_of(found)
    )
    found = tables(
        asked(20, 20, name="dense", base=None),
        asked(5, 20),
        asked(20, 20, name="dense", base=None, task="u"),
        asked(15, 20, task="u"),
        asked(5, 20, name="other", base=None),
        asked(5, 20, name="q", base="other"),
    )
    assert (
        sentence_of(found)
        == "p on t: open accuracy 100 % → 25 %, choice 100 % → 100 %. Of 20 answers"
        " that dense produced and recognised, 75 % are still recognised but no"
        " longer said, and none is lost."
    )


def test_share_of_few_is_a_count():
    """A share of few is a count and of twenty a percentage."""
    nineteen, twenty = (
        tables(asked(n, n, name="dense", base=None), asked(n - 3, n)) for n in (19, 20)
    )
    assert sentence_of(nineteen).endswith(
        "recognised, 3 are still recognised but no longer said, and none is lost."
    )
    assert sentence_of(twenty).endswith(
        "recognised, 15 % are still recognised but no longer said, and none is lost."
    )
    row = only(nineteen.headline, checkpoint="p")
    assert (row["known"], row["mc_only"]) == (19, 3 / 19)  # the CSV keeps numbers
    shown = {column.name: column.shown(row) for column in HEADLINE}
    has(shown, known="19", kept="16 of 19", mc_only="3 of 19", lost="0 of 19")
    narrow = {column.name: column.shown(row, narrow=True) for column in HEADLINE}
    has(narrow, kept="16/19", mc_only="3/19", open_accuracy="84.2")
    dense = numbered(english=[replace(BOTH, samples=[True])] * 4)
    for failures, found, missed in ((2, 1, "2 answers"), (1, 0, "1 answer")):
        pruned = [
            Seen(greedy=i >= failures, choice=True, samples=[i < found])
            for i in range(4)
        ]
        sentence = sentence_of(pair(dense, numbered(english=pruned)))
        silent = (
            f"{failures} {'is' if failures == 1 else 'are'} still recognised but no"
            " longer said, and none is lost"
        )
        assert sentence.endswith(
            f"{silent}; of {missed} that greedy decoding misses, sampling finds"
            f" {found}."
        )


def test_headline_of_re_run():
    """A re run is not the headline unless it is alone."""
    again = asked(3, name="again").assign(weights_digest="dense", method=None)
    found = tables(asked(4, name="dense", base=None), again)
    assert (
        sentence_of(found)
        == "again has the weights of its base: of 4 answers that the dense model"
        " produced and recognised, 1 changed its fate, which is the noise of the"
        " measurement."
    )
    found = tables(asked(4, name="dense", base=None), again, asked(4))
    assert sentence_of(found).startswith("p: open accuracy 4 → 4 of 4")


def test_other_configuration_is_no_re_run():
    """Equal weights compute something else with another rope_theta: no noise floor
    comes of them."""
    again = asked(3, name="again").assign(
        weights_digest="dense", method=None, architecture="theta 10000"
    )
    found = tables(
        asked(4, name="dense", base=None).assign(architecture="theta 500000"),
        again,
        asked(4),
    )
    fates = found["fates"]
    assert not fates["re_run"].any()
    assert fates["noise_floor"].isna().all()
