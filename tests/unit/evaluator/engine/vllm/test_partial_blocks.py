"""Which parts of cache blocks are taken over, with requests and blocks that stand in
for vLLM's."""

from types import SimpleNamespace

from evaluator.engine.vllm.partial_blocks import KnownBlocks

SIZE = 4


def request(tokens, computed, preemptions=0):
    hashes = [
        bytes(str(tokens[: end + SIZE]), "ascii")
        for end in range(0, len(tokens) - SIZE + 1, SIZE)
    ]
    counts = {"num_computed_tokens": computed, "num_preemptions": preemptions}
    return SimpleNamespace(all_token_ids=tokens, block_hashes=hashes, **counts)


def known(first, *blocks):
    made = KnownBlocks(SIZE)
    made.remember(first, 0, blocks)
    made.end_step()
    return made


def found(blocks, wanted, tokens=SIZE, most=99):
    return blocks.best(request(wanted, 0), tokens, most)[:2]


TOKENS = [1, 2, 3, 4, 5, 6, 7]


def test_only_computed_tokens_are_shared():
    blocks = known(request(TOKENS, 5), 10, 11)
    assert found(blocks, TOKENS) == (1, 11)
    blocks.remember(request([1, 2, 3, 4, 5, 6, 8], 7), 0, [20, 21])
    # The other is being filled in the same step.
    assert blocks.best(request([1, 2, 3, 4, 5, 6, 8], 0), SIZE, 99) == (1, 11, 3)
    blocks.end_step()
    assert found(blocks, [1, 2, 3, 4, 5, 6, 8]) == (3, 21)


def test_changed_blocks_are_forgotten():
    holder = request(TOKENS[:6], 9)  # steps are scheduled ahead of the tokens
    blocks = known(holder, 10, 11)
    blocks.forget(11)
    assert found(blocks, TOKENS) == (0, None)
    blocks.remember(holder, 1, [12])
    blocks.end_step()
    assert found(blocks, TOKENS) == (2, 12)
    holder.num_preemptions = 1  # it counts its tokens anew, in other blocks
    assert found(blocks, TOKENS) == (0, None)
    holder.num_preemptions = 0
    blocks.clear()
    assert found(blocks, TOKENS) == (0, None)
