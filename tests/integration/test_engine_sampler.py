"""The sampler of vLLM's V1 runner, driven as vLLM drives it, against the long way of
doing the same."""

import pytest
import torch

from evaluator.engine.vllm.prompt_scores import FORCED
from tests.support.engines import needs_vllm, opened

pytestmark = needs_vllm


@pytest.fixture(scope="module")
def ours():
    from evaluator.engine.vllm.v1 import sampler

    return sampler


class Rows:
    """Follows vLLM's rows."""

    def __init__(self, ours):
        from vllm.v1.sample.logits_processor import BatchUpdate
        from vllm.v1.sample.logits_processor.interface import MoveDirectionality

        self.orders = ours.Orders(None, torch.device("cpu"), False)
        self._update = BatchUpdate
        self.swap, self.one_way = (
            MoveDirectionality.SWAP,
            MoveDirectionality.UNIDIRECTIONAL,
        )

    def update(self, added=(), removed=(), moved=()):
        self.orders.update_state(
            self._update(8, list(removed), list(added), list(moved))
        )

    def forced(self):
        """Which token each row is told to generate; None: it is free."""
        return {row: order.token for row, order in sorted(self.orders.rows.items())}


def row(number, output=(), *tokens):
    from vllm import SamplingParams

    arguments = {FORCED: list(tokens)} if tokens else None
    return number, SamplingParams(extra_args=arguments), None, output


def test_forced_tokens_follow_output(ours):
    rows, output = Rows(ours), []
    rows.update(added=[row(2, output, 7, 8, 9), row(0)])
    assert rows.forced() == {0: None, 2: 7}
    output += [7, 8]
    rows.orders.update_state(None)
    assert rows.forced()[2] == 9
    output.append(9)
    # asked once more after the last: the request is about to end
    assert rows.forced()[2] == 9


def test_forced_tokens_follow_rows(ours):
    rows = Rows(ours)
    rows.update(added=[row(number, (), 10 + number) for number in range(4)])
    rows.update(moved=[(3, 0, rows.swap)])
    assert rows.forced() == {0: 13, 1: 11, 2: 12, 3: 10}
    rows.update(removed=[1], moved=[(3, 1, rows.one_way)])
    assert rows.forced() == {0: 13, 1: 10, 2: 12}
    # an empty row moves onto a forced one
    rows.update(moved=[(5, 0, rows.one_way)])
    assert rows.forced() == {1: 10, 2: 12}
    rows.update(added=[row(1)])  # a free request takes a forced one's row
    rows.update(moved=[(2, 6, rows.swap)])
    assert rows.forced() == {1: None, 6: 12}


def random_logits(rows, vocabulary, scale=3.0):
    draw = torch.Generator().manual_seed(1)
    return torch.randn(rows, vocabulary, generator=draw) * scale


# all at once; in blocks; with a last block to fill up
@pytest.mark.parametrize("vocabulary", [300, 5000, 20_011])
def test_tables_equal_full_softmax(ours, vocabulary):
    from evaluator.engine.vllm.step_logprobs import StepTable

    logits = random_logits(8, vocabulary)
    logits[3] += 1e4  # large logits lose no digit
    # places beyond what a row lists are not among its likeliest
    logits[[4, 6]] -= 100.0
    likeliest = int(logits[7].argmax())
    forced = {1: 5, 4: vocabulary - 1, 7: likeliest}
    tops = [0, 1, 0, 7, 1, 12, 1, 1]
    orders = [
        ours.Order(forced=[forced[line]] if line in forced else None, top=top)
        for line, top in enumerate(tops)
    ]
    orders[2] = ours.Order(temperature=1.0, top_p=0.9, reported=False)
    before = logits.clone()
    tokens, tables = ours.sample(logits, orders, {})
    assert torch.equal(logits, before)
    assert tables.logprobs.shape == (8, 13)
    expected = logits.double().log_softmax(1)
    table = StepTable.of(tables.tolists())
    for line, top in enumerate(tops):
        if line == 2:
            continue
        own = forced.get(line, int(logits[line].argmax()))
        assert int(tokens[line]) == own
        best = expected[line].topk(top)
        ids, logprobs = opened(table.slice_request(line, 1), top)
        assert ids == (own, *best.indices.tolist())
        assert logprobs == pytest.approx(
            [float(expected[line, own]), *best.values.tolist()], abs=2e-6, rel=2e-7
        )
        if line in forced:
            rank = 1 + int((logits[line] > logits[line, own]).sum())
            assert table.ranks[line] == rank


def test_ties_take_lowest_id(ours):
    """And ranks are strict."""
    logits = torch.zeros(3, 5000)
    logits[:, [4000, 130, 4999]] = 2.0
    scores = [ours.Order(forced=[token], top=1) for token in (4999, 7)]
    tokens, tables = ours.sample(logits, [ours.Order(), *scores], {})
    assert tokens.tolist() == [130, 4999, 7]
    assert tables.selected_token_ranks.tolist()[1:] == [1, 4]
    assert tables.logprob_token_ids[1:, 1].tolist() == [130, 130]


def test_ties_belong_to_nucleus(ours):
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


@pytest.mark.parametrize("scale", [0.3, 4.0, 30.0])
@pytest.mark.parametrize("vocabulary", [300, 9000])
def test_draw_inverts_nucleus(ours, scale, vocabulary):
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


def test_temperature_flattens_a_row(ours):
    logits = random_logits(1, 300)
    uniform = torch.rand(1, generator=torch.Generator().manual_seed(4))
    order = ours.Order(temperature=4.0, reported=False)
    hot, _ = ours.sample(logits, [order], {0: torch.Generator().manual_seed(4)})
    assert int(hot) == int(ours.draw(logits / 4.0, torch.tensor([1.0]), uniform))


def test_infinite_row_ends_no_others_draw(ours):
    logits, top_p = random_logits(3, 9000), torch.tensor([0.9, 0.9, 1.0])
    uniform = torch.full((3,), 0.3)
    expected = ours.draw(logits, top_p, uniform)
    logits[1] = float("nan")
    drawn = ours.draw(logits, top_p, uniform)
    assert drawn[[0, 2]].tolist() == expected[[0, 2]].tolist()
    assert 0 <= int(drawn[1]) < 9000
