"""What the comparison with the torch engine finds, on engines without a model."""

import math
import random
import re

import pytest
from msgspec.structs import replace

from evaluator.engine.base import Generate
from evaluator.engine.comparisons import DisagreementError
from evaluator.engine.tolerances import RANKS
from tests.gpu.agree import LARGE_APART, cases_of, compare, exceeded
from tests.support.doctor import ScriptedEngine

CASES = cases_of(16, 60, frozenset({0}))
DRAW = random.Random(0)


def noise(request, answer):
    """Tokens of no model, as graphs with a wrong schedule gave."""
    tokens = tuple(DRAW.randrange(1, 16) for _ in answer.token_ids)
    return (
        replace(answer, token_ids=tokens) if isinstance(request, Generate) else answer
    )


def unlikely(request, answer):
    return replace(answer, logprobs=tuple(value - 2 for value in answer.logprobs))


def unranked(request, answer):
    return replace(answer, ranks=tuple(9 * rank for rank in answer.ranks))


def not_numbers(request, answer):
    return replace(answer, logprobs=(math.nan,) * len(answer.logprobs))


@pytest.mark.parametrize(
    ("bend", "kinds"),
    [
        (None, set()),
        (noise, {"greedy", "greedy ranks", "samples"}),
        (unlikely, {"scores", "greedy"}),
        (unranked, {"ranks"}),
        (not_numbers, {"scores", "greedy"}),
    ],
)
def test_agree_names_what_differs(bend, kinds):
    distances = compare(ScriptedEngine(bend), ScriptedEngine(), CASES)
    found = exceeded(
        distances, LARGE_APART["half, float32 logits"], RANKS["half, float32 logits"]
    )
    assert {re.split(r" [\dn]", problem)[0] for problem in found} - {
        "beams"
    } == kinds, found


def test_agree_needs_every_answer():
    def fails(request, answer):
        return (
            replace(answer, status="engine_error", error="out of memory")
            if request is CASES.samples[3]
            else answer
        )

    with pytest.raises(DisagreementError, match="sample-3: out of memory"):
        compare(ScriptedEngine(fails), ScriptedEngine(), CASES)
