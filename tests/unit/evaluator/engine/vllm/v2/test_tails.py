"""Which parts of blocks are taken over, with requests and blocks that stand in for vLLM's."""

from types import SimpleNamespace

from evaluator.engine.vllm.v2.tails import Tails

SIZE = 4


def request(tokens, computed, preemptions=0):
    hashes = [bytes(str(tokens[: end + SIZE]), "ascii") for end in range(0, len(tokens) - SIZE + 1, SIZE)]
    return SimpleNamespace(
        all_token_ids=tokens, num_computed_tokens=computed, num_preemptions=preemptions, block_hashes=hashes
    )


def blocks(*ids):
    return [SimpleNamespace(block_id=each) for each in ids]


def known(first, *ids):
    tails = Tails(SIZE)
    tails.remember(first, 0, blocks(*ids))
    tails.end_step()
    return tails


def found(tails, wanted, tokens=SIZE, most=99):
    count, block = tails.best(request(wanted, 0), tokens, most)
    return count, block and block.block_id


def test_tokens_that_begin_alike_are_taken_over():
    tails = known(request([1, 2, 3, 4, 5, 6, 7], 7), 10, 11)
    assert found(tails, [1, 2, 3, 4, 5, 6, 9, 9]) == (2, 11)
    assert found(tails, [1, 2, 3, 4, 5, 6, 7, 8]) == (3, 11)
    assert found(tails, [1, 2, 3, 4, 5, 6, 7, 8], most=5) == (1, 11)
    assert found(tails, [1, 2, 3, 4, 9, 6]) == (0, None)
    assert found(tails, [1, 2, 3, 9, 5, 6]) == (0, None)  # the tokens before the block differ
    assert found(tails, [1, 2, 9], tokens=0) == (2, 10)


def test_only_what_earlier_steps_have_computed():
    tails = known(request([1, 2, 3, 4, 5, 6, 7], 5), 10, 11)
    assert found(tails, [1, 2, 3, 4, 5, 6, 7]) == (1, 11)
    tails.remember(request([1, 2, 3, 4, 5, 6, 8], 7), 0, blocks(20, 21))
    assert found(tails, [1, 2, 3, 4, 5, 6, 8]) == (1, 11)  # the other is being filled in the same step
    tails.end_step()
    assert found(tails, [1, 2, 3, 4, 5, 6, 8]) == (3, 21)


def test_a_block_that_holds_something_else_is_not_taken():
    holder = request([1, 2, 3, 4, 5, 6], 6)
    tails = known(holder, 10, 11)
    tails.forget(11)
    assert found(tails, [1, 2, 3, 4, 5, 6]) == (0, None)
    tails.remember(holder, 1, blocks(12))
    tails.end_step()
    assert found(tails, [1, 2, 3, 4, 5, 6, 7]) == (2, 12)
    holder.num_preemptions = 1  # it counts its tokens anew, in other blocks
    assert found(tails, [1, 2, 3, 4, 5, 6, 7]) == (0, None)
    holder.num_preemptions = 0
    tails.clear()
    assert found(tails, [1, 2, 3, 4, 5, 6, 7]) == (0, None)


def test_a_block_after_tokens_that_are_not_known_yet_is_passed_over():
    running = request([1, 2, 3, 4, 5, 6], 9)  # steps are scheduled ahead of the tokens
    tails = known(running, 10, 11)
    tails.remember(running, 2, blocks(12))
    assert found(tails, [1, 2, 3, 4, 5, 6, 7]) == (2, 11)
