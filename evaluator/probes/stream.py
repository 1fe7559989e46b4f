"""Tasks on one checkpoint, given an engine: every probe of every item as one stream
through it.

The engine is never drained between probes, items or tasks. `Evaluation` keeps a
bounded number of items in flight and starts the next item when one is done. Follow-up
requests (beams) come before requests of new items. So items finish in about the order
of their start, and memory stays bounded.

A request that several probes of an item make is sent once, and all of these probes get
the response. Probes that score the same answer share the score. The greedy request of
the open prompt is also the first rollout of a beam search, which needs its top
log-probabilities, token by token.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from evaluator.asking.questions import Posed
from evaluator.core.errors import EngineError
from evaluator.core.records import Item, Record
from evaluator.engine.admission import RefusingEngine
from evaluator.engine.base import (
    NOT_NUMBERS,
    Cancel,
    Engine,
    Generate,
    Request,
    Response,
    Score,
)
from evaluator.probes.base import ItemProbe, Probe, Steps, blame
from evaluator.probes.config import EvalConfig
from evaluator.probes.greedy import Greedy
from evaluator.probes.item import ItemRun, TaskRun, failed

ROWS = 520  # of the largest engine, with requests that wait for one
FEWEST = 64  # items: the slowest one's beams finish beside many others


def items_at_once(config: EvalConfig) -> int:
    """The items that fill an engine: more where each thinks, or has few answers. All
    others are for other engines."""
    if config.thinks:
        return ROWS
    probes = [probe for probe in config.chosen if isinstance(probe, ItemProbe)]
    generated = sum(probe.cost(config).generated_tokens for probe in probes)
    answers = generated // config.max_new_tokens
    return max(FEWEST, ROWS // answers) if answers else FEWEST


@dataclass(slots=True, eq=False)
class ProbeRun:
    """One probe of one item, between two of its steps."""

    probe: Probe
    item: ItemRun
    steps: Steps | None = None
    requests: Sequence[Request | Cancel] = ()  # of its last step
    missing: int = 0  # of these, the different ones without their response
    responses: dict[str, Response] = field(default_factory=dict)  # by request id
    # since its last step, for a probe that gathers
    gathered: list[Response] = field(default_factory=list)
    records: list[Record] | None = None  # when it has ended


class Evaluation:
    """The request source of tasks on one checkpoint. `questions`, tokenised, are
    consumed lazily, as there is room; None: there is none yet. A probe's error becomes
    a ResurfaceError that names the probe and the item.
    """

    def __init__(
        self, questions: Iterable[tuple[Posed, TaskRun] | None], in_flight: int = FEWEST
    ) -> None:
        self._questions = iter(questions)
        self._in_flight = in_flight
        self._serial = 0
        self._active = 0  # items
        # the probes that wait for a request, by its id
        self._readers: dict[str, list[ProbeRun]] = {}
        # by id; requests that follow from a response go before the others
        self._ready: OrderedDict[str, Request] = OrderedDict()
        self._cancels: list[Request | Cancel] = []
        # of probes that gather, until they have ended
        self._gathering: list[ProbeRun] = []
        self._ended: deque[ItemRun] = deque()  # items whose records are not given out

    @classmethod
    def of(
        cls,
        questions: Iterable[Posed],
        *,
        config: EvalConfig,
        in_flight: int | None = None,
        **shared: Any,
    ) -> Evaluation:
        """Of one task; `shared`: the other fields of its `TaskRun`."""
        task = TaskRun(config=config, probes=config.chosen, **shared)
        most = items_at_once(config) if in_flight is None else in_flight
        return cls(((each, task) for each in questions), most)

    def run(
        self, engine: Engine | RefusingEngine
    ) -> Iterator[tuple[Item, list[Record]]]:
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
        return not self._active

    def recorded(self) -> Iterator[tuple[Item, list[Record]]]:
        """The items that have ended since the last call, with their records."""
        while self._ended:
            item = self._ended.popleft()
            records: list[Record] = []
            for run in item.runs:
                records += run.records or ()
            yield item.item, records

    def take(self, limit: int) -> Sequence[Request | Cancel]:
        """Let probes evaluate all responses since the last call, then hand out
        requests."""
        for run in self._gathering:
            if run.records is None:
                responses, run.gathered = run.gathered, []
                self._advance(run, responses)
                if not run.item.open:
                    self._settle(run.item)
        self._gathering = [run for run in self._gathering if run.records is None]
        taken, self._cancels = self._cancels, []
        limit += len(taken)
        while len(taken) < limit:
            if self._ready:
                taken.append(self._ready.popitem(last=False)[1])
            elif self._active >= self._in_flight or not self._start_next():
                break
        return taken

    def handle(self, response: Response) -> None:
        """Pass a response, unless cancelled, to its probes; what follows goes before
        items not yet started."""
        name = response.request_id
        readers = self._readers.pop(name, None)
        if readers is None:  # cancelled meanwhile
            serial = name.partition("/")[0]
            if not serial.isdecimal() or int(serial) >= self._serial:
                raise EngineError(f"engine answered an unknown request {name!r}")
            return
        item = readers[0].item
        item.open -= 1
        if response.logprobs:
            item.numbers = True
        elif response.error == NOT_NUMBERS:
            item.not_numbers = True
        for run in readers:
            if run.probe.gathers:
                run.gathered.append(response)
                continue
            run.responses[name] = response
            run.missing -= 1
            if not run.missing:
                responses = [run.responses[each.request_id] for each in run.requests]
                self._advance(run, responses)
        if not item.open:
            self._settle(item)

    def _start_next(self) -> bool:
        """Start the next item, with its thoughts or else with its probes."""
        question = next(self._questions, None)
        if question is None:
            return False
        posed, task = question
        base = task.base and task.base(posed.item)
        item = ItemRun(posed, self._serial, task, base)
        probes = task.probes
        if posed.prompts and task.config.thinks:
            item.later, probes = probes, [_THINK]
            if base is not None:
                item.aligned = ItemRun(posed, f"{self._serial}/base", task, base)
                item.aligned.remember({"open": base.thought})
        self._serial += 1
        self._active += 1
        self._begin(item, probes)
        return True

    def _begin(self, item: ItemRun, probes: Sequence[Probe]) -> None:
        """The first step of each probe, in which equal requests are sent once."""
        item.runs = []
        requests: dict[str, Request] = {}
        for probe in probes:
            if not probe.asks(item.posed):
                continue
            run = ProbeRun(probe, item)
            item.runs.append(run)
            if probe.gathers:
                self._gathering.append(run)
            for request in self._step(run):
                assert not isinstance(request, Cancel), "nothing was sent yet"
                name = request.request_id
                known = requests.get(name)
                requests[name] = request if known is None else _joined(known, request)
                readers = self._readers.setdefault(name, [])
                if run not in readers[-1:]:  # two of its texts may be the same tokens
                    readers.append(run)
        self._send(item, requests.values())
        self._settle(item)

    def _step(
        self, run: ProbeRun, responses: Sequence[Response] = ()
    ) -> Sequence[Request | Cancel]:
        """Let a probe go on to its next requests, or to its records."""
        item, probe = run.item, run.probe
        view = item.aligned if probe.after_base else item
        if item.not_numbers:
            streamed = item.stream or item.aligned.stream  # numbers, too
            item.collapsed = view.collapsed = not (item.numbers or streamed)
        run.requests = ()
        try:
            if run.steps is not None:
                run.requests = run.steps.send(responses)
            elif item.failure is not None:
                run.records = probe.unanswered(item, failed(item.failure))
            elif (
                isinstance(probe, ItemProbe)
                and (why := probe.why_not(view)) is not None
            ):
                run.records = probe.unanswered(
                    item, {"status": "excluded", "text": why}
                )
            else:
                run.steps = probe.run(view)
                run.requests = next(run.steps)
        except StopIteration as ended:
            run.records = ended.value
        except Exception as error:
            raise blame(probe.name, item.item, error) from error
        run.responses = {}
        run.missing = len({request.request_id for request in run.requests})
        return run.requests

    def _advance(self, run: ProbeRun, responses: Sequence[Response] = ()) -> None:
        """Let a probe go on, and send its requests, but for those that another probe
        waits for: it reads these too."""
        requests: list[Request] = []
        for request in self._step(run, responses):
            if isinstance(request, Cancel):
                self._cancel(run, request)
                continue
            readers = self._readers.setdefault(request.request_id, [])
            if not readers:
                requests.append(request)
            if run not in readers:
                readers.append(run)
        self._send(run.item, requests)

    def _send(self, item: ItemRun, requests: Collection[Request]) -> None:
        item.open += len(requests)
        for request in reversed(list(requests)):
            self._ready[request.request_id] = request
            self._ready.move_to_end(request.request_id, last=False)

    def _cancel(self, run: ProbeRun, request: Cancel) -> None:
        name = request.request_id
        readers = self._readers.get(name, [])
        if run not in readers:
            return
        readers.remove(run)
        if readers:  # another probe waits for it
            return
        del self._readers[name]
        run.item.open -= 1
        if self._ready.pop(name, None) is None:  # the engine has it
            self._cancels.append(request)

    def _settle(self, item: ItemRun) -> None:
        """When no request of an item is open, let the probes that are left go on,
        then end the item."""
        while not item.open and not any(run.gathered for run in item.runs):
            pending = [run for run in item.runs if run.records is None]
            for run in pending:
                self._advance(run)
            if pending:
                continue
            if not item.later:
                self._active -= 1
                self._ended.append(item)
                return
            probes, item.later = item.later, ()
            self._begin(item, probes)
            return


class _Think(Greedy):
    """Comes before the probes of an item: each of its prompts is extended by what
    the model thinks of it."""

    name = "think"

    def run(self, item: ItemRun) -> Steps:
        formats = sorted(item.prompts, key=lambda format: format != "open")
        prompts = [item.prompts[format] for format in formats]
        responses = yield list(map(item.think, formats, prompts))
        for response in responses:
            if response.status != "ok":
                item.failure = response.error
                return []
        thoughts = map(item.thought_of, prompts, responses)
        item.remember(dict(zip(formats, thoughts, strict=True)))
        return []


_THINK = _Think()


def _joined(one: Request, other: Request) -> Request:
    """One request for both. They differ at most in the values that they report."""
    if isinstance(one, Generate) and isinstance(other, Generate):
        most = max(one.top_logprobs, other.top_logprobs)
        stream = other.stream if one.stream is None else one.stream
        return replace(one, top_logprobs=most, stream=stream)
    if isinstance(one, Score) and isinstance(other, Score):
        return replace(one, ranked=one.ranked or other.ranked)
    return one
