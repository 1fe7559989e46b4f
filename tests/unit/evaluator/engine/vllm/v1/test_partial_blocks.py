"""Which requests take over what another has computed of a partly filled cache block."""

from types import SimpleNamespace

import pytest

from tests.support.engines import needs_vllm

pytestmark = needs_vllm


@pytest.fixture
def connector():
    from evaluator.engine.vllm.v1.partial_blocks import PartialBlocks

    made = object.__new__(PartialBlocks)
    made._block_size, made._usable = 4, True
    made.reset_cache()
    return made


def request(name, tokens, *, whole=False):
    """As vLLM's scheduler has it; `whole`: all its prompt log-probabilities are wanted, so no cache may be read."""
    return SimpleNamespace(
        request_id=name,
        all_token_ids=tokens,
        num_tokens=len(tokens),
        num_computed_tokens=len(tokens),
        num_preemptions=0,
        block_hashes=[],
        sampling_params=SimpleNamespace(extra_args=None),
        skip_reading_prefix_cache=whole,
    )


def begin(connector, each):
    matched = connector.get_num_new_matched_tokens(each, 0)
    blocks = SimpleNamespace(get_block_ids=lambda: ([len(connector._owner)],))
    connector.update_state_after_alloc(each, blocks, matched[0])
    connector._now.clear()  # the step is over
    return matched


def test_only_a_request_that_may_read_the_cache_takes_over_a_block(connector):
    assert begin(connector, request("first", [5, 6, 7])) == (0, False)
    assert begin(connector, request("second", [5, 6, 8])) == (2, False)
    assert begin(connector, request("prompt log-probabilities", [5, 6, 9], whole=True)) == (0, False)
    assert connector._copies.sources == [0]
    assert begin(connector, request("third", [5, 6, 9, 1])) == (3, False)  # what that one computed is shared
