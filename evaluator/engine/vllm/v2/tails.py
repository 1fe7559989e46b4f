"""Sharing a prompt's last, partly filled cache block on the V2 model runner.

vLLM's prefix cache holds whole blocks. Each request of a shared context would compute the tokens after the last whole
block again: 7 on average with blocks of 16. But vLLM can take over a part of a block. It copies the block before the
forward pass and computes the tokens that follow. It looks for such parts only in Mamba models; here it gets them in all
models.

Why this is safe: the last request of a block determines its content. We record its tokens, how many of these earlier
steps have computed, and the hash of everything before. Every allocation passes through `remember`, and every block that
is allocated again passes through `forget`. Blocks that the same step fills are not used. vLLM keeps both blocks until
the copy is made. New weights forget all.

Replaces methods of a scheduler's `KVCacheManager` (`get_computed_blocks`, `allocate_slots`, `reset_prefix_cache`,
`take_kv_cache_block_copies`) and of its `BlockPool` (`get_new_blocks`). Reads `Scheduler.block_size`,
`KVCacheManager.enable_caching`, `.create_kv_cache_blocks` and `.get_block_ids`, and of a `Request` its tokens,
`block_hashes`, `num_computed_tokens`, `num_preemptions` and `skip_reading_prefix_cache`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from evaluator.engine.vllm.prompt_scores import cacheable_tokens

_REMEMBERED = 4096  # blocks, the latest: requests of one context follow each other within moments
_Place = tuple[int, bytes | None]  # a block's number in its sequence, and the hash of all tokens before it


@dataclass(frozen=True, slots=True)
class _Holder:
    """A request and the block that it was given for some place."""

    request: Any  # vLLM's Request
    block: Any  # vLLM's KVCacheBlock
    preemptions: int  # how often the request had been preempted when it got the block

    def ready(self, start: int, wanted: Sequence[int]) -> int:
        """How many of the tokens `wanted`, from position `start` on, earlier steps have computed in the block."""
        if self.request.num_preemptions != self.preemptions:  # it counts its tokens anew, in other blocks
            return 0
        own = list(self.request.all_token_ids[start : start + len(wanted)])
        same = next(
            (n for n, (a, b) in enumerate(zip(own, wanted, strict=False)) if a != b), min(len(own), len(wanted))
        )
        return min(same, int(self.request.num_computed_tokens) - start)


class Tails:
    """The blocks whose content is known."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._held: dict[_Place, dict[int, _Holder]] = {}  # -> block's id -> holder
        self._places: dict[int, _Place] = {}  # of a block, since its last allocation
        self._now: set[int] = set()  # blocks that were handed out for the step being scheduled

    def best(self, request: Any, tokens: int, most: int) -> tuple[int, Any]:
        """How many tokens after the first `tokens`, which end with a block, some block has; and that block.

        The request may take over at most its first `most` tokens. (0, None): no block has any.
        """
        place = self._place(request, tokens // self._block_size)
        wanted = list(request.all_token_ids[tokens : min(most, tokens + self._block_size - 1)])
        best, block = 0, None
        for name, holder in self._held.get(place, {}).items() if place and wanted else ():
            if name in self._now:  # it is being filled, or copied to, and copies are made all at once
                continue
            ready = holder.ready(tokens, wanted)
            if ready > best:
                best, block = ready, holder.block
            if best == len(wanted):
                break
        return best, block

    def remember(self, request: Any, first: int, blocks: Iterable[Any]) -> None:
        """`blocks` now hold the request's tokens from its block number `first` on."""
        for number, block in enumerate(blocks, start=first):
            place = self._place(request, number)
            if place is not None:
                self._held.setdefault(place, {})[block.block_id] = _Holder(request, block, request.num_preemptions)
                self._places[block.block_id] = place
                self._now.add(block.block_id)
        while len(self._places) > _REMEMBERED:
            self.forget(next(iter(self._places)))

    def forget(self, block: int) -> None:
        """Forget a block whose content is about to change."""
        place = self._places.pop(block, None)
        if place is not None:
            del self._held[place][block]
            if not self._held[place]:
                del self._held[place]

    def end_step(self) -> None:
        """A step has been scheduled."""
        self._now.clear()

    def clear(self) -> None:
        self._held.clear()
        self._places.clear()

    def _place(self, request: Any, number: int) -> _Place | None:
        """None: the tokens before that block are not all known yet."""
        if number > len(request.block_hashes):
            return None
        return number, request.block_hashes[number - 1] if number else None


def share_tails(scheduler: Any) -> None:
    """Make a vLLM scheduler take over parts of blocks. Its model must have a single kind of full attention."""
    manager, pool = scheduler.kv_cache_manager, scheduler.kv_cache_manager.block_pool
    size: int = scheduler.block_size
    tails = Tails(size)
    lookup, allocate = manager.get_computed_blocks, manager.allocate_slots
    take, reset, copies = pool.get_new_blocks, manager.reset_prefix_cache, manager.take_kv_cache_block_copies

    def get_computed_blocks(request: Any, *limit: Any) -> Any:
        blocks, tokens, *rest = lookup(request, *limit)
        if manager.enable_caching and not request.skip_reading_prefix_cache and tokens % size == 0:
            more, block = tails.best(request, tokens, min([cacheable_tokens(request), *filter(None, limit)]))
            if more:
                blocks = manager.create_kv_cache_blocks(([*blocks.blocks[0], block],))
                tokens += more
        return (blocks, tokens, *rest)

    def allocate_slots(request: Any, *arguments: Any, **named: Any) -> Any:
        new = allocate(request, *arguments, **named)
        if new is not None and new.blocks[0]:
            every = manager.get_block_ids(request.request_id)[0]
            tails.remember(request, len(every) - len(new.blocks[0]), new.blocks[0])
        return new

    def get_new_blocks(count: int) -> Any:
        blocks = take(count)
        for block in blocks:
            tails.forget(block.block_id)
        return blocks

    def reset_prefix_cache(*arguments: Any, **named: Any) -> Any:
        tails.clear()
        return reset(*arguments, **named)

    def take_kv_cache_block_copies() -> Any:
        tails.end_step()
        return copies()

    manager.take_kv_cache_block_copies = take_kv_cache_block_copies
    manager.get_computed_blocks, manager.allocate_slots = get_computed_blocks, allocate_slots
    pool.get_new_blocks, manager.reset_prefix_cache = get_new_blocks, reset_prefix_cache
