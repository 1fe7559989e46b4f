"""All probes of one item or window on one checkpoint: their requests and responses.

Pure: no engine, no clock, no files. Each probe is an `Inquiry`. A request that several probes make is sent once, and
all of these probes get the response. Probes that score the same answer share the score. The greedy request of the open
prompt is also the first rollout of a beam search, which needs its top log-probabilities, token by token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from evaluator.core.records import Item, Record
from evaluator.engine.base import NOT_NUMBERS, Cancel, Generate, Request, Response
from evaluator.probes.base import Asking, Excluded, Inquiry, Reading
from evaluator.probes.config import EvalConfig
from evaluator.probes.planning import Blaming, Plan, WindowPlan
from evaluator.probes.recording import Decode, Recorder, Stamp


class ItemProbes:
    """Sends the requests of one plan and routes their responses; `serial` makes its request ids unique.

    A probe's error becomes a ResurfaceError that names the probe and the item (`planning.Blaming`).
    """

    def __init__(self, plan: Plan, config: EvalConfig, eos_ids: frozenset[int], decode: Decode, serial: int) -> None:
        self.plan = plan
        self._decode = decode
        self._run_seed = config.seed
        self._inquiries: dict[str, Inquiry] = {}  # by the name of each probe, in the registry's order
        if isinstance(plan, WindowPlan):
            reading = Reading(window=plan.question, config=config, serial=serial, references=plan.references)
            for text_probe in config.text_probes:
                with Blaming(text_probe.name, self._item):
                    self._inquiries[text_probe.name] = text_probe.ask(reading)
        else:
            asking = Asking(plan, config, eos_ids, decode, serial)
            for probe in config.item_probes:
                if plan.question.deep or not probe.deep:
                    with Blaming(probe.name, self._item):
                        why = probe.why_not(plan)
                        excluded = None if why is None else Excluded(probe, why, plan.prompts.get("open"))
                        self._inquiries[probe.name] = excluded or probe.ask(asking)
        self._readers: dict[str, list[str]] = {}  # the probes that wait for a request, by its id
        self._gatherers = [(probe, inquiry) for probe, inquiry in self._inquiries.items() if inquiry.gathers]
        self.gathered = False  # a response has come to one of these: `follow` is to be called before the next step
        self._numbers = self._not_numbers = False  # of the log-probabilities that came: whether any are such

    @property
    def done(self) -> bool:
        return not self._readers and not self.gathered

    def start(self) -> list[Request]:
        """The requests that depend on no response, in the order of the probes."""
        requests: dict[str, Request] = {}
        for probe, inquiry in self._inquiries.items():
            with Blaming(probe, self._item):
                first = inquiry.start()
            for request in first:
                known = requests.get(request.request_id)
                requests[request.request_id] = request if known is None else _joined(known, request)
                self._readers.setdefault(request.request_id, []).append(probe)
        return list(requests.values())

    def receive(self, response: Response) -> Sequence[Request | Cancel]:
        """Take one response; returns the requests that follow from it. One to a cancelled request is ignored."""
        readers = self._readers.get(response.request_id)
        if readers is None:
            return ()
        if response.final:
            del self._readers[response.request_id]
        self._numbers = self._numbers or bool(response.logprobs)
        self._not_numbers = self._not_numbers or response.error == NOT_NUMBERS
        following: list[Request | Cancel] = []
        for probe in tuple(readers):
            inquiry = self._inquiries[probe]
            with Blaming(probe, self._item):
                next_ones = inquiry.receive(response)
            if inquiry.gathers:
                self.gathered = True
            if next_ones:
                following += self._sent(probe, next_ones)
        return following

    def follow(self) -> list[Request | Cancel]:
        """The requests that follow from all that probes have gathered."""
        self.gathered = False
        following: list[Request | Cancel] = []
        for probe, inquiry in self._gatherers:
            with Blaming(probe, self._item):
                next_ones = inquiry.follow()
            if next_ones:
                following += self._sent(probe, next_ones)
        return following

    def _sent(self, probe: str, requests: Sequence[Request | Cancel]) -> Iterator[Request | Cancel]:
        """A probe's requests, as the engine gets them."""
        for request in requests:
            if not isinstance(request, Cancel):
                self._readers[request.request_id] = [probe]
            elif not self._left(probe, request.request_id):
                continue
            yield request

    def _left(self, probe: str, request_id: str) -> bool:
        """A probe needs a request no longer. Whether no other waits for it, so that the engine can stop."""
        readers = self._readers.get(request_id, [])
        if probe in readers:
            readers.remove(probe)
            if not readers:
                del self._readers[request_id]
                return True
        return False

    def records(self, stamp: Stamp) -> list[Record]:
        """Every record, probe by probe in a fixed order. To be called once, when `done`."""
        collapsed = self._not_numbers and not self._numbers
        recorder = Recorder(stamp, self._item, self._run_seed, self._decode, collapsed=collapsed)
        records: list[Record] = []
        for probe, inquiry in self._inquiries.items():
            with Blaming(probe, self._item):
                records += inquiry.records(recorder)
        return records

    @property
    def _item(self) -> Item:
        return self.plan.question.item


def _joined(one: Request, other: Request) -> Request:
    """One request for both. They differ at most in the values that a generation reports."""
    if isinstance(one, Generate) and isinstance(other, Generate):
        most = max(one.top_logprobs, other.top_logprobs)
        return dataclasses.replace(one, top_logprobs=most, stream=one.stream or other.stream)
    return one
