"""One task on one checkpoint, given an engine: every probe of every item as one stream
through it.

The engine is never drained between probes or items. `Evaluation` keeps a bounded number
of items in flight and starts the next item when one is done. Follow-up requests (beams)
come before requests of new items. So items finish in about the order of their start,
and memory stays bounded.

A request that several probes of an item make is sent once, and all of these probes get
the response. Probes that score the same answer share the score. The greedy request of
the open prompt is also the first rollout of a beam search, which needs its top
log-probabilities, token by token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from evaluator.core.errors import EngineError
from evaluator.core.records import Item, Record
from evaluator.engine.admission import Refusing
from evaluator.engine.base import (
    NOT_NUMBERS,
    Cancel,
    Engine,
    Generate,
    Request,
    Response,
)
from evaluator.probes.base import ItemProbe, Probe, Steps, blame
from evaluator.probes.config import EvalConfig
from evaluator.probes.greedy import Greedy
from evaluator.probes.item import BaseAnswer, ItemRun, Plan, References, failed

if TYPE_CHECKING:
    from evaluator.asking.prompts import Prompter

# Items: enough requests to fill a large batch while the slowest items' beams finish, or
# while each thinks.
IN_FLIGHT = {False: 64, True: 512}  # by whether they think


class _Active(ItemRun):
    def __init__(self, plan: Plan, serial: int, **shared: Any) -> None:
        super().__init__(plan, serial, **shared)
        self.aligned: ItemRun = self  # the same item after its base's thought
        self.thinking = False  # its probes wait for its thoughts
        self.failure: str | None = None  # why there are no thoughts
        self.runs: list[_ProbeRun] = []  # in the order of the probes
        self.open = 0  # requests without their response
        # of the log-probabilities of responses: whether any are, or are NaN
        self.numbers = self.not_numbers = False


@dataclass(slots=True, eq=False)
class _ProbeRun:
    probe: Probe
    item: _Active
    steps: Steps | None = None
    asked: Sequence[Request | Cancel] = ()  # of its last step
    left: int = 0  # of these, the different ones without their response
    # the responses, by request id
    answered: dict[str, Response] = field(default_factory=dict)
    # since its last step, for a probe that gathers
    gathered: list[Response] = field(default_factory=list)
    records: list[Record] | None = None  # when it has ended


class Evaluation:
    """The request source of one task on one checkpoint. `plans` is consumed lazily, as
    there is room.

    `columns` are those of every record, `base` finds the base's answer to an item, and
    `references` are the places of distributions (`ItemRun`). A probe's error becomes a
    ResurfaceError that names the probe and the item.
    """

    def __init__(
        self,
        plans: Iterable[Plan],
        *,
        config: EvalConfig,
        prompter: Prompter,
        columns: Mapping[str, Any],
        base: Callable[[Item], BaseAnswer] | None = None,
        references: References | None = None,
        in_flight: int | None = None,
    ) -> None:
        self._plans = iter(plans)
        self._thinks = config.thinking != "off"
        self._probes: Sequence[Probe] = (
            config.text_probes if config.is_text else config.item_probes
        )
        self._shared: dict[str, Any] = {
            "config": config,
            "prompter": prompter,
            "columns": columns,
            "references": references,
        }
        self._base = base
        self._in_flight = IN_FLIGHT[self._thinks] if in_flight is None else in_flight
        self._serial = 0
        self._active = 0  # items
        # the probes that wait for a request, by its id
        self._readers: dict[str, list[_ProbeRun]] = {}
        self._ready: deque[Request] = deque()
        self._cancels: list[Request | Cancel] = []
        self._waiting: set[str] = set()  # requests in `_ready` that were not cancelled
        # of probes that gather, until they have ended
        self._gathering: list[_ProbeRun] = []
        self._ended: deque[_Active] = deque()  # items whose records are not given out

    def run(self, engine: Engine | Refusing) -> Iterator[tuple[Item, list[Record]]]:
        """Yield each item with its records, by probe, as it finishes. Raises
        EngineError if the engine stops before."""
        try:
            for response in engine.run(self):
                self.handle(response)
                if self._ended:
                    yield from self.recorded()
        except EngineError:
            yield from self.recorded()  # an ended item need not run again
            raise
        yield from self.recorded()
        if not self.idle:
            raise EngineError(f"{engine.name} stopped with items unanswered")

    @property
    def idle(self) -> bool:
        return not self._active and not self._ready

    def recorded(self) -> Iterator[tuple[Item, list[Record]]]:
        """The items that have ended since the last call, with their records."""
        while self._ended:
            active = self._ended.popleft()
            yield (
                active.item,
                [record for run in active.runs for record in run.records or ()],
            )

    def take(self, limit: int) -> Sequence[Request | Cancel]:
        """Let probes evaluate all responses since the last call, then hand out
        requests."""
        for run in self._gathering:
            if run.records is None:
                responses: Sequence[Response] = ()
                if run.gathered:
                    responses, run.gathered = run.gathered, []
                if following := self._step(run, responses):
                    self._send(run, following)
                if not run.item.open:
                    self._settle(run.item)
        self._gathering = [run for run in self._gathering if run.records is None]
        taken, self._cancels = self._cancels, []
        limit += len(taken)
        while len(taken) < limit and (
            self._ready or (self._active < self._in_flight and self._start_next())
        ):
            if not self._ready:  # an item that needs no request
                continue
            request = self._ready.popleft()
            if request.request_id in self._waiting:
                self._waiting.remove(request.request_id)
                taken.append(request)
        return taken

    def handle(self, response: Response) -> None:
        """Pass a response, unless cancelled, to its probes; what follows goes before
        items not yet started."""
        readers = self._readers.get(response.request_id)
        if readers is None:
            serial = response.request_id.partition("/")[0]
            if not serial.isdecimal() or int(serial) >= self._serial:
                raise EngineError(
                    f"engine answered an unknown request {response.request_id!r}"
                )
            return
        active = readers[0].item
        del self._readers[response.request_id]
        active.open -= 1
        if response.logprobs:
            active.numbers = True
        elif response.error == NOT_NUMBERS:
            active.not_numbers = True
        for run in readers:
            if run.probe.gathers:
                run.gathered.append(response)
            else:
                run.answered[response.request_id] = response
                run.left -= 1
                if not run.left:
                    self._send(
                        run,
                        self._step(
                            run,
                            [run.answered[request.request_id] for request in run.asked],
                        ),
                    )
        if not active.open:
            self._settle(active)

    def _start_next(self) -> bool:
        """Start the next item, with its thoughts or else with its probes."""
        plan = next(self._plans, None)
        if plan is None:
            return False
        base = self._base and self._base(plan.question.item)
        active = _Active(plan, self._serial, base=base, **self._shared)
        if plan.prompts and self._thinks:
            active.thinking = True
            if base is not None:
                active.aligned = ItemRun(
                    plan, f"{self._serial}/base", base=base, **self._shared
                )
                active.aligned.remember({"open": base.thought})
        self._serial += 1
        self._active += 1
        self._begin(active, [_THINK] if active.thinking else self._probes)
        return True

    def _begin(self, active: _Active, probes: Sequence[Probe]) -> None:
        """The first step of each probe, in which equal requests are sent once."""
        active.runs = []
        requests: dict[str, Request] = {}
        for probe in probes:
            if isinstance(probe, ItemProbe) and probe.deep and not active.question.deep:
                continue
            run = _ProbeRun(probe, active)
            active.runs.append(run)
            if probe.gathers:
                self._gathering.append(run)
            for request in self._step(run):
                assert not isinstance(request, Cancel), "nothing was sent yet"
                known = requests.get(request.request_id)
                requests[request.request_id] = (
                    request if known is None else _joined(known, request)
                )
                readers = self._readers.setdefault(request.request_id, [])
                if run not in readers[-1:]:  # two of its texts may be the same tokens
                    readers.append(run)
        active.open += len(requests)
        self._waiting.update(requests)
        self._ready.extendleft(reversed(requests.values()))
        self._settle(active)

    def _step(
        self, run: _ProbeRun, responses: Sequence[Response] = ()
    ) -> Sequence[Request | Cancel]:
        """Let a probe go on to its next requests, or to its records."""
        item, probe = run.item, run.probe
        view = item.aligned if probe.after_base else item
        if item.not_numbers:
            streamed = item.stream or item.aligned.stream  # numbers, too
            item.collapsed = view.collapsed = not (item.numbers or streamed)
        run.asked = ()
        try:
            if run.steps is not None:
                run.asked = run.steps.send(responses)
            elif item.failure is not None:
                run.records = [item.record(probe.name, **failed(item.failure))]
            elif (
                isinstance(probe, ItemProbe)
                and (why := probe.why_not(view)) is not None
            ):
                run.records = [item.record(probe.name, status="excluded", text=why)]
            else:
                run.steps = probe.run(view)
                run.asked = next(run.steps)
        except StopIteration as ended:
            run.records = ended.value
        except Exception as error:
            raise blame(probe.name, item.item, error) from error
        if not probe.gathers:
            run.answered, run.left = (
                {},
                len({request.request_id for request in run.asked}),
            )
        return run.asked

    def _send(self, run: _ProbeRun, following: Sequence[Request | Cancel]) -> None:
        """Send the requests of a later step of a probe. They are its own: no other
        probe shares them."""
        for request in reversed(following):
            name = request.request_id
            if not isinstance(request, Cancel):
                self._readers[name] = [run]
                run.item.open += 1
                self._waiting.add(name)
                self._ready.appendleft(request)
                continue
            readers = self._readers.get(name, [])
            if run not in readers:
                continue
            readers.remove(run)
            if readers:  # another probe waits for it
                continue
            del self._readers[name]
            run.item.open -= 1
            if name in self._waiting:  # the engine never gets it
                self._waiting.remove(name)
            else:
                self._cancels.append(request)

    def _settle(self, active: _Active) -> None:
        """When no request of an item is open, let the probes that are left go on,
        then end the item."""
        while not active.open and not any(run.gathered for run in active.runs):
            left = [run for run in active.runs if run.records is None]
            if not left and active.thinking:
                active.thinking = False
                self._begin(active, self._probes)
                return
            if not left:
                self._active -= 1
                self._ended.append(active)
                return
            for run in left:
                self._send(run, self._step(run))


class _Think(Greedy):
    """Comes before the probes of an item: each of its prompts is extended by what
    the model thinks of it."""

    name = "think"

    def run(self, item: ItemRun) -> Steps:
        assert isinstance(item, _Active)
        formats = sorted(item.prompts, key=lambda format: format != "open")
        responses = yield [
            item.think(format, item.prompts[format]) for format in formats
        ]
        item.failure = next(
            (each.error for each in responses if each.status != "ok"), None
        )
        if item.failure is None:
            given = zip(formats, responses, strict=True)
            item.remember(
                {
                    format: item.thought_of(item.prompts[format], each)
                    for format, each in given
                }
            )
        return []


_THINK = _Think()


def _joined(one: Request, other: Request) -> Request:
    """One request for both. They differ at most in the values that a generation
    reports."""
    if isinstance(one, Generate) and isinstance(other, Generate):
        most = max(one.top_logprobs, other.top_logprobs)
        return replace(
            one,
            top_logprobs=most,
            stream=other.stream if one.stream is None else one.stream,
        )
    return one
