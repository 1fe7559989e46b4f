"""llama.cpp's slots. Each keeps the keys and values of its last prompt, and shares them
with no other. So the requests of one item mostly belong to one slot, one after another:
on four slots at a time, its prompt would be read four times.

llama.cpp's numbers depend on how its cache was filled: tokens that are read in one batch
have other last digits than the same tokens in two. So a task may hold a slot, whose
cache then has the task's prompt as one reading made it, whatever came before."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

Ids = Sequence[int]
_ANSWER = 8  # tokens that a request costs beside its prompt
# what a token that waits counts: less than one that is read, as others may need a slot
_PATIENCE = 0.25


@dataclass(slots=True, kw_only=True)
class Slot:
    number: int
    last: Ids = ()  # the prompt of its last request, which may still wait
    load: int = 0  # tokens that wait for it
    free: asyncio.Lock = field(default_factory=asyncio.Lock)
    # what its cache begins with, if one request has read that as a whole
    read: Ids = ()
    # its holder's prompt, which shall be read so
    root: Ids = ()

    def after(self, prompt: Ids, *, whole: bool) -> Ids:
        """`read` after a request that reads all of a prompt, or what the cache
        lacks."""
        if whole:
            return prompt
        return self.read if self.has_begun(prompt) else ()

    def has_begun(self, prompt: Ids) -> bool:
        """Whether it has read what a prompt begins with."""
        return bool(self.read) and prompt[: len(self.read)] == self.read


# of the running task
_held: ContextVar[Slot | None] = ContextVar("held", default=None)


class Slots:
    def __init__(self, count: int) -> None:
        self._slots = [Slot(number=number) for number in range(count)]

    @property
    def most(self) -> int:
        """Requests to have in hand, so that each slot finds one of its own."""
        return 16 * len(self._slots)

    @asynccontextmanager
    async def hold(self, prompt: Ids, *, whole: bool) -> AsyncIterator[None]:
        """All requests of this task go to one slot. `whole`: which has read the prompt
        as a whole."""
        async with self.place(prompt) as slot:
            slot.root = prompt if whole else ()
            before = _held.set(slot)
            try:
                yield
            finally:
                _held.reset(before)
                slot.root = ()

    @asynccontextmanager
    async def place(self, prompt: Ids) -> AsyncIterator[Slot]:
        """The slot that this task holds. Else wait for the one that has most of a
        prompt, or for a free one."""
        if (held := _held.get()) is not None:
            yield held
            return
        costs = []
        for slot in self._slots:
            costs.append(len(prompt) - common(slot.last, prompt) + _ANSWER)
        waits = [_PATIENCE * slot.load for slot in self._slots]
        ends = [cost + wait for cost, wait in zip(costs, waits, strict=True)]
        number = ends.index(min(ends))
        slot, cost = self._slots[number], costs[number]
        slot.last = prompt
        slot.load += cost
        try:
            async with slot.free:
                yield slot
        finally:
            slot.load -= cost


def common(one: Sequence[object], other: Sequence[object]) -> int:
    """Tokens that two prompts begin with, or characters."""
    count = 0
    for mine, its in zip(one, other, strict=False):
        if mine != its:
            break
        count += 1
    return count
