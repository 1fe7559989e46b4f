"""Which parts of cache blocks are taken over, with requests and blocks that stand in
for vLLM's."""

from types import SimpleNamespace

import pytest

from evaluator.engine.vllm.partial_blocks import KnownBlocks
from tests.support.engines import needs_vllm

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


def test_known_blocks_share_common_beginnings():
    """Tokens that begin alike are taken over and others are not."""
    blocks = known(request([1, 2, 3, 4, 5, 6, 7], 7), 10, 11)
    assert found(blocks, [1, 2, 3, 4, 5, 6, 9, 9]) == (2, 11)
    assert found(blocks, [1, 2, 3, 4, 5, 6, 7, 8]) == (3, 11)
    assert found(blocks, [1, 2, 3, 4, 5, 6, 7, 8], most=5) == (1, 11)
    assert found(blocks, [1, 2, 3, 4, 9, 6]) == (0, None)
    # the tokens before the block differ
    assert found(blocks, [1, 2, 3, 9, 5, 6]) == (0, None)
    assert found(blocks, [1, 2, 9], tokens=0) == (2, 10)
    blocks = known(request([1, 2, 3, 4, 5, 6, 7], 5), 10, 11)
    assert found(blocks, [1, 2, 3, 4, 5, 6, 7]) == (1, 11)
    blocks.remember(request([1, 2, 3, 4, 5, 6, 8], 7), 0, [20, 21])
    # The other is being filled in the same step.
    assert blocks.best(request([1, 2, 3, 4, 5, 6, 8], 0), SIZE, 99) == (1, 11, 3)
    blocks.end_step()
    assert found(blocks, [1, 2, 3, 4, 5, 6, 8]) == (3, 21)
    holder = request([1, 2, 3, 4, 5, 6], 6)
    blocks = known(holder, 10, 11)
    blocks.forget(11)
    assert found(blocks, [1, 2, 3, 4, 5, 6]) == (0, None)
    blocks.remember(holder, 1, [12])
    blocks.end_step()
    assert found(blocks, [1, 2, 3, 4, 5, 6, 7]) == (2, 12)
    holder.num_preemptions = 1  # it counts its tokens anew, in other blocks
    assert found(blocks, [1, 2, 3, 4, 5, 6, 7]) == (0, None)
    holder.num_preemptions = 0
    blocks.clear()
    assert found(blocks, [1, 2, 3, 4, 5, 6, 7]) == (0, None)
    running = request([1, 2, 3, 4, 5, 6], 9)  # steps are scheduled ahead of the tokens
    blocks = known(running, 10, 11)
    blocks.remember(running, 2, [12])
    assert found(blocks, [1, 2, 3, 4, 5, 6, 7]) == (2, 11)


class TestConnector:
    pytestmark = needs_vllm

    @pytest.fixture
    def connector(self):
        from evaluator.engine.vllm.v1.partial_blocks import PartialBlocks

        made = object.__new__(PartialBlocks)
        made._block_size, made._usable = SIZE, True
        made.reset_cache()
        return made

    def begin(self, connector, name, tokens, *, whole=False):
        """`whole`: all prompt log-probabilities of the request are wanted, so no
        cache may be read."""
        each = request(tokens, len(tokens))
        each.request_id, each.num_tokens, each.skip_reading_prefix_cache = (
            name,
            len(tokens),
            whole,
        )
        each.sampling_params = SimpleNamespace(extra_args=None)
        matched = connector.get_num_new_matched_tokens(each, 0)
        blocks = SimpleNamespace(get_block_ids=lambda: ([len(connector._running)],))
        connector.update_state_after_alloc(each, blocks, matched[0])
        connector._known.end_step()
        return matched

    def test_only_cache_readers_take_blocks(self, connector):
        """Only a request that may read the cache takes over a block."""
        assert self.begin(connector, "first", [5, 6, 7]) == (0, False)
        assert self.begin(connector, "second", [5, 6, 8]) == (2, False)
        assert self.begin(
            connector, "prompt log-probabilities", [5, 6, 9], whole=True
        ) == (0, False)
        assert connector._copies.sources == [0]
        # what that one computed is shared
        assert self.begin(connector, "third", [5, 6, 9, 1]) == (3, False)
