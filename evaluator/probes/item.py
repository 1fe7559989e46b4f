"""From a question to the requests it needs, and from their responses to records. Pure: no engine, no clock, no files.

`plan` tokenises a question once for all checkpoints that share a tokenizer. `ItemProbes` is the state machine of one
item on one checkpoint: it starts with the requests that need no answer first (greedy leads, since it warms the prefix
that all others share), and its beam search asks for more as responses arrive.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evaluator.asking.prompts import Continuation, Prompt, Prompter
from evaluator.asking.questions import Question
from evaluator.engine.base import Cancel, Generate, Request, Response, Score
from evaluator.engine.beam import BeamSearch
from evaluator.errors import InputError
from evaluator.grading import grade, strip_thinking
from evaluator.probes.config import EvalConfig
from evaluator.probes.recording import Recorder, Stamp
from evaluator.records import PROBES, Format, Probe, Record
from evaluator.tasks.distractors import Options
from evaluator.tasks.selection import gold_option

# Probes that are asked of the open prompt only, whatever formats are evaluated (protocol.md, Probes).
OPEN_PROBES: tuple[Probe, ...] = ("beam", "sample", "choice", "rank", "hard_choice")

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionPlan:
    text: str
    is_gold: bool
    scored: Continuation


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemPlan:
    """A question in token ids. `gold` and the options continue the open prompt.

    A format without a prompt cannot be asked of the item: its records are `excluded`.
    """

    question: Question
    prompts: Mapping[Format, Prompt]
    options: tuple[OptionPlan, ...] = ()  # of the choice probe
    hard_options: tuple[OptionPlan, ...] = ()  # of the hard_choice probe
    gold: Continuation | None = None


def plan(question: Question, prompter: Prompter, config: EvalConfig) -> ItemPlan:
    """Tokenise one question. A prompt that does not fit its token cap even with an empty context is left out."""
    if question.excluded or question.window is not None:
        return ItemPlan(question=question, prompts={})
    item = question.item
    formats = set(config.formats) if "greedy" in config.probes else set()
    if any(probe in config.probes for probe in OPEN_PROBES):
        formats.add("open")
    prompts: dict[Format, Prompt] = {}
    for form in sorted(formats):
        if question.can_pose(form):
            with contextlib.suppress(InputError):
                prompts[form] = prompter.build(
                    item, form, candidates=question.candidates.get(form, ()), exemplar=question.exemplar
                )
    if "open" not in prompts:
        return ItemPlan(question=question, prompts=prompts)
    options = question.options if "choice" in config.probes else None
    hard = question.hard_options if "hard_choice" in config.probes else None
    golds = [gold_option(item)] if "rank" in config.probes else []
    texts = list(dict.fromkeys([*(options.texts if options else ()), *(hard.texts if hard else ()), *golds]))
    scored = dict(zip(texts, prompter.continuations(prompts["open"], texts), strict=True)) if texts else {}
    return ItemPlan(
        question=question,
        prompts=prompts,
        options=_option_plans(options, scored),
        hard_options=_option_plans(hard, scored),
        gold=scored[golds[0]] if golds else None,
    )


def _option_plans(options: Options | None, scored: Mapping[str, Continuation]) -> tuple[OptionPlan, ...]:
    if options is None:
        return ()
    return tuple(
        OptionPlan(text=text, is_gold=number == options.gold, scored=scored[text])
        for number, text in enumerate(options.texts)
    )


def sample_seed(run_seed: int, item_id: str, number: int) -> int:
    """The seed of one sample, from run seed, item id and sample number alone: no cut of the work moves it."""
    digest = hashlib.sha256(f"{run_seed}:{item_id}:{number}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


class ItemProbes:
    """All probes of one item on one checkpoint. `serial` makes its request ids unique in the stream."""

    def __init__(self, plan: ItemPlan, config: EvalConfig, eos_ids: frozenset[int], serial: int) -> None:
        self.plan = plan
        self._config = config
        self._prefix = str(serial)
        self._responses: dict[str, Response] = {}
        self._waiting: set[str] = set()
        self._answers: dict[tuple[int, ...], dict[str, Any]] = {}  # generated ids -> the columns of their record
        self._beam: BeamSearch | None = None
        if plan.question.deep and "beam" in config.probes and "open" in plan.prompts:
            self._beam = BeamSearch(
                f"{serial}/beam",
                plan.prompts["open"].token_ids,
                width=config.beam_width,
                max_tokens=config.max_new_tokens,
                eos_ids=eos_ids,
            )

    @property
    def done(self) -> bool:
        return not self._waiting

    def start(self) -> Sequence[Request | Cancel]:
        """The requests that depend on no response, greedy of the open prompt first."""
        config, prompts = self._config, self.plan.prompts
        requests: list[Request | Cancel] = []
        if "greedy" in config.probes:
            for form in sorted(prompts, key=lambda form: form != "open"):
                if form in config.formats:
                    requests.append(self._greedy(form))
        if self._beam is not None and self._id("greedy", "open") not in {r.request_id for r in requests}:
            requests += self._beam.start()
        if "sample" in config.probes and self.plan.question.deep and "open" in prompts:
            requests += [self._sample(seed, number) for seed in config.seeds for number in range(config.samples)]
        requests += self._scores()
        return self._sent(requests)

    def receive(self, response: Response) -> list[Request | Cancel]:
        """Take one response; returns the requests that follow from it."""
        beam = self._beam
        if response.final:
            self._waiting.discard(response.request_id)
        if response.request_id.startswith(f"{self._prefix}/beam/"):
            assert beam is not None
            return self._sent(beam.receive(response))
        if response.final:
            self._responses[response.request_id] = response
        if beam is not None and response.request_id == self._id("greedy", "open"):
            return self._sent(beam.seed(response))
        return []

    def _sent(self, requests: Sequence[Request | Cancel]) -> list[Request | Cancel]:
        for request in requests:
            (self._waiting.discard if isinstance(request, Cancel) else self._waiting.add)(request.request_id)
        return list(requests)

    def _id(self, probe: Probe | str, detail: object) -> str:
        return f"{self._prefix}/{probe}/{detail}"

    def _greedy(self, form: Format) -> Generate:
        return Generate(
            request_id=self._id("greedy", form),
            prompt_ids=self.plan.prompts[form].token_ids,
            max_tokens=self._config.max_new_tokens,
            # The open greedy answer is the beam search's first rollout: it then needs the expansions too.
            top_logprobs=self._beam.top_logprobs if form == "open" and self._beam is not None else 0,
            stream=form == "open" and self._beam is not None,
        )

    def _sample(self, seed: int, number: int) -> Generate:
        config = self._config
        return Generate(
            request_id=self._id("sample", f"{seed}/{number}"),
            prompt_ids=self.plan.prompts["open"].token_ids,
            max_tokens=config.max_new_tokens,
            temperature=config.temperature,
            top_p=config.top_p,
            seed=sample_seed(seed, self.plan.question.item.item_id, number),
        )

    def _scores(self) -> list[Request]:
        """One Score per distinct continuation: the gold answer is an option of two probes and the rank probe's."""
        options = (*self.plan.options, *self.plan.hard_options)
        distinct = {_score_key(c): c for c in [o.scored for o in options] + _some(self.plan.gold)}
        return [
            Score(
                request_id=self._id("score", key),
                prompt_ids=continuation.prompt_ids,
                continuation_ids=continuation.continuation_ids,
            )
            for key, continuation in distinct.items()
        ]

    # ---- records ----------------------------------------------------------------------------------------------

    def records(self, stamp: Stamp, decode: Decode) -> list[Record]:
        """Every record of this item, in a fixed order. To be called once, when `done`."""
        config, plan = self._config, self.plan
        recorder = Recorder(stamp, plan.question.item, config.seed)
        records: list[Record] = []
        for probe in PROBES:
            if probe not in config.probes:
                continue
            if probe == "greedy":
                for form in config.formats:
                    records.append(self._greedy_record(recorder, decode, form))
            elif probe in ("beam", "sample") and not plan.question.deep:
                continue
            elif "open" not in plan.prompts:
                records.append(recorder.record(probe, "open", status="excluded", text=plan.question.why_not("open")))
            elif probe == "beam":
                records += self._beam_records(recorder, decode)
            elif probe == "sample":
                for seed in config.seeds:
                    for number in range(config.samples):
                        records.append(self._sample_record(recorder, decode, seed, number))
            elif probe == "rank":
                assert plan.gold is not None
                records.append(self._rank_record(recorder, plan.gold))
            else:
                options = plan.options if probe == "choice" else plan.hard_options
                records += [self._choice_record(recorder, probe, *numbered) for numbered in enumerate(options)]
                if not options:
                    prompt, why = plan.prompts["open"], plan.question.why_not(probe)
                    records.append(recorder.record(probe, "open", prompt, status="excluded", text=why))
        return records

    def _greedy_record(self, recorder: Recorder, decode: Decode, form: Format) -> Record:
        prompt = self.plan.prompts.get(form)
        if prompt is None:  # no candidate to list, no item left to be the exemplar, or too long
            return recorder.record("greedy", form, status="excluded", text=self.plan.question.why_not(form))
        response = self._responses[self._id("greedy", form)]
        if response.status != "ok":
            return recorder.record("greedy", form, prompt, status="engine_error", text=response.error)
        answer = self._graded(decode, response.token_ids)
        logprob, cached = sum(response.logprobs), response.cached_tokens
        return recorder.record("greedy", form, prompt, logprob=logprob, cached_tokens=cached, **answer)

    def _sample_record(self, recorder: Recorder, decode: Decode, seed: int, number: int) -> Record:
        response, prompt = self._responses[self._id("sample", f"{seed}/{number}")], self.plan.prompts["open"]
        if response.status != "ok":
            error = response.error
            return recorder.record("sample", "open", prompt, index=number, seed=seed, status="engine_error", text=error)
        return recorder.record(
            "sample",
            "open",
            prompt,
            index=number,
            seed=seed,
            logprob=sum(response.logprobs) if response.logprobs else None,
            cached_tokens=response.cached_tokens,
            **self._graded(decode, response.token_ids),
        )

    def _beam_records(self, recorder: Recorder, decode: Decode) -> list[Record]:
        assert self._beam is not None
        prompt, error = self.plan.prompts["open"], self._beam.error
        if error is not None:
            return [
                recorder.record("beam", "open", prompt, index=index, status="engine_error", text=error)
                for index in range(self._config.beam_width)
            ]
        return [
            recorder.record(
                "beam", "open", prompt, index=index, logprob=beam.logprob, **self._graded(decode, beam.token_ids)
            )
            for index, beam in enumerate(self._beam.hypotheses())
        ]

    def _graded(self, decode: Decode, token_ids: tuple[int, ...]) -> dict[str, Any]:
        """The columns of a generated answer."""
        if token_ids not in self._answers:  # samples and beams often repeat one another
            item = self.plan.question.item
            text = decode(token_ids)
            graded = grade(strip_thinking(text), item.answers, item.language)
            self._answers[token_ids] = {
                "text": text,
                "token_ids": token_ids,
                "contains": graded.contains,
                "exact_match": graded.exact_match,
                "token_f1": graded.token_f1,
            }
        return self._answers[token_ids]

    def _choice_record(self, recorder: Recorder, probe: Probe, number: int, option: OptionPlan) -> Record:
        response = self._responses[self._id("score", _score_key(option.scored))]
        columns: dict[str, Any] = {"index": number, "is_gold": option.is_gold, "option_text": option.text}
        return recorder.record(probe, "open", self.plan.prompts["open"], **columns, **_scored(response, option.scored))

    def _rank_record(self, recorder: Recorder, gold: Continuation) -> Record:
        response = self._responses[self._id("score", _score_key(gold))]
        columns: dict[str, Any] = {}
        if response.status == "ok":
            margin = response.logprobs[0] - response.top_logprobs[0][0]
            columns = {"rank": response.ranks[0], "margin": margin}
        return recorder.record("rank", "open", self.plan.prompts["open"], **columns, **_scored(response, gold))


def _scored(response: Response, scored: Continuation) -> dict[str, Any]:
    """The columns of a scored continuation."""
    if response.status != "ok":
        return {"status": "engine_error", "text": response.error}
    return {
        "token_ids": response.token_ids,
        "logprob": sum(response.logprobs),
        "prompt_tokens": len(scored.prompt_ids),
        "cached_tokens": response.cached_tokens,
    }


def _score_key(continuation: Continuation) -> str:
    """Names a scored continuation within its item: the prompt's length tells a moved boundary from an unmoved one."""
    return f"{len(continuation.prompt_ids)}:" + ",".join(map(str, continuation.continuation_ids))


def _some(value: Continuation | None) -> list[Continuation]:
    return [] if value is None else [value]
