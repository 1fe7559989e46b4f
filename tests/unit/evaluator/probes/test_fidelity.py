"""Fidelity in the stream: a base that keeps and meets itself, what is compared with
it, and what both were asked."""

import numpy as np
import pytest
from msgspec.structs import replace

from evaluator.asking.questions import NOT_OPEN, NOTHING_PREDICTED, Window
from evaluator.core.reducing import BANDS, unpack
from evaluator.engine.base import Score
from evaluator.probes.config import EvalConfig
from evaluator.probes.fidelity import NO_DIVERGENCES, PIECE
from evaluator.probes.item import NO_PLACE, BaseAnswer, References
from evaluator.store.outcomes import reduce_records
from evaluator.store.records import to_table
from tests.support import letters
from tests.support.fake import FakeEngine, FakeLM
from tests.support.letters import EOS, letter_model, letter_plan
from tests.support.requests import generation

CONFIG = EvalConfig(
    task="toy", items=0, max_new_tokens=6, probes=("greedy", "rank", "fidelity")
)
TEXT = EvalConfig(task="text:book.txt", probes=("text_fidelity",))
OTHER = FakeLM(vocabulary=27, eos_ids=EOS, seed=6)


@pytest.fixture(scope="module")
def questions():
    return letters.letter_questions(letters.letter_items(4), CONFIG)


def run(script, questions, references=None, base=None, config=CONFIG, **engine):
    """Records by item id and index, and what was asked. `base` has the base's
    answers by item id."""
    sent, noting = letters.noted(script)
    plans = [letter_plan(question, config) for question in questions]
    find = None if base is None else lambda item: base[item.item_id]
    stream = letters.letter_evaluation(
        plans, config, base=find, references=references
    ).run(FakeEngine(noting, **engine))
    found = {
        (r.item_id, r.index): r
        for _, records in stream
        for r in records
        if "fidelity" in r.probe
    }
    return found, sent


def posed(questions):
    """Of each question its item's name, and its open prompt and gold answer as ids."""
    for question in questions:
        plan = letter_plan(question, CONFIG)
        gold = plan.scored[question.item.answers[0]].continuation_ids
        yield question.item.item_id, plan.prompts["open"].token_ids, gold


def said(questions, lm):
    """The greedy answers of a model as those of a base."""
    answers = {}
    for name, prompt, _ in posed(questions):
        asked = generation("g", prompt, CONFIG.max_new_tokens)
        answers[name] = BaseAnswer(token_ids=lm.answer(asked).token_ids)
    return answers


def both(folder):
    return References(keep=str(folder), compare=str(folder))


def beside_its_base(questions, folder, config=CONFIG, **engine):
    """What `run` returns for another checkpoint after its base, and the base's
    answers."""
    run(letter_model().answer, questions, both(folder), config=config)
    base = said(questions, letter_model())
    return (
        *run(
            OTHER.answer,
            questions,
            References(compare=str(folder)),
            base,
            config,
            **engine,
        ),
        base,
    )


def divergences(p_lm, q_lm, prompt, continuation):
    """KLD, reverse, acceptance, ln P and ln Q of every token, by hand."""
    rows = []
    for place, token in enumerate(continuation):
        prefix = tuple(prompt) + tuple(continuation[:place])
        p, q = p_lm.logprobs(prefix), q_lm.logprobs(prefix)
        overlap = np.minimum(np.exp(p), np.exp(q)).sum()
        rows.append(
            (
                np.exp(p) @ (p - q),
                np.exp(q) @ (q - p),
                overlap,
                p[token],
                q[token],
                np.exp(p.max()),
            )
        )
    return np.array(rows).T


def check(record, p_lm, q_lm, prompt, continuation):
    names = (
        "kld",
        "kld_reverse",
        "acceptance",
        "base_token_logprobs",
        "token_logprobs",
        "base_confidence",
    )
    assert record.status == "ok"
    for name, wanted in zip(
        names, divergences(p_lm, q_lm, prompt, continuation), strict=True
    ):
        assert getattr(record, name) == pytest.approx(list(wanted), abs=1e-5), name
    assert len(record.same_top) == len(record.top_agreement) == len(continuation)
    assert record.logprob == pytest.approx(sum(record.token_logprobs))


def test_checkpoint_reads_its_bases_answer(questions, tmp_path):
    found, sent, base = beside_its_base(questions, tmp_path, reorder_seed=5, room=3)
    for name, prompt, gold in posed(questions):
        assert found[name, 0].token_ids == base[name].token_ids
        check(found[name, 0], letter_model(), OTHER, prompt, base[name].token_ids)
        check(found[name, 1], letter_model(), OTHER, prompt, gold)
    referring = [
        request.reference
        for request in sent
        if isinstance(request, Score) and request.reference
    ]
    assert [reference.keep for reference in referring] == [False] * 2 * len(questions)


def test_middle_base_keeps_own_answers(questions, tmp_path):
    """One that has a base and is one keeps along its own answers."""
    first, second = tmp_path / "first", tmp_path / "second"
    run(letter_model().answer, questions, both(first))
    middle = References(keep=str(second), compare=str(first))
    found, _ = run(OTHER.answer, questions, middle, said(questions, letter_model()))
    third = FakeLM(vocabulary=27, eos_ids=EOS, seed=7)
    last, _ = run(
        third.answer, questions, References(compare=str(second)), said(questions, OTHER)
    )
    for name, prompt, _ in posed(questions):
        check(
            found[name, 0],
            letter_model(),
            OTHER,
            prompt,
            said(questions, letter_model())[name].token_ids,
        )
        check(
            last[name, 0], OTHER, third, prompt, said(questions, OTHER)[name].token_ids
        )
        check(last[name, 1], OTHER, third, prompt, last[name, 1].token_ids)


def test_why_it_is_not_defined(questions, tmp_path):
    def reasons(references, base=None, config=CONFIG):
        found, _ = run(letter_model().answer, questions, references, base, config)
        assert {record.status for record in found.values()} == {"excluded"}
        return {record.text for record in found.values()}

    assert reasons(None) == {NO_PLACE}
    assert reasons(References(missing="no base")) == {"no base"}
    missing = {
        question.item.item_id: BaseAnswer(missing="it failed") for question in questions
    }
    assert reasons(References(compare=str(tmp_path)), missing) == {"it failed"}
    shown = CONFIG.model_copy(update={"formats": ("shown",)})
    assert reasons(both(tmp_path), config=shown) == {NOT_OPEN}


def test_missing_references_are_failures(questions, tmp_path):
    """Without what the base kept and on an engine that compares nothing it failed."""
    base = said(questions, letter_model())
    found, _ = run(OTHER.answer, questions, References(compare=str(tmp_path)), base)
    assert {record.status for record in found.values()} == {"engine_error"}
    assert all("are not there" in record.text for record in found.values())

    def blind(request):
        return OTHER.answer(
            replace(request, reference=None) if isinstance(request, Score) else request
        )

    found, _ = run(blind, questions, References(compare=str(tmp_path)), base)
    assert {(record.status, record.text) for record in found.values()} == {
        ("engine_error", NO_DIVERGENCES)
    }


def windows():
    sizes = (1, 2, PIECE + 1, 2 * PIECE + 40)
    return [
        Window.of("book", n, [1 + (7 * t + n) % 26 for t in range(size)])
        for n, size in enumerate(sizes)
    ]


def test_windows_of_a_text_in_pieces(tmp_path):
    floor, _ = run(letter_model().answer, windows(), both(tmp_path), config=TEXT)
    found, sent = run(
        OTHER.answer,
        windows(),
        References(compare=str(tmp_path)),
        config=TEXT,
        reorder_seed=1,
    )
    assert len(sent) == 0 + 1 + 1 + 3
    for window in windows():
        record = found[window.item.item_id, window.number]
        ids = tuple(window.token_ids)
        if len(ids) == 1:
            assert (record.status, record.text) == ("excluded", NOTHING_PREDICTED)
            continue
        assert record.prompt_tokens == len(ids) - 1
        check(record, letter_model(), OTHER, ids[:1], ids[1:])
        assert max(floor[window.item.item_id, window.number].kld) < 1e-6
    alone, _ = run(OTHER.answer, windows()[1:], config=TEXT)
    assert {(record.status, record.text) for record in alone.values()} == {
        ("excluded", NO_PLACE)
    }


def test_fidelity_outcomes_are_sums(questions, tmp_path):
    """Outcomes hold sums and what percentiles are made of."""
    found, _, _ = beside_its_base(questions, tmp_path)
    outcomes = reduce_records(to_table(list(found.values())).to_pandas()).set_index(
        "item_id"
    )
    assert set(outcomes["fidelity_status"]) == {"ok"}
    for (name, index), record in found.items():
        prefix = ("fidelity_greedy", "fidelity_gold")[index]
        row = outcomes.loc[name]
        assert row[f"{prefix}_positions"] == len(record.kld)
        for each in ("kld", "kld_reverse", "acceptance", "same_top", "top_agreement"):
            assert row[f"{prefix}_{each}"] == pytest.approx(
                sum(getattr(record, each)), rel=1e-5
            )
        own, of_base = np.exp(record.token_logprobs), np.exp(record.base_token_logprobs)
        assert row[f"{prefix}_delta_p"] == pytest.approx(
            (own - of_base).sum(), abs=1e-6
        )
        assert row[f"{prefix}_delta_p_squared"] == pytest.approx(
            ((own - of_base) ** 2).sum(), abs=1e-6
        )
        assert row[f"{prefix}_delta_nll"] == pytest.approx(
            np.log(of_base / own).sum(), abs=1e-4
        )
        positions = unpack([row[f"{prefix}_packed"]])
        assert list(positions.kld) == pytest.approx(record.kld, rel=1e-6)
        assert list(positions.same_top) == list(record.same_top)
        bands = [
            max(b for b, low in enumerate(BANDS) if low <= confidence)
            for confidence in record.base_confidence
        ]
        assert list(positions.band) == bands


def test_a_base_keeps_distributions_along_the_answer_that_was_posed_again(
    questions, tmp_path
):
    again = {"max_new_tokens": 2, "recheck_cut": True, "recheck_limit": 6}
    short = CONFIG.model_copy(update=again)
    found, _, base = beside_its_base(questions, tmp_path / "short", short)
    expected, _, whole = beside_its_base(questions, tmp_path / "long")
    assert base == whole
    assert found == expected
    assert any(len(each.token_ids) > 2 for each in base.values())
    assert {record.status for record in found.values()} == {"ok"}
