"""The aligned rank in the stream: of the base's own answer, and of the base's answer
on another checkpoint."""

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from evaluator.asking.questions import NOT_OPEN
from evaluator.core.grading import grade, strip_thinking
from evaluator.engine.base import Generate, Response, Score
from evaluator.probes.config import EvalConfig
from evaluator.probes.item import BaseAnswer
from evaluator.probes.rank import NOT_SAID, align
from tests.support import letters
from tests.support.fake import FakeEngine, FakeLM
from tests.support.letters import (
    EOS,
    LetterPrompter,
    letter_model,
    letter_plans,
    letter_questions,
)
from tests.support.requests import generation

CONFIG = EvalConfig(
    task="toy",
    items=0,
    max_new_tokens=8,
    probes=("greedy", "beam", "rank", "aligned_rank"),
)
decode = LetterPrompter().decode


def prompt_of(question):
    """The open prompt, as ids."""
    (plan,) = letter_plans([question], CONFIG)
    return plan.prompts["open"].token_ids


def greedy_of(question):
    """What the model answers to the open prompt, as ids."""
    asked = generation("g", prompt_of(question), CONFIG.max_new_tokens)
    return letter_model().answer(asked).token_ids


@pytest.fixture(scope="module")
def questions():
    """Items whose gold answer the model says in the middle of its greedy answer; one
    of which it does not."""
    questions = []
    for number, item in enumerate(letters.letter_items(10)):
        (question,) = letter_questions([item], CONFIG)
        said = decode(greedy_of(question))
        gold = "zzzz" if number == 3 or len(said) < 6 else said[2:6]
        # letters may stand before an answer in Arabic
        item = replace(item, answers=(gold,), language="arabic")
        questions += letter_questions([item], CONFIG)
    return questions


def run(script, questions, config=CONFIG, base=None, **engine):
    """Records by item id, of the probe aligned_rank; `base` maps item ids to what
    the base answered."""
    find = None if base is None else lambda item: base[item.item_id]
    stream = letters.letter_evaluation(
        letter_plans(questions, config), config, base=find
    )
    answered = stream.run(FakeEngine(script, **engine))
    found = [
        record
        for _, records in answered
        for record in records
        if record.probe == "aligned_rank"
    ]
    assert len(found) == len(questions)
    return {record.item_id: record for record in found}


def test_aligned_rank_of_base_is_one(questions):
    """On the base itself the aligned rank is one."""
    found = run(letter_model().answer, questions)
    defined = {name: record for name, record in found.items() if record.status == "ok"}
    assert len(defined) >= 5
    by_id = {question.item.item_id: question for question in questions}
    for name, record in defined.items():
        said = decode(greedy_of(by_id[name]))
        gold = by_id[name].item.answers[0]
        assert (record.rank, record.margin) == (1, 0.0)
        assert said.startswith(record.text + record.option_text)
        assert decode(record.token_ids) == record.option_text
        assert record.option_text == gold
        assert record.prompt_tokens == len(prompt_of(by_id[name])) + len(record.text)
    left = {record.text for name, record in found.items() if name not in defined}
    assert left == {NOT_SAID}
    assert found["q3"].status == "excluded"


def test_aligned_answer_follows_bases_words(questions):
    """On another checkpoint the same tokens are scored after the bases words."""
    base = {q.item.item_id: BaseAnswer(token_ids=greedy_of(q)) for q in questions}
    other = FakeLM(vocabulary=27, eos_ids=EOS, seed=6)
    own = run(letter_model().answer, questions)
    found = run(other.answer, questions, base=base, reorder_seed=4, room=3)
    for question in questions:
        name = question.item.item_id
        record = found[name]
        for column in ("status", "token_ids", "text", "prompt_tokens"):
            assert getattr(record, column) == getattr(own[name], column)
        if record.status != "ok":
            continue
        prefix = prompt_of(question) + base[name].token_ids[: len(record.text)]
        row = other.logprobs(prefix)
        first = record.token_ids[0]
        assert record.rank == 1 + int((row > row[first]).sum())
        assert record.margin == pytest.approx(row[first] - row.max())
        total = 0.0
        for token in record.token_ids:
            total += other.logprobs(prefix)[token]
            prefix = (*prefix, token)
        assert record.logprob == pytest.approx(total)
    assert len({record.rank for record in found.values()} - {None, 1}) > 2


def test_eos_of_base_is_not_scored(questions):
    """The eos of the bases answer is not scored."""
    question = questions[0]
    base = {question.item.item_id: BaseAnswer(token_ids=(5, 1, 0))}
    sent, script = letters.noted(letter_model().answer)
    gold = replace(question, item=replace(question.item, answers=("ea",)))
    record = run(script, [gold], base=base)[question.item.item_id]
    assert record.token_ids == (5, 1)
    assert record.text == ""
    (scored,) = [
        request
        for request in sent
        if isinstance(request, Score) and "aligned" in request.request_id
    ]
    assert scored.continuation_ids == (5, 1)


def test_undefined_aligned_rank_asks_nothing(questions):
    """What is missing is excluded with the reason and asks nothing."""
    sent, script = letters.noted(letter_model().answer)
    config = CONFIG.model_copy(update={"probes": ("greedy", "aligned_rank")})
    base = {q.item.item_id: BaseAnswer(missing="nobody asked it") for q in questions}
    found = run(script, questions, config, base=base)
    told = ("excluded", "nobody asked it", None, None)
    assert {(r.status, r.text, r.rank, r.token_ids) for r in found.values()} == {told}
    assert all(r.prompt_tokens for r in found.values())
    assert not any(isinstance(request, Score) for request in sent)
    not_open = config.model_copy(update={"formats": ("open_capped",)})
    assert {r.text for r in run(script, questions, not_open).values()} == {NOT_OPEN}


@pytest.mark.parametrize("failing", [Generate, Score])
def test_aligned_rank_reports_engine_failures(questions, failing):
    """A failure of the engine is one of the probe."""

    def script(request):
        if isinstance(request, failing):
            return Response(
                request_id=request.request_id, status="engine_error", error="lost"
            )
        return letter_model().answer(request)

    found = run(script, questions)
    failed = [record for record in found.values() if record.status == "engine_error"]
    assert len(failed) >= 5
    assert all((r.text, r.rank, r.logprob) == ("lost", None, None) for r in failed)


def right_of(answers):
    return lambda text: grade(text, answers, "english")["contains"]


class Pieces:
    """A tokenizer whose tokens are pieces of UTF-8 text, decoded as byte-level
    tokenizers do."""

    def __init__(self, *pieces):
        self._pieces = [
            piece.encode() if isinstance(piece, str) else piece for piece in pieces
        ]
        self.ids = tuple(range(len(pieces)))

    def decode(self, ids):
        return b"".join(self._pieces[token] for token in ids).decode(errors="replace")

    def cut(self, *answers):
        """Lead-in and aligned answer, decoded."""
        found = align(self.ids, right_of(answers), self.decode)
        return None if found is None else tuple(map(self.decode, found))


# Tokens, answers, lead-in, aligned answer. Punctuation before an answer belongs to the
# lead-in. The first mention ends it; within it, the last place where it can begin begins
# it. Of several answers the one that is complete first, of two the shorter. A token that
# holds more is taken whole. Thoughts are not said, also where they stand in an answer.
RULE = """\
The· river· is· Ni·le·.|Nile|The river is| Nile
It· is· "·NI·LE·"|Nile|It is "|NILE
Nile·, the· Nile|Nile||Nile
ni· ni·le|Nile|ni| nile
the· White· Nile|White Nile, White|the| White
about· sixty· Niles|Nile|about sixty| Niles
<think>·Nile·</think>·the ·Nile|Nile|<think>Nile</think>the |Nile
Ni·<think>·Nile·</think>·le· it is|Nile||Ni<think>Nile</think>le
<thi·nk>Ni·le</thi·nk>the Ni·le|Nile|<think>Nile</thi|nk>the Nile
"""


@pytest.mark.parametrize("row", RULE.splitlines())
def test_the_rule_on_words(row):
    pieces, answers, *cut = row.split("|")
    assert Pieces(*pieces.split("·")).cut(*answers.split(", ")) == tuple(cut)


def test_halves_of_characters_and_unsaid_answers():
    two = Pieces("это ", b"\xd0", b"\xbe", "нти", ".")
    assert two.cut("Онти") == ("это ", "онти")
    assert Pieces("Nile", b"\xf0\x9f").cut("Nile") == ("", "Nile")
    assert Pieces("<think>", "Nile", "</think>", "Po").cut("Nile") is None


PIECES = [
    "a",
    "b",
    "A.",
    " ",
    "-",
    "ab",
    "<think>",
    "</think>",
    "<thi",
    "nk>",
    "</",
    b"\xc3",
    b"\xa9",
]


@settings(max_examples=400, deadline=None)
@given(
    pieces=st.lists(st.sampled_from(PIECES), max_size=9),
    answers=st.lists(
        st.sampled_from(["a", "ab", "ba", "a b", "aab", "é", "think", "."]),
        min_size=1,
        max_size=3,
    ),
)
def test_alignment_is_defined_and_tight(pieces, answers):
    """Defined exactly where grading finds an answer and cut as tightly as can be."""
    said = Pieces(*pieces)
    answers = tuple(answers)
    # without one thought, its ends may meet to begin another
    assume("<think>" not in strip_thinking(said.decode(said.ids)))
    found = align(said.ids, right_of(answers), said.decode)
    assert (found is not None) == grade(said.decode(said.ids), answers, "english")[
        "contains"
    ]
    if found is None:
        return
    lead_in, answer = found
    end = len(lead_in) + len(answer)
    assert said.ids[:end] == lead_in + answer
    assert answer
    # where no thought is, the rule is one line of Python for either end
    if "<" not in said.decode(said.ids):

        def contains(start, end):
            return grade(said.decode(said.ids[start:end]), answers, "english")[
                "contains"
            ]

        assert end == 1 + max(k for k in range(len(said.ids)) if not contains(0, k))
        assert len(lead_in) == max(j for j in range(end) if contains(j, end))


@pytest.mark.parametrize("seed", range(3))
def test_a_base_aligns_the_answer_that_was_posed_again(questions, seed):
    """Its greedy answer is cut at 2 tokens, and posed again once for all probes."""
    probes = ("greedy", "rank", "aligned_rank")
    long = CONFIG.model_copy(update={"probes": probes})
    again = {"max_new_tokens": 2, "recheck_cut": True, "recheck_limit": 8}
    sent, noting = letters.noted(letter_model().answer)
    short = long.model_copy(update=again)
    found = run(noting, questions, short, reorder_seed=seed, room=3)
    assert found == run(letter_model().answer, questions, long)
    asked = [each for each in sent if getattr(each, "max_tokens", 0) == 8]
    assert len(asked) == len({each.prompt_ids for each in asked}) > 0
