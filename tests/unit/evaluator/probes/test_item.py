"""All probes of one item: its records, and what becomes of what cannot be asked."""

from dataclasses import replace

from evaluator.asking.questions import NO_DISTRACTOR, NO_EXEMPLAR, TOO_LONG
from evaluator.probes.rank import NOT_SAID
from tests.support.probing import EVERY_FORMAT, EVERY_PROBE, config, questions, run


def excluded(records):
    """What could not be asked; a greedy answer without the gold one leaves the aligned rank undefined besides."""
    return sorted((r.probe, r.format, r.index) for r in records if r.status == "excluded" and r.text != NOT_SAID)


def test_every_probe_and_format_of_every_item(tokenizer):
    settings = config(sample_seeds=(0, 5))
    asked = questions(settings)
    records = run(tokenizer, settings, asked)
    by_item = {q.item.item_id: [r for r in records if r.item_id == q.item.item_id] for q in asked}
    for question in asked:
        mine = by_item[question.item.item_id]
        said = question.item.answers == ("answer 3",)  # what the model says to every item
        assert {r.status for r in mine if r.probe == "aligned_rank"} == {"ok" if said else "excluded"}
        assert {r.status for r in mine if r.probe != "aligned_rank"} == {"ok"}
        assert sorted(r.format for r in mine if r.probe == "greedy") == sorted(EVERY_FORMAT)
        assert {r.format for r in mine if r.probe != "greedy"} == {"open"}
        counts = {probe: sum(r.probe == probe for r in mine) for probe in EVERY_PROBE}
        deep = {"beam": 5, "sample": 20} if question.deep else {"beam": 0, "sample": 0}
        assert counts == {"greedy": 6, "choice": 4, "rank": 1, "aligned_rank": 1, "hard_choice": 4, **deep}
        assert {r.seed for r in mine if r.probe == "sample"} == ({0, 5} if question.deep else set())
        assert {r.seed for r in mine if r.probe != "sample"} == {0}
    keys = [(r.item_id, r.format, r.probe, r.index, r.seed) for r in records]
    assert len(set(keys)) == len(keys)


def test_thinking_is_removed_before_grading_and_kept_in_the_text(tokenizer):
    settings = config(formats=("open",), probes=("greedy", "sample", "beam"), max_new_tokens=64)
    item = questions(settings, answers=["Nile"])[0]
    for said, right in (
        ("<think>Nile</think>Po", False),
        ("<think>Po</think>Nile", True),
        ("<think>Nile", False),
        ("Nile<think>x", True),
    ):
        records = run(tokenizer, settings, [item], said)
        first = [r for r in records if r.probe in ("greedy", "sample") or (r.probe == "beam" and r.index == 0)]
        assert len(first) == 12
        assert {r.text for r in first} == {said}
        assert {r.contains for r in first} == {right}


def test_an_item_without_distractors_is_excluded_from_what_needs_them_and_asked_the_rest(tokenizer):
    settings = config(items=1)
    question = questions(settings, answers=["Nile"])[0]
    records = run(tokenizer, settings, [question])
    assert excluded(records) == [
        ("choice", "open", 0),
        ("greedy", "distractors_only", 0),
        ("greedy", "shown", 0),
        ("hard_choice", "open", 0),
    ]
    assert {r.status for r in records if r.probe in ("beam", "sample", "rank")} == {"ok"}
    missing = [r for r in records if r.status == "excluded" and r.probe != "aligned_rank"]
    assert all(r.logprob is None and r.is_gold is None for r in missing)
    assert {r.text for r in missing} == {NO_DISTRACTOR}


def test_without_an_exemplar_one_shot_is_excluded(tokenizer):
    settings = config(items=0)
    records = run(tokenizer, settings, questions(settings))
    assert excluded(records) == [("greedy", "one_shot", 0)] * 8
    assert {r.text for r in records if r.status == "excluded" and r.probe == "greedy"} == {NO_EXEMPLAR}


def test_a_prompt_that_fits_no_cap_is_excluded_and_not_the_end_of_the_run(tokenizer):
    settings = config(prompt_tokens=64, one_shot_prompt_tokens=2000)
    long = [replace(q, item=replace(q.item, question="Which? " * 30)) for q in questions(settings)[:1]]
    records = run(tokenizer, settings, long)
    assert {r.format for r in records if r.status == "ok"} == {"one_shot", "open_capped"}
    of_open = {probe for probe, format, _ in excluded(records) if format == "open"}
    assert of_open == set(EVERY_PROBE)
    assert {r.text for r in records if r.status == "excluded"} == {TOO_LONG}
