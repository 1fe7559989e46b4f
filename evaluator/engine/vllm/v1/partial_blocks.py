"""Sharing the prompt's last, partly filled cache block: a connector for vLLM's scheduler and worker.

vLLM's prefix cache holds whole blocks. So requests that share a prompt each compute its last, partly filled block
again: every sample, every candidate and every branch of a beam search. A CPU's smallest block has 32 tokens, so this
costs 16 tokens on average. Measured on the bundled model: 50 thousand prompt tokens, only 11 thousand distinct ones.

Here a new request takes over the part of that block that another request has computed. The whole block is copied into
the request's own block before the forward pass. Only the tokens after the common ones are computed.

The scheduler lets a connector report how many tokens of a request it can load from another place. For this connector,
the other place is another block of the same cache.

Why this is safe: the last request of a block determines its content, even after that request has ended. We record its
tokens, how many of these earlier steps have computed, and the hash of everything before. Every allocation passes
through `update_state_after_alloc` or `build_connector_meta`, so overwritten content is never used. Copies are read
before anything is written in the same step. With new weights, `reset_cache` forgets everything.

Replaces nothing: vLLM loads it as a KV connector. Subclasses `KVConnectorBase_V1` and `KVConnectorMetadata`. Reads of a
`Request` its tokens, `block_hashes`, `num_computed_tokens`, `num_preemptions` and `skip_reading_prefix_cache`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)

from evaluator.engine.vllm.prompt_scores import cacheable_tokens

_REMEMBERED = 4096  # the latest blocks with known content: requests share a block soon after it is filled, or never
_WORTH_WAITING = 8  # tokens: for fewer, a request is not put off by a step
_NOTHING, _PUT_OFF = (0, False), (None, False)  # vLLM computes all of a request, or waits a step
_Place = tuple[int, bytes | None]  # a block's number in its sequence, and the hash of all tokens before it


@dataclass(frozen=True, slots=True)
class _Holder:
    """A request and the block that it was given for some place."""

    request: Any  # vLLM's Request
    block: int
    preemptions: int  # how often the request had been preempted when it got the block

    @property
    def is_current(self) -> bool:
        """False: it was preempted since, and counts its tokens anew, in other blocks."""
        return bool(self.request.num_preemptions == self.preemptions)

    def common(self, start: int, wanted: list[int]) -> int:
        """How many of the tokens `wanted` from position `start` on it has as well."""
        return _common(self.request.all_token_ids[start : start + len(wanted)], wanted)


@dataclass
class Copies(KVConnectorMetadata):  # type: ignore[misc]  # vllm is not followed by mypy
    """The copies before the next forward pass: block numbers, pairwise."""

    sources: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)


class PartialBlocks(KVConnectorBase_V1):  # type: ignore[misc]
    """Both ends: the scheduler's instance decides about copies, the worker's instance makes them."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._caches: list[torch.Tensor] = []  # one per layer, [blocks, ...]
        groups = kv_cache_config.kv_cache_groups
        self._block_size: int = groups[0].kv_cache_spec.block_size
        self._usable = len(groups) == 1  # layers with block tables of their own: nothing is shared
        self.reset_cache()

    def reset_cache(self) -> bool:
        self._held: dict[_Place, dict[str, _Holder]] = {}  # -> request id -> holder
        self._owner: dict[int, tuple[_Place, str]] = {}  # of a block, since its last allocation
        self._running: dict[str, tuple[Any, int]] = {}  # request id -> (request, its blocks)
        self._now: set[str] = set()  # requests that begin in the step being scheduled
        self._found: dict[str, tuple[int, int | None]] = {}  # request id -> (whole cached blocks, block to copy)
        self._copies = Copies()
        return True

    # ---- the scheduler's end ----------------------------------------------------------------------------------

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """How many tokens after the first `num_computed_tokens`, which end with a block, another block has.

        _PUT_OFF: the step that is being scheduled now computes tokens that the request can use. The second value is
        vLLM's "loaded asynchronously": never.
        """
        number = num_computed_tokens // self._block_size
        self._found[request.request_id] = (number, None)
        most = min(request.num_tokens - 1, cacheable_tokens(request))
        wanted = list(request.all_token_ids[num_computed_tokens:most])[: self._block_size]
        # A request that computes its whole prompt takes nothing: rows that are not computed would have no scores.
        if not self._usable or not wanted or request.skip_reading_prefix_cache:
            return _NOTHING
        settled, beginning = self._holders(request, number)
        ready, block = _best_block(settled, num_computed_tokens, wanted)
        coming = max((each.common(num_computed_tokens, wanted) for each in beginning), default=0)
        if coming >= ready + _WORTH_WAITING:
            return _PUT_OFF
        self._found[request.request_id] = (number, block)
        return ready, False

    def _holders(self, request: Any, number: int) -> tuple[list[_Holder], list[_Holder]]:
        """Other requests with a block for this place: those of earlier steps, and those that begin in this step. The
        blocks of the second group are not complete yet: this step fills them or copies into them."""
        held = self._held.get(self._place(request, number), {})
        others = {name: each for name, each in held.items() if name != request.request_id and each.is_current}
        settled = [each for name, each in others.items() if name not in self._now]
        return settled, [each for name, each in others.items() if name in self._now]

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        ids = blocks.get_block_ids()[0]
        number, source = self._found.pop(request.request_id)
        self._running[request.request_id] = (request, len(ids))
        self._now.add(request.request_id)
        if num_external_tokens and source is not None and source != ids[number]:
            self._copies.sources.append(source)
            self._copies.targets.append(ids[number])
        self._take(request, number, ids[number:])

    def build_connector_meta(self, scheduler_output: Any) -> Copies:
        again = scheduler_output.scheduled_cached_reqs
        for name, new_ids in zip(again.req_ids, again.new_block_ids, strict=True):
            if new_ids is not None and name not in again.resumed_req_ids:
                request, count = self._running[name]
                self._take(request, count, new_ids[0])
                self._running[name] = (request, count + len(new_ids[0]))
        self._now.clear()
        copies, self._copies = self._copies, Copies()
        return copies

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self._running.pop(request.request_id, None)
        self._found.pop(request.request_id, None)
        return False, None

    def _place(self, request: Any, number: int) -> _Place:
        return number, request.block_hashes[number - 1] if number else None

    def _take(self, request: Any, number: int, ids: Sequence[int]) -> None:
        """Record that the blocks `ids` now have the request's tokens, from its block `number` on."""
        for position, block in enumerate(ids, start=number):
            self._forget(block)
            place = self._place(request, position)
            self._held.setdefault(place, {})[request.request_id] = _Holder(request, block, request.num_preemptions)
            self._owner[block] = (place, request.request_id)
        while len(self._owner) > _REMEMBERED:
            self._forget(next(iter(self._owner)))

    def _forget(self, block: int) -> None:
        if block not in self._owner:
            return
        place, name = self._owner.pop(block)
        held = self._held.get(place, {})
        if name in held and held[name].block == block:
            del held[name]
            if not held:
                del self._held[place]

    # ---- the worker's end -------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self._caches = list(kv_caches.values())

    def start_load_kv(self, forward_context: Any, **_: Any) -> None:
        copies = self._get_connector_metadata()
        if copies.sources:
            device = self._caches[0].device
            sources = torch.tensor(copies.sources, device=device)
            targets = torch.tensor(copies.targets, device=device)
            for cache in self._caches:
                cache.index_copy_(0, targets, cache.index_select(0, sources))

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Copies are made at once."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **_: Any) -> None:
        """Nothing leaves the cache."""

    def wait_for_save(self) -> None:
        """Nothing leaves the cache."""


def _best_block(holders: list[_Holder], start: int, wanted: list[int]) -> tuple[int, int | None]:
    """How many of the tokens `wanted` the best block has now, and the first such block; (0, None) if none has any."""
    best, block = 0, None
    for each in holders:
        ready = min(each.common(start, wanted), each.request.num_computed_tokens - start)
        if ready > best:
            best, block = ready, each.block
    return best, block


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences begin with in common."""
    one = list(one)
    if one == other[: len(one)]:
        return len(one)
    return next(index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
