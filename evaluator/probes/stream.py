"""One evaluation, given an engine: every probe of every item as one stream through it.

The engine is never drained between probes or items. `ItemStream` keeps a bounded number of items in flight and starts
the next item when one is done. Follow-up requests (beams) come before requests of new items. So items finish in about
the order of their start, and memory stays bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from evaluator.core.errors import EngineError
from evaluator.core.records import Item, Record
from evaluator.engine.admission import Refusing
from evaluator.engine.base import Cancel, Engine, Request, Response
from evaluator.probes.config import EvalConfig
from evaluator.probes.item import ItemProbes
from evaluator.probes.planning import Plan
from evaluator.probes.recording import Decode, Stamp

IN_FLIGHT = 64  # items: enough requests to fill a large batch while the slowest items' beams finish


class ItemStream:
    """The request source of one evaluation. `plans` is consumed lazily, as there is room."""

    def __init__(
        self, plans: Iterator[Plan], config: EvalConfig, eos_ids: frozenset[int], decode: Decode, in_flight: int
    ) -> None:
        self._plans = plans
        self._config = config
        self._eos_ids = eos_ids
        self._decode = decode
        self._in_flight = in_flight
        self._serial = 0
        self._active: dict[str, ItemProbes] = {}
        self._ready: deque[Request] = deque()
        self._cancels: list[Request | Cancel] = []
        self._waiting: set[str] = set()  # requests in `_ready` that were not cancelled
        self._gathering: dict[str, ItemProbes] = {}  # items that have to `follow`
        self._ended: deque[ItemProbes] = deque()  # items without their records

    def take(self, limit: int) -> Sequence[Request | Cancel]:
        self._follow()
        taken, self._cancels = self._cancels, []
        limit += len(taken)
        while len(taken) < limit and (self._ready or (len(self._active) < self._in_flight and self._start_next())):
            if not self._ready:  # an item that needs no request
                continue
            request = self._ready.popleft()
            if request.request_id in self._waiting:
                self._waiting.remove(request.request_id)
                taken.append(request)
        return taken

    def _start_next(self) -> bool:
        plan = next(self._plans, None)
        if plan is None:
            return False
        item = ItemProbes(plan, self._config, self._eos_ids, self._decode, self._serial)
        requests = item.start()
        self._waiting.update(request.request_id for request in requests)
        self._ready.extend(requests)
        if item.done:
            self._ended.append(item)
        else:
            self._active[str(self._serial)] = item
        self._serial += 1
        return True

    def handle(self, response: Response) -> None:
        """Pass a response to its item; what follows from it goes before the requests of items not yet started.

        A response of an item that has ended is of a request that the item cancelled.
        """
        serial = response.request_id.partition("/")[0]
        item = self._active.get(serial)
        if item is None:
            if serial.isdecimal() and int(serial) < self._serial:
                return
            raise EngineError(f"engine answered an unknown request {response.request_id!r}")
        following = item.receive(response)
        if following:
            self._send(following)
        if item.gathered:
            self._gathering[serial] = item
        elif item.done:
            self._ended.append(self._active.pop(serial))

    def _follow(self) -> None:
        """Let items evaluate all responses since the last `take`."""
        gathering, self._gathering = self._gathering, {}
        for serial, item in gathering.items():
            self._send(item.follow())
            if item.done:
                self._ended.append(self._active.pop(serial))

    def _send(self, following: Sequence[Request | Cancel]) -> None:
        for request in reversed(following):
            if not isinstance(request, Cancel):
                self._waiting.add(request.request_id)
                self._ready.appendleft(request)
            elif request.request_id in self._waiting:  # the engine never gets it
                self._waiting.remove(request.request_id)
            else:
                self._cancels.append(request)

    def recorded(self, stamp: Stamp) -> Iterator[tuple[Item, list[Record]]]:
        """The items that have ended since the last call, with their records."""
        while self._ended:
            item = self._ended.popleft()
            yield item.plan.question.item, item.records(stamp)

    @property
    def idle(self) -> bool:
        return not self._active and not self._ready


def evaluate(
    engine: Engine | Refusing,
    plans: Iterator[Plan],
    *,
    config: EvalConfig,
    stamp: Stamp,
    decode: Decode,
    eos_ids: frozenset[int],
    in_flight: int = IN_FLIGHT,
) -> Iterator[tuple[Item, list[Record]]]:
    """Ask every item of `plans` with every probe; each is yielded with its records as it finishes, in any order.

    Raises EngineError when the engine stops before every item has ended.
    """
    stream = ItemStream(plans, config, eos_ids, decode, in_flight)
    try:
        for response in engine.run(stream):
            stream.handle(response)
            yield from stream.recorded(stamp)
    except EngineError:
        yield from stream.recorded(stamp)  # an ended item need not run again
        raise
    yield from stream.recorded(stamp)
    if not stream.idle:
        raise EngineError(f"{engine.name} stopped with items unanswered")
