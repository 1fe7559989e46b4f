"""The logits processors of vLLM's V1 runner, driven as vLLM drives them."""

from __future__ import annotations

import pytest
import torch

from tests.support.engines import needs_vllm

pytestmark = needs_vllm


VOCABULARY = 300


@pytest.fixture(scope="module")
def processors():
    from evaluator.engine.vllm import processors

    return processors


@pytest.fixture(scope="module")
def moves():
    from vllm.v1.sample.logits_processor.interface import MoveDirectionality

    return MoveDirectionality


def update(processor, *, added=(), removed=(), moved=()):
    from vllm.v1.sample.logits_processor import BatchUpdate

    processor.update_state(BatchUpdate(batch_size=8, removed=list(removed), added=list(added), moved=list(moved)))


def row(number, output, **arguments):
    from vllm import SamplingParams

    return (number, SamplingParams(extra_args=arguments or None), None, output)


def forced(processor):
    """Which token each of eight rows would greedily generate; None for an untouched row."""
    logits = processor.apply(torch.zeros(8, VOCABULARY))
    assert torch.isfinite(logits).all()
    return [int(line.argmax()) if line.any() else None for line in logits]


def test_forced_tokens_follow_the_output(processors):
    processor, output = processors.ForcedTokens(None, torch.device("cpu"), False), []
    update(processor, added=[row(2, output, **{processors.FORCED: [7, 8, 9]}), row(0, [])])
    assert forced(processor) == [None, None, 7, None, None, None, None, None]
    output += [7, 8]
    processor.update_state(None)
    assert forced(processor)[2] == 9
    output.append(9)
    assert forced(processor)[2] == 9  # asked once more after the last: the request is about to end
    assert not processor.is_argmax_invariant()


def test_rows_are_followed_through_moves_swaps_and_replacements(processors, moves):
    processor = processors.ForcedTokens(None, torch.device("cpu"), False)
    update(processor, added=[row(n, [], **{processors.FORCED: [10 + n]}) for n in range(4)])
    update(processor, moved=[(3, 0, moves.SWAP)])
    assert forced(processor)[:4] == [13, 11, 12, 10]
    update(processor, removed=[1], moved=[(3, 1, moves.UNIDIRECTIONAL)])
    assert forced(processor)[:4] == [13, 10, 12, None]
    update(processor, moved=[(5, 0, moves.UNIDIRECTIONAL)])  # an unforced row moves onto a forced one
    assert forced(processor)[:4] == [None, 10, 12, None]
    update(processor, added=[row(1, [])])  # an unforced request takes a forced one's row
    assert forced(processor)[:4] == [None, None, 12, None]
    update(processor, moved=[(2, 6, moves.SWAP)])
    assert forced(processor) == [None, None, None, None, None, None, 12, None]


def by_sorting(logits, top_p):
    """The nucleus of one row, the long way."""
    order = logits.argsort(descending=True)
    probability = logits.softmax(-1)[order].double()
    before = probability.cumsum(-1) - probability
    return set(order[before < top_p].tolist())


@pytest.mark.parametrize("scale", [0.0001, 0.3, 1.0, 4.0, 30.0])
def test_the_nucleus_is_that_of_a_full_sort(processors, scale):
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(6, 3000, generator=generator) * scale
    top_p = torch.tensor([0.1, 0.5, 0.9, 0.95, 0.999, 0.9])
    floor = processors.nucleus_floor(logits, top_p)
    for line, lowest, p in zip(logits, floor, top_p, strict=True):
        kept = set((line >= lowest).nonzero()[:, 0].tolist())
        expected = by_sorting(line, float(p))
        assert len(kept ^ expected) <= (1 if scale > 0.01 else 30)  # float32 sums decide the last one


def test_the_nucleus_leaves_other_rows_alone(processors):
    processor = processors.Nucleus(None, torch.device("cpu"), False)
    update(processor, added=[row(1, [], **{processors.NUCLEUS: 0.5}), row(0, [])])
    logits = torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(2)) * 3
    changed = processor.apply(logits.clone())
    assert torch.equal(changed[[0, 2]], logits[[0, 2]])
    kept = torch.isfinite(changed[1])
    assert set(kept.nonzero()[:, 0].tolist()) == by_sorting(logits[1], 0.5)
    assert torch.equal(changed[1][kept], logits[1][kept])
    assert processor.is_argmax_invariant()


def test_tokens_that_tie_with_the_last_of_the_nucleus_belong_to_it(processors):
    logits = torch.full((1, VOCABULARY), -5.0)
    logits[0, 10:110] = 2.0
    assert float(processors.nucleus_floor(logits, torch.tensor([0.5]))) == 2.0
