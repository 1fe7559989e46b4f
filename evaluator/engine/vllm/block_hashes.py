"""Hashes of cache blocks, each computed once.

vLLM names a block by a hash of its tokens and of all before them, and computes the
hashes of every request anew. Here they are remembered: the samples, options and beams
of an item have one prompt. Our requests have nothing but tokens in their blocks.

Replaces `EngineCore.request_block_hasher`, and calls it for blocks that are new. Reads
`Scheduler.hash_block_size`, and of a `Request` its `all_token_ids`, `num_tokens` and
`block_hashes`."""

from typing import Any

_REMEMBERED = 16_384  # blocks; then all are forgotten


def remember_hashes(core: Any) -> None:
    """Make a vLLM engine core compute the hash of a block once."""
    size: int = core.scheduler.hash_block_size
    compute = core.request_block_hasher
    # by the hash of all before a block, and its tokens
    known: dict[tuple[bytes | None, tuple[int, ...]], bytes] = {}

    def request_block_hasher(request: Any) -> list[bytes]:
        """Appends the hashes itself."""
        hashes: list[bytes] = request.block_hashes
        start = len(hashes) * size
        if start + size > request.num_tokens:
            return []
        if len(known) > _REMEMBERED:
            known.clear()
        tokens = request.all_token_ids[start:]
        before, computed = hashes[-1] if hashes else None, None
        for end in range(size, len(tokens) + 1, size):
            place = before, tuple(tokens[end - size : end])
            before = next(computed) if computed else known.get(place)
            if before is None:
                computed = iter(compute(request))  # of this block and all after it
                before = next(computed)
            if computed:
                known[place] = before
            hashes.append(before)
        return []

    if compute is not None:  # else there is no prefix cache
        core.request_block_hasher = request_block_hasher
