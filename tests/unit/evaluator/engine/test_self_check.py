"""What an engine asks itself when it starts, what counts as a disagreement, and what
is remembered."""

import json
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from evaluator.engine import self_check
from evaluator.engine.base import NOT_NUMBERS, Response
from evaluator.engine.self_check import (
    TOLERANCES,
    Memory,
    disagreement,
    impossible,
    misranked,
    nonsense,
    questions,
)
from tests.support.fake import FakeLM

ALLOWED = TOLERANCES["float32"]
COMBINATION = {"device": "cpu", "dtype": "float32"}


@pytest.fixture
def asked():
    return questions(16, 400)


@pytest.fixture
def answers(asked):
    return [FakeLM().answer(request) for request in asked]


@pytest.fixture
def whole(asked, answers):
    found = []
    for request, answer in zip(asked, answers, strict=True):
        prefixes = [
            request.prompt_ids + request.continuation_ids[:n]
            for n in range(len(request.continuation_ids))
        ]
        rows = tuple(tuple(FakeLM().logprobs(prefix).tolist()) for prefix in prefixes)
        found.append(replace(answer, top_logprobs=rows))
    return found


def changed(answers, **fields):
    return [
        replace(each, **fields) if place == 2 else each
        for place, each in enumerate(answers)
    ]


def test_questions_fit_short_contexts(asked):
    """The questions are short and neighbours change places only where computations
    differ."""
    assert asked == questions(16, 400)
    assert len(asked) == 6
    assert (
        sum(len(each.prompt_ids) + len(each.continuation_ids) for each in asked) < 150
    )
    assert {len(each.continuation_ids) for each in asked} == {1, 5}
    assert all(
        0 <= token < 16
        for each in asked
        for token in (*each.prompt_ids, *each.continuation_ids)
    )
    # with room for the token after a prompt
    assert [len(each.prompt_ids) for each in questions(16, 16)] == [1, 1]
    row = (-1.0, -1.0005, -2.0, -2.0)
    whole = [
        Response(
            request_id="r",
            token_ids=(0,),
            logprobs=(-1.0,),
            ranks=(1,),
            top_logprobs=(row,),
        )
    ]
    second = [replace(whole[0], ranks=(2,))]
    assert misranked(second, whole, 1e-3) is None
    assert (
        misranked(second, whole, 0.0)
        == "a rank of 2 where whole distributions have 1 to 1"
    )
    tied = [
        replace(whole[0], token_ids=(2,), logprobs=(-2.0,), ranks=(rank,))
        for rank in (3, 4)
    ]
    # their logits may differ by less than a log-probability shows
    assert misranked(tied, tied, 0.0) is None


def test_disagreement_of_two_ways(asked, answers, whole):
    """Equal answers agree in any order and other or incomparable ones do not."""
    assert disagreement(answers, answers[::-1], whole, ALLOWED, asked) is None
    off = changed(answers, logprobs=tuple(value - 0.1 for value in answers[2].logprobs))
    assert (
        disagreement(off, answers, whole, ALLOWED, asked)
        == "forced scores differ from prompt log-probabilities by up to 0.1 nats per"
        " token (mean 0.0056; allowed are 0.001 and 0.0002)"
    )
    off = [
        replace(each, logprobs=tuple(v - 5e-4 for v in each.logprobs))
        for each in answers
    ]
    assert "allowed are" in disagreement(off, answers, whole, ALLOWED, asked)
    assert disagreement(off, answers, whole, TOLERANCES["half"], asked) is None
    assert (
        disagreement(answers[1:], answers, whole, ALLOWED, asked)
        == "a score was not answered"
    )
    other = "forced scores are of other tokens than those asked for"
    assert (
        disagreement(changed(answers, token_ids=(99,)), answers, whole, ALLOWED, asked)
        == other
    )
    assert (
        disagreement(
            changed(answers, logprobs=(-1.0, -1.0)), answers, whole, ALLOWED, asked
        )
        == other
    )
    failed = Response(request_id=asked[2].request_id, status="engine_error", error="no")
    one_way = [failed if place == 2 else each for place, each in enumerate(answers)]
    assert (
        disagreement(answers, one_way, whole, ALLOWED, asked)
        == "a score is answered by one way only (no)"
    )
    # it says nothing of either
    assert disagreement(one_way, one_way, whole, ALLOWED, asked) is None
    nan = changed(answers, logprobs=(float("nan"),) * len(answers[2].logprobs))
    assert disagreement(nan, answers, whole, ALLOWED, asked) is not None


def test_nonsense_is_named(answers, asked, whole):
    """What no engine can mean or the distribution rules out is named."""
    assert impossible(answers) is None
    assert (
        impossible(changed(answers, logprobs=(0.4,))) == "a log-probability of 0.4 nats"
    )
    assert impossible(changed(answers, logprobs=(1e-6,))) is None
    nan = replace(answers[2], logprobs=(float("nan"),), ranks=(1,)).or_error(16)
    assert nan.error == NOT_NUMBERS
    assert impossible([nan]) is None
    assert misranked(answers, [nan], 0.0) is None
    assert nonsense(answers, whole, ALLOWED, []) is None
    (rank,) = answers[2].ranks
    off = changed(answers, ranks=(rank + 1,))
    named = f"a rank of {rank + 1} where whole distributions have {rank} to {rank}"
    assert (
        nonsense(off, whole, ALLOWED, [])
        == f"its prompt log-probabilities hold {named}"
    )
    assert nonsense(answers, changed(whole, ranks=(rank + 1,)), ALLOWED, []).endswith(
        named
    )
    assert (
        disagreement(off, answers, whole, ALLOWED, asked)
        == f"forced scores have {named}"
    )


@pytest.mark.parametrize("rank", [0, 17, 8140])
def test_rank_outside_vocabulary_is_error(asked, answers, whole, rank):
    """A rank outside the vocabulary is an error and impossible."""
    refused = [each.or_error(16) for each in changed(answers, ranks=(rank,))]
    assert [each.status for each in refused].count("engine_error") == 1
    assert impossible(refused) == f"a rank of {rank} in a vocabulary of 16"
    assert nonsense(refused, whole, ALLOWED, []).startswith(
        f"its prompt log-probabilities hold a rank of {rank} in"
    )
    assert "answered by one way only (a rank of" in disagreement(
        refused, answers, whole, ALLOWED, asked
    )
    assert [each.or_error(16) for each in answers] == answers


def test_precisions():
    named = self_check.precision
    assert named("float32", "float32", on_gpu=False) == "float32"
    assert named("float32", "float32", on_gpu=True) == "float32 on a GPU"
    assert (
        named("bfloat16", "bfloat16", on_gpu=False)
        == named("float16", "float16", on_gpu=True)
        == "half"
    )
    assert named("bfloat16", "float32", on_gpu=True) == "half, float32 logits"


def test_passed_combination_is_remembered(tmp_path, monkeypatch):
    """What has passed is remembered of its combination in the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    memory = Memory()
    assert memory.text(COMBINATION) is None
    memory.add(COMBINATION)
    assert Memory().text(COMBINATION) is not None
    assert memory.text(COMBINATION | {"dtype": "bfloat16"}) is None
    (file,) = (tmp_path / "resurface" / "self-check").iterdir()
    assert json.loads(file.read_text()) == COMBINATION
    (tmp_path / "one.py").write_text("a")
    code_digest = self_check.code_digest
    first = code_digest(tmp_path)
    assert code_digest(tmp_path) == first
    (tmp_path / "one.py").write_text("b")
    assert code_digest(tmp_path) != first
    (tmp_path / "one.py").write_text("a")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "two.py").write_text("a")
    assert code_digest(tmp_path) != first


@pytest.mark.parametrize("home", ["a file", "none", "read-only"])
def test_unwritable_cache_is_no_error(tmp_path, monkeypatch, home):
    """A cache that cannot be written is no error."""
    if home == "read-only" and os.geteuid() == 0:
        pytest.skip("root may write everywhere")

    def nameless():
        raise RuntimeError("Could not determine home directory.")

    (tmp_path / "file").write_text("")
    monkeypatch.setenv(
        "XDG_CACHE_HOME",
        "" if home == "none" else str(tmp_path / ("file" if home == "a file" else "")),
    )
    monkeypatch.setattr(Path, "home", nameless)
    tmp_path.chmod(0o500 if home == "read-only" else 0o700)
    Memory().add(COMBINATION)
    assert Memory().text(COMBINATION) is None
