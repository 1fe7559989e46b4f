"""Cache blocks whose content is known, so that a request can take over a part of one.

vLLM's prefix cache holds whole blocks. So requests that share a prompt would each
compute its last, partly filled block again: every sample, every candidate and every
branch of a beam search. Here a request takes over what another request has computed of
such a block: the whole block is copied into the request's own block before the forward
pass, and only the tokens after the common ones are computed. `v1/partial_blocks.py` and
`v2/partial_blocks.py` make vLLM do that.

Why this is safe: the last request of a block determines its content, even after that
request has ended. We record its tokens, how many of these earlier steps have computed,
and the hash of everything before. Each runner's module passes every allocation to
`remember`, so overwritten content is never used. Copies are made before anything else
is written in the same step. New weights forget all.

Replaces nothing. Reads of a `Request` its tokens, `block_hashes`, `num_computed_tokens`
and `num_preemptions`.
"""

from collections.abc import Iterable
from typing import Any

# the latest blocks with known content: requests share a block soon after it is filled,
# or never
_REMEMBERED = 4096
# a block's number in its sequence, and the hash of all tokens before it
_Place = tuple[int, bytes | None]

# A request that was given a block (vLLM's Request), and how often it had been preempted
# then. A request that was preempted since counts its tokens anew, in other blocks.
_Holder = tuple[Any, int]


class KnownBlocks:
    """The blocks whose content is known, by their places in sequences of tokens."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._held: dict[_Place, dict[int, _Holder]] = {}  # -> block -> holder
        self._places: dict[int, _Place] = {}  # of a block, since its last allocation
        # blocks that were handed out for the step being scheduled
        self._now: set[int] = set()

    def best(self, request: Any, tokens: int, most: int) -> tuple[int, int | None, int]:
        """How many tokens after the first `tokens`, which end with a block, some block
        has; that block; and how many a block will have after the step that is being
        scheduled.

        The request may take over at most its first `most` tokens. (0, None, ...): no
        block has any.
        """
        place = self._place(request, tokens // self._block_size)
        wanted = list(
            request.all_token_ids[tokens : min(most, tokens + self._block_size)]
        )
        best, found, coming = 0, None, 0
        for block, (holder, preemptions) in (
            self._held.get(place, {}).items() if place and wanted else ()
        ):
            ready, now = holder.num_computed_tokens - tokens, block in self._now
            if holder.num_preemptions != preemptions or (ready <= best and not now):
                continue
            common = _common(
                holder.all_token_ids[tokens : tokens + len(wanted)], wanted
            )
            # this step fills it or copies to it, and copies are made all at once
            if now:
                coming = max(coming, common)
            elif min(common, ready) > best:
                best, found = min(common, ready), block
                if best == len(wanted):
                    break
        return best, found, coming

    def remember(self, request: Any, first: int, blocks: Iterable[int]) -> None:
        """`blocks` now hold the request's tokens from its block number `first` on."""
        for number, block in enumerate(blocks, start=first):
            self.forget(block)
            if (place := self._place(request, number)) is not None:
                self._held.setdefault(place, {})[block] = (
                    request,
                    request.num_preemptions,
                )
                self._places[block] = place
                self._now.add(block)
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

    def _place(self, request: Any, number: int) -> _Place | None:
        """The place of a request's block; None: the tokens before that block are not
        all known yet."""
        if number > len(request.block_hashes):
            return None
        return number, request.block_hashes[number - 1] if number else None


def _common(own: list[int], wanted: list[int]) -> int:
    """How many tokens two lists share at their start; `wanted` is the longer one, or
    as long."""
    if own == wanted[: len(own)]:
        return len(own)
    return next(
        index for index, (a, b) in enumerate(zip(own, wanted, strict=False)) if a != b
    )
