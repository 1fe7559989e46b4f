"""From a question to the requests it needs, and from their responses to records. Pure: no engine, no clock, no files.

`plan` tokenises a question once for all checkpoints that share a tokenizer. `ItemProbes` is the state machine of one
item on one checkpoint: it starts with the requests that need no answer first (greedy leads, since it warms the prefix
that all others share), and its beam search asks for more as responses arrive.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from evaluator.config import EvalConfig
from evaluator.engine.base import Generate, Request, Response, Score
from evaluator.engine.beam import BeamSearch
from evaluator.grading import grade, strip_thinking
from evaluator.prompts import Continuation, Prompt, Prompter
from evaluator.questions import Question
from evaluator.records import Format, Probe, Record, Status
from evaluator.tasks.selection import gold_option

# Probes that are asked of the open prompt only, whatever formats are evaluated (protocol.md, Probes).
OPEN_PROBES: tuple[Probe, ...] = ("beam", "sample", "choice", "rank")

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionPlan:
    text: str
    is_gold: bool
    scored: Continuation


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemPlan:
    """A question in token ids. `gold` and `options` continue the open prompt."""

    question: Question
    prompts: Mapping[Format, Prompt]
    options: tuple[OptionPlan, ...] = ()
    gold: Continuation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """What every record of one checkpoint on one engine carries."""

    checkpoint: str
    weights_digest: str
    base: str | None
    method: str | None
    pattern: str | None
    sparsity: float | None
    calibration: str | None
    engine: str
    engine_version: str
    dtype: str


def plan(question: Question, prompter: Prompter, config: EvalConfig) -> ItemPlan:
    """Tokenise one question.

    Raises InputError when a prompt does not fit its token cap even with an empty context.
    """
    if question.excluded:
        return ItemPlan(question=question, prompts={})
    item = question.item
    formats = set(config.formats) if "greedy" in config.probes else set()
    if any(probe in config.probes for probe in OPEN_PROBES):
        formats.add("open")
    prompts = {
        form: prompter.build(item, form, candidates=question.candidates.get(form, ()), exemplar=question.exemplar)
        for form in sorted(formats)
        if form != "one_shot" or question.exemplar is not None
    }
    options = question.options if "choice" in config.probes else None
    texts = (*(options.texts if options else ()), *([gold_option(item)] if "rank" in config.probes else ()))
    scored = prompter.continuations(prompts["open"], texts) if texts else []
    return ItemPlan(
        question=question,
        prompts=prompts,
        options=tuple(
            OptionPlan(text=text, is_gold=number == options.gold, scored=scored[number])
            for number, text in enumerate(options.texts)
        )
        if options
        else (),
        gold=scored[-1] if "rank" in config.probes else None,
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
        deep = plan.question.deep and not plan.question.excluded
        self._beam: BeamSearch | None = None
        if deep and "beam" in config.probes:
            self._beam = BeamSearch(
                f"{serial}/beam",
                plan.prompts["open"].token_ids,
                width=config.beam_width,
                max_tokens=config.max_new_tokens,
                eos_ids=eos_ids,
            )
        self._beam_error: str | None = None

    @property
    def done(self) -> bool:
        return not self._waiting

    def start(self) -> list[Request]:
        """The requests that depend on no response, greedy of the open prompt first."""
        config, prompts = self._config, self.plan.prompts
        requests: list[Request] = []
        if "greedy" in config.probes:
            for form in sorted(prompts, key=lambda form: form != "open"):
                if form in config.formats:
                    requests.append(self._greedy(form))
        if self._beam is not None and self._id("greedy", "open") not in {r.request_id for r in requests}:
            requests += self._beam.start()
        if "sample" in config.probes and self.plan.question.deep and "open" in prompts:
            requests += [self._sample(number) for number in range(config.samples)]
        requests += self._scores()
        return self._sent(requests)

    def receive(self, response: Response) -> list[Request]:
        """Take one response; returns the requests that follow from it."""
        self._waiting.discard(response.request_id)
        beam = self._beam
        if response.request_id.startswith(f"{self._prefix}/beam/"):
            assert beam is not None
            return self._advance_beam(beam.receive, response)
        self._responses[response.request_id] = response
        if beam is not None and response.request_id == self._id("greedy", "open"):
            return self._advance_beam(beam.seed, response)
        return []

    def _advance_beam(self, step: Callable[[Response], list[Generate]], response: Response) -> list[Request]:
        if response.status != "ok" or self._beam_error is not None:
            self._beam_error = self._beam_error or response.error or "engine error"
            return []
        return self._sent(step(response))

    def _sent(self, requests: Sequence[Request]) -> list[Request]:
        self._waiting.update(request.request_id for request in requests)
        return list(requests)

    def _id(self, probe: Probe | str, detail: object) -> str:
        return f"{self._prefix}/{probe}/{detail}"

    def _greedy(self, form: Format) -> Generate:
        return Generate(
            request_id=self._id("greedy", form),
            prompt_ids=self.plan.prompts[form].token_ids,
            max_tokens=self._config.max_new_tokens,
            # The open greedy answer is the beam search's first rollout: it then needs the expansions too.
            top_logprobs=2 * self._config.beam_width if form == "open" and self._beam is not None else 0,
        )

    def _sample(self, number: int) -> Generate:
        config = self._config
        return Generate(
            request_id=self._id("sample", number),
            prompt_ids=self.plan.prompts["open"].token_ids,
            max_tokens=config.max_new_tokens,
            temperature=config.temperature,
            top_p=config.top_p,
            seed=sample_seed(config.seed, self.plan.question.item.item_id, number),
        )

    def _scores(self) -> list[Request]:
        """One Score per distinct continuation: the gold answer is often both an option and the rank probe's."""
        distinct = {_score_key(c): c for c in [o.scored for o in self.plan.options] + _some(self.plan.gold)}
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
        if self.plan.question.excluded:
            return [
                self._record(stamp, probe, form, status="excluded")
                for probe in self._config.probes
                for form in (self._config.formats if probe == "greedy" else ("open",))
                if self.plan.question.deep or probe not in ("beam", "sample")
            ]
        records: list[Record] = []
        if "greedy" in self._config.probes:
            for form in self._config.formats:
                if form not in self.plan.prompts:  # one_shot in a language with no item left to be the exemplar
                    records.append(self._record(stamp, "greedy", form, status="excluded"))
                    continue
                records.append(self._generated(stamp, decode, "greedy", form, 0, self._id("greedy", form)))
        if self.plan.question.deep:
            records += self._beams(stamp, decode)
            if "sample" in self._config.probes:
                records += [
                    self._generated(stamp, decode, "sample", "open", number, self._id("sample", number))
                    for number in range(self._config.samples)
                ]
        for number, option in enumerate(self.plan.options):
            records.append(self._choice(stamp, number, option))
        if self.plan.gold is not None:
            records.append(self._rank(stamp, self.plan.gold))
        return records

    def _generated(
        self, stamp: Stamp, decode: Decode, probe: Probe, form: Format, index: int, request_id: str
    ) -> Record:
        response = self._responses[request_id]
        if response.status != "ok":
            return self._record(stamp, probe, form, index=index, status="engine_error", text=response.error)
        return self._answer(
            stamp,
            decode,
            probe,
            form,
            index,
            response.token_ids,
            sum(response.logprobs) if response.logprobs else None,
            response.cached_tokens,
        )

    def _beams(self, stamp: Stamp, decode: Decode) -> list[Record]:
        if self._beam is None:
            return []
        if self._beam_error is not None:
            return [
                self._record(stamp, "beam", "open", index=index, status="engine_error", text=self._beam_error)
                for index in range(self._config.beam_width)
            ]
        return [
            self._answer(stamp, decode, "beam", "open", index, beam.token_ids, beam.logprob, None)
            for index, beam in enumerate(self._beam.hypotheses())
        ]

    def _answer(
        self,
        stamp: Stamp,
        decode: Decode,
        probe: Probe,
        form: Format,
        index: int,
        token_ids: tuple[int, ...],
        logprob: float | None,
        cached_tokens: int | None,
    ) -> Record:
        item = self.plan.question.item
        text = decode(token_ids)
        graded = grade(strip_thinking(text), item.answers, item.language)
        return self._record(
            stamp,
            probe,
            form,
            index=index,
            text=text,
            token_ids=token_ids,
            logprob=logprob,
            contains=graded.contains,
            exact_match=graded.exact_match,
            token_f1=graded.token_f1,
            cached_tokens=cached_tokens,
        )

    def _choice(self, stamp: Stamp, number: int, option: OptionPlan) -> Record:
        response = self._responses[self._id("score", _score_key(option.scored))]
        if response.status != "ok":
            return self._record(
                stamp, "choice", "open", index=number, status="engine_error", text=response.error,
                is_gold=option.is_gold, option_text=option.text,
            )  # fmt: skip
        return self._record(
            stamp,
            "choice",
            "open",
            index=number,
            token_ids=response.token_ids,
            logprob=sum(response.logprobs),
            is_gold=option.is_gold,
            option_text=option.text,
            prompt_tokens=len(option.scored.prompt_ids),
            cached_tokens=response.cached_tokens,
        )

    def _rank(self, stamp: Stamp, gold: Continuation) -> Record:
        response = self._responses[self._id("score", _score_key(gold))]
        if response.status != "ok":
            return self._record(stamp, "rank", "open", status="engine_error", text=response.error)
        return self._record(
            stamp,
            "rank",
            "open",
            token_ids=response.token_ids,
            logprob=sum(response.logprobs),
            rank=response.ranks[0],
            margin=response.logprobs[0] - response.top_logprobs[0][0],
            prompt_tokens=len(gold.prompt_ids),
            cached_tokens=response.cached_tokens,
        )

    def _record(
        self,
        stamp: Stamp,
        probe: Probe,
        form: Format,
        *,
        index: int = 0,
        status: Status = "ok",
        text: str | None = None,
        token_ids: tuple[int, ...] | None = None,
        logprob: float | None = None,
        rank: int | None = None,
        margin: float | None = None,
        is_gold: bool | None = None,
        option_text: str | None = None,
        contains: bool | None = None,
        exact_match: bool | None = None,
        token_f1: float | None = None,
        prompt_tokens: int | None = None,
        cached_tokens: int | None = None,
    ) -> Record:
        item, prompt = self.plan.question.item, self.plan.prompts.get(form)
        if prompt is not None and status == "ok" and prompt.truncated:
            status = "truncated"
        return Record(
            checkpoint=stamp.checkpoint,
            weights_digest=stamp.weights_digest,
            base=stamp.base,
            method=stamp.method,
            pattern=stamp.pattern,
            sparsity=stamp.sparsity,
            calibration=stamp.calibration,
            task=item.task,
            language=item.language,
            item_id=item.item_id,
            format=form,
            probe=probe,
            index=index,
            seed=self._config.seed,
            status=status,
            text=text,
            token_ids=token_ids,
            logprob=logprob,
            rank=rank,
            margin=margin,
            is_gold=is_gold,
            option_text=option_text,
            contains=contains,
            exact_match=exact_match,
            token_f1=token_f1,
            prompt_tokens=prompt_tokens if prompt_tokens is not None else (len(prompt.token_ids) if prompt else None),
            truncated=prompt.truncated if prompt else None,
            cached_tokens=cached_tokens,
            engine=stamp.engine,
            engine_version=stamp.engine_version,
            dtype=stamp.dtype,
        )


def _score_key(continuation: Continuation) -> str:
    """Names a scored continuation within its item: the prompt's length tells a moved boundary from an unmoved one."""
    return f"{len(continuation.prompt_ids)}:" + ",".join(map(str, continuation.continuation_ids))


def _some(value: Continuation | None) -> list[Continuation]:
    return [] if value is None else [value]
