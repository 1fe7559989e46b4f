"""The engines and pruning jobs of an examination. Each runs in a process of its own, which frees what it took.

A witness is a function of what it is told (`Brief`) that returns what was answered (`Statement`); an exception of its
own is why there is no statement. Nothing is judged here.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evaluator.core.errors import InputError
from evaluator.engine.base import Engine, FixedSource, LoadReport, Request, Response, Score
from evaluator.engine.beam import BeamSearch, Hypothesis
from evaluator.engine.config import EngineConfig, build_engine
from launch.doctor.evidence import Statement
from launch.doctor.questions import BEAM_TOKENS, BEAM_WIDTH, PROMPT_TOKENS, Questions, questions_for

_MAX_MODEL_LEN = PROMPT_TOKENS + 64
_SEQUENCES = 32
_GPU_SHARE = 0.3  # of a GPU's memory for an engine: the model is small, and other work may be there


@dataclass(frozen=True, slots=True, kw_only=True)
class Brief:
    """What a witness is told."""

    dense: Path
    pruned: Path  # made of `dense` by the first witness
    tied: Path  # likewise: every second token is its neighbour's twin
    scratch: Path
    logs: Path  # a folder: what the witnesses' processes write
    dtype: str  # "auto", or what the engine under examination computes in
    beams: Mapping[str, tuple[Hypothesis, ...]] = field(default_factory=dict)  # found by the engine under examination


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """One process of an examination."""

    name: str
    what: str  # for progress lines
    state: Callable[[Brief], Statement]
    gpus: int = 0  # how many it needs


def _pruning(brief: Brief) -> Statement:
    from launch.doctor.masks import prunings

    return prunings(brief.dense, brief.pruned, brief.tied, brief.scratch)


def _served(brief: Brief) -> Statement:
    """The engine as a run uses it: everything at once, again, one by one, and swapped there and back."""
    engine, asked = build_engine(_config(brief)), questions_for(brief.dense)
    report = engine.load(brief.dense)
    answers = {"dense": _ask(engine, (*asked.exact, *asked.samples)), "again": _ask(engine, asked.exact)}
    answers["alone"] = {name: each for one in asked.samples for name, each in _ask(engine, [one]).items()}
    beams = _search(engine, asked)
    answers |= _after_swaps(engine, {"pruned": brief.pruned, "tied": brief.tied, "back": brief.dense}, asked)
    return _closed(engine, answers, report, beams=beams)


def _by_prompt(brief: Brief) -> Statement:
    """A fresh engine on the pruned checkpoint that scores by prompt log-probabilities."""
    engine, asked = build_engine(_config(brief, scoring="prompt_logprobs")), questions_for(brief.dense)
    first = brief.pruned if brief.pruned.is_dir() else brief.dense
    report = engine.load(first)
    answers = {} if first == brief.dense else {"pruned": _ask(engine, asked.exact)}
    answers |= _after_swaps(engine, {"tied": brief.tied, "dense": brief.dense}, asked)
    return _closed(engine, answers, report)


def _once(brief: Brief, swaps: Mapping[str, Path] | None = None, **settings: Any) -> Statement:
    """Another engine on the dense checkpoint: everything at once, and samples one by one; then after `swaps`."""
    engine, asked = build_engine(_config(brief, **settings)), questions_for(brief.dense)
    report = engine.load(brief.dense)
    answers = {"dense": _ask(engine, (*asked.exact, *asked.samples))}
    answers["alone"] = {name: each for one in asked.samples for name, each in _ask(engine, [one]).items()}
    answers |= _after_swaps(engine, swaps or {}, asked)
    return _closed(engine, answers, report)


def _eager(brief: Brief) -> Statement:
    return _once(brief, {"pruned": brief.pruned, "back": brief.dense}, cuda_graphs=False)


def _divided(brief: Brief) -> Statement:
    """An engine whose model is divided between two workers, each of which compares its part with the files."""
    from launch.doctor.divisible import write_divisible

    engine, asked = build_engine(_config(brief, tensor_parallel=2)), questions_for(brief.dense)
    checkpoints = {
        name: write_divisible(checkpoint, brief.scratch / "divisible" / name)
        for name, checkpoint in (("dense", brief.dense), ("pruned", brief.pruned))
        if checkpoint.is_dir()
    }
    report = engine.load(checkpoints["dense"])
    answers = {"dense": _ask(engine, asked.exact)}
    answers |= _after_swaps(engine, {name: each for name, each in checkpoints.items() if name != "dense"}, asked)
    return _closed(engine, answers, report)


def _deterministic(brief: Brief) -> Statement:
    """Without answers, and with the reason as a note, where vLLM or the GPU has no such mode."""
    try:
        return _once(brief, deterministic=True)
    except InputError as error:
        return Statement(notes=(str(error),))


def _transformers(brief: Brief) -> Statement:
    """The same questions to transformers, and the beams that the engine under examination found, scored."""
    engine, asked = build_engine(_config(brief, kind="torch")), questions_for(brief.dense)
    answers: dict[str, Mapping[str, Response]] = {}
    for stage, checkpoint in (("pruned", brief.pruned), ("tied", brief.tied), ("dense", brief.dense)):
        if checkpoint.is_dir():
            report = engine.load(checkpoint)
            answers[stage] = _ask(engine, asked.exact)
    answers["beams"] = _ask(
        engine,
        [
            Score(
                request_id=f"{name}/{number}",
                prompt_ids=asked.searched[name],
                continuation_ids=hypothesis.token_ids,
            )
            for name, hypotheses in brief.beams.items()
            for number, hypothesis in enumerate(hypotheses)
        ],
    )
    return _closed(engine, answers, report, beams=_transformers_beams(brief, engine.dtype, asked))


def _config(brief: Brief, **settings: Any) -> EngineConfig:
    common = {
        "dtype": brief.dtype,
        "max_model_len": _MAX_MODEL_LEN,
        "max_num_seqs": _SEQUENCES,
        "gpu_memory_utilization": _GPU_SHARE,
    }
    return EngineConfig(**(common | settings))


def _ask(engine: Engine, requests: Iterable[Request]) -> dict[str, Response]:
    return {response.request_id: response for response in engine.run(FixedSource(list(requests)))}


def _after_swaps(engine: Engine, stages: Mapping[str, Path], asked: Questions) -> dict[str, dict[str, Response]]:
    """One stage after another; one whose checkpoint could not be made is left out."""
    answers = {}
    for stage, checkpoint in stages.items():
        if checkpoint.is_dir():
            engine.load(checkpoint)
            answers[stage] = _ask(engine, asked.exact)
    return answers


def _search(engine: Engine, asked: Questions) -> dict[str, tuple[Hypothesis, ...]]:
    """Beam search from several prompts at once."""
    searches = {
        name: BeamSearch(name, prompt, width=BEAM_WIDTH, max_tokens=BEAM_TOKENS, eos_ids=asked.eos_ids)
        for name, prompt in asked.searched.items()
    }
    source = _Waiting([request for search in searches.values() for request in search.start()])
    for response in engine.run(source):
        source.requests += searches[response.request_id.split("/")[0]].receive(response)
    return {name: search.hypotheses() for name, search in searches.items()}


@dataclass(slots=True)
class _Waiting:
    """A source of requests that grows with the responses."""

    requests: list[Any]

    def take(self, limit: int) -> list[Any]:
        given, self.requests = self.requests[:limit], self.requests[limit:]
        return given


def _transformers_beams(brief: Brief, dtype: str, asked: Questions) -> dict[str, tuple[Hypothesis, ...]]:
    """transformers' own beam search."""
    import torch
    from transformers import AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model: Any = AutoModelForCausalLM.from_pretrained(brief.dense, dtype=dtype).to(device).eval()
    found = {}
    for name, prompt in asked.searched.items():
        output = model.generate(
            torch.tensor([prompt], device=device),
            num_beams=BEAM_WIDTH,
            num_return_sequences=BEAM_WIDTH,
            length_penalty=1.0,
            early_stopping=False,
            do_sample=False,
            max_new_tokens=BEAM_TOKENS,
            return_dict_in_generate=True,
            output_scores=True,
        )
        beams = []
        for row, score in zip(output.sequences[:, len(prompt) :].tolist(), output.sequences_scores, strict=True):
            end = next((place + 1 for place, token in enumerate(row) if token in asked.eos_ids), len(row))
            beams.append(Hypothesis(token_ids=tuple(row[:end]), logprob=float(score) * end, score=float(score)))
        found[name] = tuple(beams)
    return found


def _closed(
    engine: Engine,
    answers: Mapping[str, Mapping[str, Response]],
    report: LoadReport,
    beams: Mapping[str, tuple[Hypothesis, ...]] | None = None,
) -> Statement:
    """What an engine answered, and how it was loaded; the engine is closed."""
    dtype = engine.dtype
    engine.close()
    return Statement(
        dtype=dtype,
        facts=report.setup,
        scoring=report.scoring,
        notes=report.notes,
        answers=answers,
        beams=beams or {},
    )


PRUNING = Witness(name="pruning", what="pruning, and the published algorithm beside it", state=_pruning)
SERVED = Witness(name="served", what="the engine as a run uses it", state=_served)
BY_PROMPT = Witness(name="by_prompt", what="a fresh engine, scoring by prompt log-probabilities", state=_by_prompt)
TRANSFORMERS = Witness(name="transformers", what="transformers", state=_transformers)
EAGER = Witness(name="eager", what="the engine without CUDA graphs", state=_eager, gpus=1)
DETERMINISTIC = Witness(
    name="deterministic", what="the engine with batch-invariant kernels", state=_deterministic, gpus=1
)
DIVIDED = Witness(name="divided", what="the engine on two GPUs (tensor_parallel: 2)", state=_divided, gpus=2)
# In the order of their hearing: checkpoints are made first, and transformers scores the beams that were found.
WITNESSES = (PRUNING, SERVED, BY_PROMPT, TRANSFORMERS, EAGER, DETERMINISTIC, DIVIDED)


def statement_of(witness: Witness, brief: Brief) -> Statement:
    """Hear a witness in this process, and for how long."""
    started = time.monotonic()
    statement = witness.state(brief)
    return dataclasses.replace(statement, seconds=time.monotonic() - started)
