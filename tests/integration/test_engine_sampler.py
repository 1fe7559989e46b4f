"""The sampler of vLLM's V1 runner, driven as vLLM drives it, against the long way of
doing the same."""

import pytest
import torch

from evaluator.engine.vllm.prompt_scores import FORCED
from tests.support.engines import needs_vllm, opened

pytestmark = needs_vllm


VOCABULARY = 300


@pytest.fixture(scope="module")
def ours():
    from evaluator.engine.vllm.v1 import sampler

    return sampler


@pytest.fixture(scope="module")
def moves():
    from vllm.v1.sample.logits_processor.interface import MoveDirectionality

    return MoveDirectionality


def update(orders, *, added=(), removed=(), moved=()):
    from vllm.v1.sample.logits_processor import BatchUpdate

    orders.update_state(
        BatchUpdate(
            batch_size=8, removed=list(removed), added=list(added), moved=list(moved)
        )
    )


def row(number, output, **arguments):
    from vllm import SamplingParams

    return (
        number,
        SamplingParams(temperature=0.0, extra_args=arguments or None),
        None,
        output,
    )


def forced(orders):
    """Which token each of eight rows is told to generate; None for a row without an
    order, "free" for a free one."""
    found = [orders.rows.get(number) for number in range(8)]
    return [
        None if order is None else "free" if order.token is None else order.token
        for order in found
    ]


def test_forced_tokens_follow_rows(ours, moves):
    """Forced tokens follow the output and rows through moves swaps and
    replacements."""
    orders, output = ours.Orders(None, torch.device("cpu"), False), []
    update(orders, added=[row(2, output, **{FORCED: [7, 8, 9]}), row(0, [])])
    assert forced(orders) == ["free", None, 7, None, None, None, None, None]
    output += [7, 8]
    orders.update_state(None)
    assert forced(orders)[2] == 9
    output.append(9)
    # asked once more after the last: the request is about to end
    assert forced(orders)[2] == 9
    orders = ours.Orders(None, torch.device("cpu"), False)
    update(orders, added=[row(n, [], **{FORCED: [10 + n]}) for n in range(4)])
    update(orders, moved=[(3, 0, moves.SWAP)])
    assert forced(orders)[:4] == [13, 11, 12, 10]
    update(orders, removed=[1], moved=[(3, 1, moves.UNIDIRECTIONAL)])
    assert forced(orders)[:4] == [13, 10, 12, None]
    # an empty row moves onto a forced one
    update(orders, moved=[(5, 0, moves.UNIDIRECTIONAL)])
    assert forced(orders)[:4] == [None, 10, 12, None]
    update(orders, added=[row(1, [])])  # a free request takes a forced one's row
    assert forced(orders)[:4] == [None, "free", 12, None]
    update(orders, moved=[(2, 6, moves.SWAP)])
    assert forced(orders) == [None, "free", None, None, None, None, 12, None]


def random_logits(rows, vocabulary, scale=3.0, seed=1):
    return (
        torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed))
        * scale
    )


def greedy(ours, top=0):
    return ours.Order(top=top)


def score(ours, token):
    return ours.Order(forced=[token], top=1)


def sampled(ours, top_p=0.9, temperature=1.0):
    return ours.Order(temperature=temperature, top_p=top_p, reported=False)


# all at once; in blocks; with a last block to fill up
@pytest.mark.parametrize("vocabulary", [300, 5000, 20_011])
def test_tables_equal_full_softmax(ours, vocabulary):
    """Tokens log probabilities ranks and top lists are those of a full softmax."""
    from evaluator.engine.vllm.step_logprobs import StepTable

    logits = random_logits(9, vocabulary)
    logits[3] += 1e4  # large logits lose no digit
    # places beyond what a row lists are not among its likeliest
    logits[[4, 6]] -= 100.0
    orders = [
        greedy(ours),
        score(ours, 5),
        sampled(ours),
        greedy(ours, 7),
        score(ours, vocabulary - 1),
    ]
    orders += [
        greedy(ours, 12),
        greedy(ours, 1),
        sampled(ours),
        score(ours, int(logits[8].argmax())),
    ]
    before = logits.clone()
    tokens, tables = ours.sample(logits, orders, {})
    assert torch.equal(logits, before)
    expected = logits.double().log_softmax(1)
    assert tables.logprobs.shape == (9, 13)
    table = StepTable.of(tables.tolists())
    for line, order in enumerate(orders):
        if order.temperature:
            continue
        own = int(tokens[line])
        assert own == (
            int(logits[line].argmax()) if order.token is None else order.token
        )
        assert int(tables.logprob_token_ids[line, 0]) == own
        assert float(tables.logprobs[line, 0]) == pytest.approx(
            float(expected[line, own]), abs=2e-6, rel=2e-7
        )
        if order.forced is not None:
            assert int(tables.selected_token_ranks[line]) == 1 + int(
                (logits[line] > logits[line, own]).sum()
            )
        best = expected[line].topk(order.top)
        assert (
            tables.logprob_token_ids[line, 1 : order.top + 1].tolist()
            == best.indices.tolist()
        )
        assert opened(table.slice_request(line, 1), order.top)[0] == (
            own,
            *best.indices.tolist(),
        )
        assert torch.allclose(
            tables.logprobs[line, 1 : order.top + 1].double(),
            best.values,
            atol=2e-6,
            rtol=2e-7,
        )


def test_ties_take_lowest_id(ours):
    """Of equal tokens the lowest id is greedy and the rank is strict."""
    logits = torch.zeros(3, 5000)
    logits[:, [4000, 130, 4999]] = 2.0
    tokens, tables = ours.sample(
        logits, [greedy(ours), score(ours, 4999), score(ours, 7)], {}
    )
    assert tokens.tolist() == [130, 4999, 7]
    assert tables.selected_token_ranks.tolist()[1:] == [1, 4]
    assert tables.logprob_token_ids[1:, 1].tolist() == [130, 130]
    # Tokens that tie with the last of the nucleus belong to it.
    logits = torch.full((1, 9000), -5.0)
    logits[0, 1000:1100] = 2.0
    drawn = {
        int(ours.draw(logits, torch.tensor([0.3]), torch.tensor([uniform])))
        for uniform in torch.linspace(0, 0.999, 300)
    }
    assert drawn == set(range(1000, 1100))


def by_sorting(logits, top_p):
    """The nucleus of one row, the long way: probabilities by id, zero outside."""
    probability = logits.double().softmax(-1)
    order = probability.argsort(descending=True)
    before = probability[order].cumsum(-1) - probability[order]
    lowest = probability[order[before < top_p]].min()
    return torch.where(probability >= lowest, probability, 0.0)


@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("vocabulary", [300, 9000])
def test_draw_inverts_nucleus(ours, scale, vocabulary):
    """A draw is the inverse of the nucleus distribution."""
    logits = random_logits(6, vocabulary, scale)
    top_p = torch.tensor([0.1, 0.5, 0.9, 0.95, 0.999, 1.0])
    # the last one is the largest variate
    for uniform in (0.0, 0.2, 0.5, 0.77, 1.0 - 2**-24):
        tokens = ours.draw(logits, top_p, torch.full((6,), uniform))
        for line, token, p in zip(logits, tokens.tolist(), top_p.tolist(), strict=True):
            weight = by_sorting(line, p)
            cumulated = weight.cumsum(0) / weight.sum()
            # The drawn token's interval of the distribution function holds the variate,
            # to float32's rounding.
            assert weight[token] > 0 or p > 0.99
            assert cumulated[token] >= uniform - 1e-4
            assert cumulated[token] - weight[token] / weight.sum() <= uniform + 1e-4


def test_temperature_and_infinite_rows(ours):
    """The temperature flattens a row and one that is not finite ends no other row's
    draw."""
    logits = random_logits(1, VOCABULARY)
    uniform = torch.rand(1, generator=torch.Generator().manual_seed(4))
    hot, _ = ours.sample(
        logits, [sampled(ours, 1.0, 4.0)], {0: torch.Generator().manual_seed(4)}
    )
    assert int(hot) == int(ours.draw(logits / 4.0, torch.tensor([1.0]), uniform))
    logits = random_logits(3, 9000)
    logits[1] = float("nan")
    top_p, uniform = torch.tensor([0.9, 0.9, 1.0]), torch.tensor([0.3, 0.3, 0.3])
    expected = ours.draw(logits[[0, 2]], top_p[[0, 2]], uniform[[0, 2]])
    drawn = ours.draw(logits, top_p, uniform)
    assert drawn[[0, 2]].tolist() == expected.tolist()
    assert 0 <= int(drawn[1]) < 9000
