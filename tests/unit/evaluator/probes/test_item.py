"""One item's requests and records, probe by probe, on a scripted engine and a real tokenizer's prompts."""

from dataclasses import replace

import pytest

from evaluator.asking.prompts import Prompter
from evaluator.asking.questions import NO_DISTRACTOR, NO_EXEMPLAR, NO_GOLD, TOO_LONG, questions_of
from evaluator.checkpoints.tokenizer import load_tokenizer
from evaluator.engine.base import Generate, Response, Score
from evaluator.engine.fake import FakeEngine
from evaluator.probes.config import EvalConfig
from evaluator.probes.item import ItemProbes
from evaluator.probes.planning import Planner
from evaluator.probes.sample import sample_seed
from evaluator.probes.stream import evaluate
from evaluator.tasks import TaskData
from tests.support.items import make_item
from tests.support.models import save_tiny_model
from tests.support.stamps import STAMP

EVERY_FORMAT = ("open", "shown", "distractors_only", "unrelated", "one_shot", "open_capped")
EVERY_PROBE = ("greedy", "beam", "sample", "choice", "rank", "hard_choice")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return load_tokenizer(save_tiny_model(tmp_path_factory.mktemp("tiny")))


def prompter(tokenizer, cap=512, one_shot_cap=1024):
    return Prompter(tokenizer, chat=False, prompt_tokens=cap, one_shot_prompt_tokens=one_shot_cap)


def config(**changes):
    return EvalConfig(**{"task": "t", "items": 6, "formats": EVERY_FORMAT, "probes": EVERY_PROBE, **changes})


def questions(settings, answers=None, **changes):
    english = [make_item(n, answers=answers, **changes) for n in range(8)]
    if answers is None:
        english = [make_item(n, answers=[f"answer {n}"], **changes) for n in range(8)]
    finnish = [make_item(n, language="finnish", answers=[f"vastaus {n}"]) for n in range(8)]
    every = {"english": tuple(english), "finnish": tuple(finnish)}
    return questions_of(
        TaskData(name="t", digest="d", pools={"english": every["english"]}, every_pool=every), settings.wanted
    )


def answer(tokenizer, text):
    """A script: every generation says `text`, every score is by length alone."""
    ids = tuple(tokenizer(text, add_special_tokens=False).input_ids)

    def script(request):
        if isinstance(request, Score):
            size = len(request.continuation_ids)
            return Response(
                request_id=request.request_id,
                token_ids=request.continuation_ids,
                logprobs=(-1.0,) * size,
                ranks=(2,) * size,
                top_ids=((5,),) * size,
                top_logprobs=((-0.25,),) * size,
            )
        top = request.top_logprobs
        said = (*ids, tokenizer.eos_token_id)[: request.max_tokens]
        return Response(
            request_id=request.request_id,
            token_ids=said,
            logprobs=(-0.5,) * len(said) if request.temperature == 0 else (),
            top_ids=tuple((token, *(t for t in range(100, 100 + top) if t != token))[:top] for token in said),
            top_logprobs=tuple(tuple(-0.5 - k for k in range(top)) for _ in said),
        )

    return script


def run(tokenizer, settings, asked, text="answer 3"):
    made = prompter(tokenizer, settings.prompt_tokens, settings.one_shot_prompt_tokens)
    planner = Planner(made, settings)
    plans = (planner.plan(question) for question in asked)
    eos = frozenset({tokenizer.eos_token_id})
    stream = evaluate(
        FakeEngine(answer(tokenizer, text)), plans, config=settings, stamp=STAMP, decode=made.decode, eos_ids=eos
    )
    return [record for finished in stream for record in finished.records]


def start(tokenizer, settings, question):
    made = Planner(prompter(tokenizer), settings).plan(question)
    return ItemProbes(made, settings, frozenset({tokenizer.eos_token_id}), 0).start()


# ---- requests -----------------------------------------------------------------------------------------------------


def test_greedy_of_the_open_prompt_leads_and_every_format_has_one(tokenizer):
    settings = config()
    asked = questions(settings, context="C" * 600)[0]
    requests = start(tokenizer, settings, asked)
    greedy = [r for r in requests if isinstance(r, Generate) and r.temperature == 0]
    assert requests[0] is greedy[0]
    assert len(greedy) == len(EVERY_FORMAT)
    assert {r.max_tokens for r in greedy} == {32}
    assert len({r.prompt_ids for r in greedy}) == len(EVERY_FORMAT)


def test_samples_of_every_seed_with_seeds_of_their_own(tokenizer):
    settings = config(formats=("open",), probes=("sample",), seed=3, sample_seeds=(3, 4, 9))
    asked = questions(settings)[0]
    samples = start(tokenizer, settings, asked)
    assert len(samples) == 3 * 10
    assert [r.seed for r in samples] == [
        sample_seed(seed, asked.item.item_id, number) for seed in (3, 4, 9) for number in range(10)
    ]
    assert {(r.temperature, r.top_p, r.max_tokens) for r in samples} == {(1.0, 0.9, 32)}
    assert len({r.request_id for r in samples}) == 30
    one = start(tokenizer, config(formats=("open",), probes=("sample",), seed=3), asked)
    assert [r.seed for r in one] == [r.seed for r in samples[:10]]


def test_equal_continuations_of_choice_hard_choice_and_rank_are_scored_once(tokenizer):
    settings = config(formats=("open",), probes=("choice", "rank", "hard_choice"))
    asked = questions(settings)[0]
    scores = start(tokenizer, settings, asked)
    distinct = {*asked.options.texts, *asked.hard_options.texts}
    assert all(isinstance(request, Score) for request in scores)
    assert len(scores) == len(distinct) < 9
    assert {request.prompt_ids for request in scores} == {
        prompter(tokenizer).build(asked.item, "open").token_ids
    }  # the open prompt, with no candidates shown
    alone = start(tokenizer, config(formats=("open",), probes=("hard_choice",)), questions(settings)[0])
    assert len(alone) == 4


# ---- records ------------------------------------------------------------------------------------------------------


def test_every_probe_and_format_of_every_item(tokenizer):
    settings = config(sample_seeds=(0, 5))
    asked = questions(settings)
    records = run(tokenizer, settings, asked)
    by_item = {q.item.item_id: [r for r in records if r.item_id == q.item.item_id] for q in asked}
    for question in asked:
        mine = by_item[question.item.item_id]
        assert {r.status for r in mine} == {"ok"}
        assert sorted(r.format for r in mine if r.probe == "greedy") == sorted(EVERY_FORMAT)
        assert {r.format for r in mine if r.probe != "greedy"} == {"open"}
        counts = {probe: sum(r.probe == probe for r in mine) for probe in EVERY_PROBE}
        deep = {"beam": 5, "sample": 20} if question.deep else {"beam": 0, "sample": 0}
        assert counts == {"greedy": 6, "choice": 4, "rank": 1, "hard_choice": 4, **deep}
        assert {r.seed for r in mine if r.probe == "sample"} == ({0, 5} if question.deep else set())
        assert {r.seed for r in mine if r.probe != "sample"} == {0}
    keys = [(r.item_id, r.format, r.probe, r.index, r.seed) for r in records]
    assert len(set(keys)) == len(keys)


def test_hard_choice_records_are_those_of_its_own_options(tokenizer):
    settings = config(formats=("open",), probes=("choice", "hard_choice", "rank"))
    question = questions(settings)[0]
    records = run(tokenizer, settings, [question])
    for probe, options in (("choice", question.options), ("hard_choice", question.hard_options)):
        mine = [r for r in records if r.probe == probe]
        assert tuple(r.option_text for r in mine) == options.texts
        assert [r.index for r in mine if r.is_gold] == [options.gold]
        assert [r.index for r in mine] == [0, 1, 2, 3]
        assert all(r.logprob == -len(r.token_ids) for r in mine)
    (rank,) = [r for r in records if r.probe == "rank"]
    assert (rank.rank, rank.margin) == (2, -0.75)
    assert {rank.logprob} == {r.logprob for r in records if r.is_gold}  # the gold answer's full log-probability


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


def test_open_capped_and_one_shot_differ_by_the_exemplar_only(tokenizer):
    settings = config(formats=("open", "open_capped", "one_shot"), probes=("greedy",))
    question = questions(settings, context="C" * 700)[0]
    made = Planner(prompter(tokenizer, cap=300, one_shot_cap=2000), settings).of_question(question).prompts
    capped, one_shot = made["open_capped"], made["one_shot"]
    assert capped.text == f"Context: {'C' * 500}\n\nQuestion: What is the Nile?\n\nAnswer in a few words:"
    assert f"Context: {'C' * 500}\nQuestion: What is the Nile?\nAnswer in a few words:" in one_shot.text
    assert not capped.truncated  # a cap in characters is none in tokens, and its token cap is one_shot's
    assert not one_shot.truncated
    assert made["open"].truncated
    records = run(tokenizer, settings, [question])
    assert {r.format: r.truncated for r in records} == {"open": True, "open_capped": False, "one_shot": False}


# ---- what cannot be asked -----------------------------------------------------------------------------------------


def excluded(records):
    return sorted((r.probe, r.format, r.index) for r in records if r.status == "excluded")


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
    missing = [r for r in records if r.status == "excluded"]
    assert all(r.logprob is None and r.is_gold is None for r in missing)
    assert {r.text for r in missing} == {NO_DISTRACTOR}


def test_without_an_exemplar_one_shot_is_excluded(tokenizer):
    settings = config(items=0)
    records = run(tokenizer, settings, questions(settings))
    assert excluded(records) == [("greedy", "one_shot", 0)] * 8
    assert {r.text for r in records if r.status == "excluded"} == {NO_EXEMPLAR}


def test_a_prompt_that_fits_no_cap_is_excluded_and_not_the_end_of_the_run(tokenizer):
    settings = config(prompt_tokens=64, one_shot_prompt_tokens=2000)
    long = [replace(q, item=replace(q.item, question="Which? " * 30)) for q in questions(settings)[:1]]
    records = run(tokenizer, settings, long)
    assert {r.format for r in records if r.status == "ok"} == {"one_shot", "open_capped"}
    of_open = {probe for probe, form, _ in excluded(records) if form == "open"}
    assert of_open == set(EVERY_PROBE)
    assert {r.text for r in records if r.status == "excluded"} == {TOO_LONG}


def test_items_without_a_gold_answer_have_one_record_of_everything(tokenizer):
    settings = config()
    asked = [q for q in questions(settings, answers=["?"]) if q.deep]
    records = run(tokenizer, settings, asked)
    assert {r.status for r in records} == {"excluded"}
    assert {r.text for r in records} == {NO_GOLD}
    assert len(records) == len(asked) * (6 + 5)
