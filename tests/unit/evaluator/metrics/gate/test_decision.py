"""The gate on records whose answer is known: no effect, a large one, one language, too few items."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

import pandas as pd
import pytest

from evaluator.metrics import TABLES, Inputs, judge, reduce_records
from evaluator.metrics.gate import Verdict, decide, document, paragraph, summary, usable, why
from evaluator.metrics.gate.power import may_be_chance
from evaluator.store.failures import Failure
from evaluator.thresholds import Thresholds
from tests.support.records import Seen, records

RIGHT, PICKED, GONE = Seen(greedy=True, choice=True), Seen(greedy=False, choice=True), Seen(greedy=False, choice=False)
Losses = Mapping[str, tuple[int, int, Seen]]  # language -> items, how many change, into what


def outcomes(losses: Losses, *, dtype: str = "float32") -> pd.DataFrame:
    """A base that is right throughout, and a checkpoint in which some items of each language change."""
    dense = {f"{language}/{n}": RIGHT for language, (items, _, _) in losses.items() for n in range(items)}
    own = {
        f"{language}/{n}": into if n < changed else RIGHT
        for language, (items, changed, into) in losses.items()
        for n in range(items)
    }
    parts = [records("dense", dense), records("int4", own, base="dense").assign(dtype=dtype)]
    return pd.concat([reduce_records(part) for part in parts], ignore_index=True)


def verdict(losses: Losses, thresholds: Thresholds | None = None, **how: str) -> Verdict:
    (found,) = judge(Inputs(outcomes(losses, **how)), thresholds or Thresholds())
    return found


def test_no_effect_in_many_items_passes():
    found = verdict({"english": (400, 1, PICKED)})
    assert (found.outcome, usable(found), found.underpowered) == ("PASS", "usable", False)
    assert why(found) == "within every threshold that was measured, on 400 items"


def test_no_effect_in_few_items_is_underpowered_and_never_passes():
    found = verdict({"english": (30, 0, PICKED)})
    assert (found.outcome, usable(found)) == ("WARN", "undecided: too few items")
    drop = found.of("open_drop")[0]
    # (1.96 + 0.84) * sqrt((1 / 30) / 30), as at least one item is taken to differ
    assert drop.detectable == pytest.approx(2.8016 / 30, abs=1e-4)
    assert drop.enough == 655  # 30 * (0.09338 / 0.02)^2
    assert "are too few to exclude" in why(found)


def test_the_mde_is_that_of_the_discordant_share():
    drop = verdict({"english": (1000, 40, PICKED)}, Thresholds(max_drop=10)).of("open_drop")[0]
    assert drop.detectable == pytest.approx(2.8016 * (0.04 / 1000) ** 0.5, rel=0.03)
    assert drop.state == "ok"


def test_answers_that_are_no_longer_said_but_picked_leave_recognition():
    found = verdict({"english": (200, 60, PICKED)})
    assert (found.outcome, usable(found)) == ("BLOCK", "usable for recognition only")
    assert why(found).startswith("open accuracy lost 30.0 pp (24.")
    states = {check.criterion.name: check.state for check in found.checks}
    assert states["open_drop"] == states["mc_only"] == states["open_flips"] == states["open_recovery"] == "crossed"
    assert states["choice_drop"] == states["choice_recovery"] == "ok"


def test_answers_that_are_neither_said_nor_picked_make_it_unusable():
    found = verdict({"english": (200, 60, GONE)})
    assert (found.outcome, usable(found)) == ("BLOCK", "not usable")


def test_as_many_right_answers_to_other_questions_are_no_silence():
    wrong = Seen(greedy=False, choice=True)
    dense = {f"english/{n}": RIGHT if n < 200 else wrong for n in range(400)}
    own = {f"english/{n}": wrong if n < 40 or n >= 240 else RIGHT for n in range(400)}
    parts = [reduce_records(records("dense", dense)), reduce_records(records("int4", own, base="dense"))]
    (found,) = judge(Inputs(pd.concat(parts)), Thresholds(max_mc_only=None))
    assert [check.criterion.name for check in found.having("crossed") if check.pooled] == ["open_flips"]
    assert (found.outcome, usable(found)) == ("BLOCK", "right about as often, on other questions")


def test_a_drop_that_may_be_chance_is_a_warning():
    found = verdict({"english": (200, 6, PICKED)}, Thresholds(min_recovery=None, max_flips=None))
    assert (found.outcome, found.of("open_drop")[0].state) == ("WARN", "over")
    assert "which may be chance" in why(found)


def test_the_worst_language_counts_though_the_pooled_numbers_hold():
    losses: dict[str, tuple[int, int, Seen]] = {f"l{n}": (180, 0, PICKED) for n in range(11)}
    gone = Inputs(outcomes(losses | {"bengali": (180, 32, GONE)}))
    (found,) = judge(gone, Thresholds())
    assert all(not check.pooled for check in found.having("crossed"))
    assert (found.outcome, usable(found)) == ("BLOCK", "not usable in Bengali")
    (pooled,) = judge(gone, Thresholds(languages=False))
    assert pooled.outcome == "PASS"
    silent = verdict({"english": (600, 0, PICKED), "swahili": (600, 0, PICKED), "bengali": (600, 80, PICKED)})
    assert usable(silent) == "usable for recognition only in Bengali"


def test_a_loss_that_one_language_alone_has_is_told_as_its_own():
    found = verdict({"bengali": (700, 90, GONE), "english": (700, 0, GONE), "thai": (700, 1, GONE)})
    assert found.of("open_drop")[0].state == "crossed"  # 4.3 pp of all items
    assert (found.outcome, usable(found)) == ("BLOCK", "not usable in Bengali")
    everywhere = verdict({"bengali": (700, 90, GONE), "english": (700, 30, GONE)})
    assert usable(everywhere) == "not usable"


def test_the_summary_counts_checkpoints_from_best_to_worst():
    well, silent = verdict({"english": (400, 1, PICKED)}), verdict({"english": (200, 60, PICKED)})
    assert summary([well]) == "int4: usable."
    assert summary([silent, silent]) == "All 2 compressed checkpoints: usable for recognition only."
    assert summary([silent, well, silent]) == "Of 3 compressed checkpoints: 1 usable; 2 usable for recognition only."
    posed_otherwise = dataclasses.replace(well, task="t+terse")
    assert summary([silent, posed_otherwise]) == "Of 2 verdicts on 2 tasks: 1 usable; 1 usable for recognition only."


@pytest.mark.parametrize("missed", [0, 1])
def test_of_few_items_nothing_is_said_for_recognition_whatever_the_drop(missed):
    """A drop that may be chance is no better than none."""
    items = {f"english/{n}": RIGHT for n in range(24)}
    own = {item: GONE if n < missed else PICKED if n < 16 else RIGHT for n, item in enumerate(items)}
    parts = [records("dense", items), records("int4", own, base="dense")]
    (found,) = judge(Inputs(pd.concat([reduce_records(part) for part in parts], ignore_index=True)), Thresholds())
    assert found.of("choice_drop")[0].state == ("over" if missed else "underpowered")
    assert usable(found) == "not usable for open answers"


def test_a_language_with_too_few_items_is_named():
    found = verdict({"english": (2000, 2, PICKED), "thai": (20, 0, PICKED)})
    assert (found.outcome, found.underpowered) == ("WARN", True)
    assert why(found).startswith("too few items in Thai to exclude open accuracy lost of 5.0 pp: about ")
    assert why(found).endswith(" would do in Thai")


def test_one_of_many_languages_needs_a_wider_interval_to_be_crossed():
    def of_english(others: int) -> str:
        losses = {"english": (100, 12, PICKED)} | {f"l{n}": (100, 0, PICKED) for n in range(others)}
        checks = verdict(losses).of("open_drop")
        return next(check.state for check in checks if check.language == "english")

    assert (of_english(1), of_english(19)) == ("crossed", "over")


def test_another_dtype_is_never_decided():
    found = verdict({"english": (400, 0, PICKED)}, dtype="bfloat16")
    assert (found.outcome, usable(found)) == ("BLOCK", "not decided")
    assert why(found) == "not comparable with the base: dtype float32 against bfloat16"


def test_what_was_not_measured_is_no_pass():
    seen = {f"english/{n}": Seen(choice=True) for n in range(400)}
    parts = [reduce_records(records("dense", seen)), reduce_records(records("int4", seen, base="dense"))]
    (found,) = judge(Inputs(pd.concat(parts)), Thresholds())
    assert (found.outcome, usable(found)) == ("WARN", "undecided: open answers were not measured")


def test_divergence_blocks_by_its_interval_and_says_what_for():
    rows = [{"kld": 0.3, "kld_low": 0.2, "kld_high": 0.4, "acceptance": 0.8, "acceptance_low": 0.7}]
    place = {"task": "t", "checkpoint": "int4", "base": "dense", "language": "all"}
    far = pd.DataFrame([row | place | {"n": 9, "along": "greedy answer", "group": "all"} for row in rows])
    inputs = Inputs(outcomes({"english": (400, 1, PICKED)}))
    frames = {name: TABLES[name].frame(inputs) for name in ("accuracy", "fates", "flips")}
    (found,) = decide({**frames, "fidelity": far.assign(acceptance_high=0.95)}, Thresholds(), {})
    assert (found.outcome, usable(found)) == ("BLOCK", "usable by its answers, not by its probabilities")
    assert why(found) == "KL divergence from the base, nats a token, 0.300 (0.200 to 0.400; at most 0.100)"
    assert found.of("ear")[0].state == "over"
    (near,) = decide(frames, Thresholds(), {})
    assert (near.outcome, near.of("kld")[0].state) == ("PASS", "unmeasured")


def test_a_threshold_of_none_is_not_looked_at():
    found = verdict({"english": (400, 60, PICKED)}, Thresholds(max_drop=50, max_flips=None, min_recovery=50))
    assert {check.criterion.name for check in found.having("crossed")} == {"mc_only", "delta_pr"}
    assert not found.of("open_flips")


def test_the_document_is_json_and_the_paragraph_names_every_checkpoint():
    verdicts = [verdict({"english": (400, 1, PICKED)}), verdict({"english": (200, 60, GONE)})]
    told = json.loads(json.dumps(document(verdicts, Thresholds())))
    assert told["verdict"] == "BLOCK"
    assert [each["verdict"] for each in told["checkpoints"]] == ["PASS", "BLOCK"]
    assert told["checkpoints"][0]["checks"][0]["criterion"] == "open_drop"
    assert told["words"] == paragraph(verdicts)
    assert told["words"].startswith("int4: usable (within every threshold")


def test_a_run_without_compressed_checkpoints_has_no_verdict():
    alone = reduce_records(records("dense", {"english/1": RIGHT}))
    assert judge(Inputs(alone), Thresholds()) == []
    assert document([], Thresholds())["verdict"] == "WARN"


def test_one_of_few_known_answers_is_no_proof_though_wilson_says_so():
    """Wilson's interval of 3 in 50 begins at 2.06 %; P(3 or more of 50 at 2 %) is 0.078."""
    losses = {"english": (50, 3, GONE)}
    bounds = {"max_flips": None, "min_recovery": None, "max_delta_pr": None, "max_mc_only": None}
    lost = verdict(losses, Thresholds(**bounds)).of("lost")[0]
    assert (lost.state, lost.low) == ("over", pytest.approx(0.0206, abs=1e-4))
    assert verdict({"english": (50, 5, GONE)}, Thresholds(**bounds)).of("lost")[0].state == "crossed"  # 0.0032
    assert may_be_chance(1, 1, 0.05, tests=1)  # 0.05, where Wilson's interval begins at 0.21
    assert not may_be_chance(2, 2, 0.05, tests=2)  # 0.0025 against 0.025 / 2
    assert may_be_chance(2, 2, 0.05, tests=12)


def test_a_base_that_is_never_right_passes_nothing():
    seen = {f"english/{n}": Seen(greedy=False, choice=True) for n in range(150)}
    parts = [reduce_records(records("dense", seen)), reduce_records(records("int4", seen, base="dense"))]
    (found,) = judge(Inputs(pd.concat(parts)), Thresholds())
    assert (found.outcome, usable(found)) == ("WARN", "undecided: too few right answers of the base")
    assert why(found) == "the base is never right: there is nothing that it could lose"


def test_without_known_answers_their_fates_are_undecided():
    says, picks = Seen(greedy=True, choice=False), Seen(greedy=False, choice=True)
    seen = {f"english/{n}": says if n < 75 else picks for n in range(150)}
    parts = [reduce_records(records("dense", seen)), reduce_records(records("int4", seen, base="dense"))]
    (found,) = judge(Inputs(pd.concat(parts)), Thresholds())
    assert found.outcome == "WARN"
    assert why(found) == "the base both says and picks no answer: about 189 would do"
    assert judge(Inputs(pd.concat(parts)), Thresholds(max_mc_only=None, max_lost=None))[0].outcome == "PASS"


def test_texts_have_no_verdict():
    text = {f"text/{n}": Seen(window=(-9.0, 2), fidelity=(0.1, 0.2)) for n in range(3)}
    parts = [records("dense", text, task="book"), records("int4", text, base="dense", task="book")]
    asked = outcomes({"english": (190, 0, PICKED)})
    found = judge(Inputs(pd.concat([asked, *map(reduce_records, parts)], ignore_index=True)), Thresholds())
    assert [(each.task, each.outcome) for each in found] == [("t", "PASS")]


def test_a_divergence_in_one_language_alone_leaves_words():
    place = {"task": "t", "checkpoint": "int4", "base": "dense", "along": "greedy answer", "group": "all", "n": 9}
    far = pd.DataFrame(
        [
            place | {"language": language, "kld": kld, "kld_low": kld, "kld_high": kld}
            for language, kld in (("all", 0.3), ("english", 0.01), ("thai", 0.6))
        ]
    ).assign(acceptance=0.99, acceptance_low=0.99, acceptance_high=0.99)
    inputs = Inputs(outcomes({"english": (100, 0, PICKED), "thai": (100, 0, PICKED)}))
    frames = {name: TABLES[name].frame(inputs) for name in ("accuracy", "fates", "flips")}
    (found,) = decide({**frames, "fidelity": far}, Thresholds(), {})
    assert (found.outcome, usable(found)) == ("BLOCK", "usable by its answers, not by its probabilities")
    far.loc[far["language"] == "all", ["kld", "kld_low", "kld_high"]] = 0.05
    (found,) = decide({**frames, "fidelity": far}, Thresholds(), {})
    assert (found.outcome, usable(found)) == ("BLOCK", "usable by its answers, not by its probabilities in Thai")


def test_items_on_which_the_engine_failed_are_no_pass():
    seen = {f"english/{n}": RIGHT for n in range(210)}
    own = seen | {f"english/{n}": Seen(greedy=True, choice=True, status="engine_error") for n in range(20)}
    parts = [reduce_records(records("dense", seen)), reduce_records(records("int4", own, base="dense"))]
    (found,) = judge(Inputs(pd.concat(parts)), Thresholds())
    assert (found.outcome, usable(found)) == ("WARN", "undecided: the engine failed on too many items")
    assert why(found) == "the engine failed on 20 of 210 items"
    assert judge(Inputs(pd.concat(parts)), Thresholds(max_drop=11))[0].outcome == "PASS"


def test_a_base_that_is_not_in_the_run_measures_nothing():
    alone = reduce_records(records("int4", {"english/1": RIGHT}, base="dense"))
    (found,) = judge(Inputs(alone), Thresholds())
    assert (found.outcome, why(found)) == ("WARN", "nothing was measured of both it and its base")


def test_a_checkpoint_that_failed_is_named_and_is_no_pass():
    verdicts = [verdict({"english": (190, 0, PICKED)})]
    failure = Failure(checkpoint="w8a8", stage="load", reason="no kernel")
    told = document(verdicts, Thresholds(), [failure])
    assert (told["verdict"], told["checkpoints"][0]["verdict"]) == ("WARN", "PASS")
    assert told["not_judged"] == [{"checkpoint": "w8a8", "task": "", "why": "no kernel"}]
