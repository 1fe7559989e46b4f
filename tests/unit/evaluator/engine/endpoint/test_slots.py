"""Which slot of llama.cpp a request waits for."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from evaluator.engine.endpoint.slots import Slots
from tests.support.engines import answers
from tests.support.requests import generation, scoring
from tests.support.served import FakeServer, endpoint_engine

LONG = tuple(range(100))


def places(prompts, count=2):
    """The slot of each prompt, when all wait at once."""

    async def enter():
        slots, chosen = Slots(count), []

        async def hold(prompt):
            async with slots.place(prompt) as slot:
                chosen.append((prompt, slot.number))
                await asyncio.sleep(0)

        await asyncio.gather(*map(hold, prompts))
        async with AsyncExitStack() as held:
            await held.enter_async_context(slots.place((1,)))
        return dict(chosen)

    return asyncio.run(enter())


def test_prompts_of_an_item_share_a_slot():
    one = [(*LONG, number) for number in range(6)]
    other = [(200, *LONG, number) for number in range(6)]
    chosen = places([*one, *other])
    assert {chosen[prompt] for prompt in one} == {0}
    assert {chosen[prompt] for prompt in other} == {1}


def numbers(engine, requests):
    found = answers(engine, requests)
    assert {answer.status for answer in found.values()} == {"ok"}
    return {name: (each.token_ids, each.logprobs) for name, each in found.items()}


@pytest.mark.more
@pytest.mark.parametrize("slots", [1, 3])
def test_no_number_depends_on_history(slots):
    """Of a server whose numbers depend on how its cache was filled."""
    requests = []
    for number in range(2):
        prompt = (7, 8, number, *range(20))
        requests.append(generation(f"greedy {number}", prompt, 6))
        drawn = generation(f"sample {number}", prompt, 6, temperature=1.0, seed=3)
        requests.append(drawn)
        # the first of a beam search, which is the greedy answer too
        shared = generation(f"shared {number}", prompt, 6, top_logprobs=4, stream=[])
        requests.append(shared)
        for ids in ((5, 6, 9), (5, 7), (8,)):
            name = f"{number} {ids}"
            requests.append(scoring(name, prompt, ids))
            requests.append(scoring(f"ranked {name}", prompt, ids, ranked=True))
    # between them its later ones, whose own numbers do
    mixed = []
    for number, request in enumerate(requests):
        mixed.append(request)
        prompt = (7, 8, number % 2, *range(20), number)
        mixed.append(generation(f"beam {number}", prompt, 2, stream=[]))
    server = FakeServer()
    server.remembers, server.slots = True, slots
    server.partial = frozenset(range(1, 3072, 2))
    with endpoint_engine(server) as engine:
        first = numbers(engine, requests)
        assert engine._abilities.repeats
        assert numbers(engine, requests[::-1]) == first
        assert numbers(engine, requests[1::2]).items() <= first.items()
        assert first.items() <= numbers(engine, mixed).items()
        server.partial = frozenset()  # nor on what it leaves out
        assert numbers(engine, requests) == first
