"""The doctor's runs: engines and pruning jobs. Each runs in a separate process, which frees its memory at the end.

A run is a function from `Inputs` to `RunResult`. An exception is the reason for a missing result. Checks come later.
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
from launch.doctor.cases import BEAM_TOKENS, BEAM_WIDTH, PROMPT_TOKENS, Cases, cases_for
from launch.doctor.results import RunResult

_MAX_MODEL_LEN = PROMPT_TOKENS + 64
_SEQUENCES = 32
_GPU_SHARE = 0.3  # of a GPU's memory for an engine: the model is small, and other work may be there


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The inputs of a run."""

    dense: Path
    pruned: Path  # the first run makes it from `dense`
    tied: Path  # likewise; every second token equals the token before it
    scratch: Path
    logs: Path  # folder of the processes' output
    dtype: str  # "auto"; after the run `served`, its engine's dtype
    beams: Mapping[str, tuple[Hypothesis, ...]] = field(default_factory=dict)  # found by the run `served`


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One process of the doctor."""

    name: str
    what: str  # for progress lines
    execute: Callable[[Inputs], RunResult]
    gpus: int = 0  # how many it needs


def _pruning(inputs: Inputs) -> RunResult:
    from launch.doctor.checkpoints import prunings

    return prunings(inputs.dense, inputs.pruned, inputs.tied, inputs.scratch)


def _served(inputs: Inputs) -> RunResult:
    """The engine as `resurface eval` uses it: all cases at once, again, one by one, and after swaps."""
    engine, cases = build_engine(_config(inputs)), cases_for(inputs.dense)
    report = engine.load(inputs.dense)
    answers = {"dense": _answers(engine, (*cases.exact, *cases.samples)), "again": _answers(engine, cases.exact)}
    answers["alone"] = {name: each for one in cases.samples for name, each in _answers(engine, [one]).items()}
    beams = _search(engine, cases)
    answers |= _after_swaps(engine, {"pruned": inputs.pruned, "tied": inputs.tied, "back": inputs.dense}, cases)
    return _closed(engine, answers, report, beams=beams)


def _by_prompt(inputs: Inputs) -> RunResult:
    """A fresh engine on the pruned checkpoint that scores by prompt log-probabilities."""
    engine, cases = build_engine(_config(inputs, scoring="prompt_logprobs")), cases_for(inputs.dense)
    first = inputs.pruned if inputs.pruned.is_dir() else inputs.dense
    report = engine.load(first)
    answers = {} if first == inputs.dense else {"pruned": _answers(engine, cases.exact)}
    answers |= _after_swaps(engine, {"tied": inputs.tied, "dense": inputs.dense}, cases)
    return _closed(engine, answers, report)


def _once(inputs: Inputs, swaps: Mapping[str, Path] | None = None, **settings: Any) -> RunResult:
    """Another engine on the dense checkpoint: all cases at once, samples one by one, then all after `swaps`."""
    engine, cases = build_engine(_config(inputs, **settings)), cases_for(inputs.dense)
    report = engine.load(inputs.dense)
    answers = {"dense": _answers(engine, (*cases.exact, *cases.samples))}
    answers["alone"] = {name: each for one in cases.samples for name, each in _answers(engine, [one]).items()}
    answers |= _after_swaps(engine, swaps or {}, cases)
    return _closed(engine, answers, report)


def _eager(inputs: Inputs) -> RunResult:
    return _once(inputs, {"pruned": inputs.pruned, "back": inputs.dense}, cuda_graphs=False)


def _divided(inputs: Inputs) -> RunResult:
    """An engine with two workers; each compares its part of the model with the files."""
    from launch.doctor.checkpoints import write_divisible

    engine, cases = build_engine(_config(inputs, tensor_parallel=2)), cases_for(inputs.dense)
    checkpoints = {
        name: write_divisible(checkpoint, inputs.scratch / "divisible" / name)
        for name, checkpoint in (("dense", inputs.dense), ("pruned", inputs.pruned))
        if checkpoint.is_dir()
    }
    report = engine.load(checkpoints["dense"])
    answers = {"dense": _answers(engine, cases.exact)}
    answers |= _after_swaps(engine, {name: each for name, each in checkpoints.items() if name != "dense"}, cases)
    return _closed(engine, answers, report)


def _deterministic(inputs: Inputs) -> RunResult:
    """If vLLM or the GPU lacks this mode, the result has no answers and the reason as a note."""
    try:
        return _once(inputs, deterministic=True)
    except InputError as error:
        return RunResult(notes=(str(error),))


def _transformers(inputs: Inputs) -> RunResult:
    """The cases answered by transformers, and the scores of the beams that the run `served` found."""
    engine, cases = build_engine(_config(inputs, kind="torch")), cases_for(inputs.dense)
    answers: dict[str, Mapping[str, Response]] = {}
    for stage, checkpoint in (("pruned", inputs.pruned), ("tied", inputs.tied), ("dense", inputs.dense)):
        if checkpoint.is_dir():
            report = engine.load(checkpoint)
            answers[stage] = _answers(engine, cases.exact)
    answers["beams"] = _answers(
        engine,
        [
            Score(
                request_id=f"{name}/{number}",
                prompt_ids=cases.searched[name],
                continuation_ids=hypothesis.token_ids,
            )
            for name, hypotheses in inputs.beams.items()
            for number, hypothesis in enumerate(hypotheses)
        ],
    )
    return _closed(engine, answers, report, beams=_transformers_beams(inputs, engine.dtype, cases))


def _config(inputs: Inputs, **settings: Any) -> EngineConfig:
    common = {
        "dtype": inputs.dtype,
        "max_model_len": _MAX_MODEL_LEN,
        "max_num_seqs": _SEQUENCES,
        "gpu_memory_utilization": _GPU_SHARE,
    }
    return EngineConfig(**(common | settings))


def _answers(engine: Engine, requests: Iterable[Request]) -> dict[str, Response]:
    return {response.request_id: response for response in engine.run(FixedSource(list(requests)))}


def _after_swaps(engine: Engine, stages: Mapping[str, Path], cases: Cases) -> dict[str, dict[str, Response]]:
    """The answers by stage; without the stages whose checkpoint is missing."""
    answers = {}
    for stage, checkpoint in stages.items():
        if checkpoint.is_dir():
            engine.load(checkpoint)
            answers[stage] = _answers(engine, cases.exact)
    return answers


def _search(engine: Engine, cases: Cases) -> dict[str, tuple[Hypothesis, ...]]:
    """Beam search from several prompts at once."""
    searches = {
        name: BeamSearch(name, prompt, width=BEAM_WIDTH, max_tokens=BEAM_TOKENS, eos_ids=cases.eos_ids)
        for name, prompt in cases.searched.items()
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


def _transformers_beams(inputs: Inputs, dtype: str, cases: Cases) -> dict[str, tuple[Hypothesis, ...]]:
    """transformers' own beam search."""
    import torch
    from transformers import AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model: Any = AutoModelForCausalLM.from_pretrained(inputs.dense, dtype=dtype).to(device).eval()
    found = {}
    for name, prompt in cases.searched.items():
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
            end = next((place + 1 for place, token in enumerate(row) if token in cases.eos_ids), len(row))
            beams.append(Hypothesis(token_ids=tuple(row[:end]), logprob=float(score) * end, score=float(score)))
        found[name] = tuple(beams)
    return found


def _closed(
    engine: Engine,
    answers: Mapping[str, Mapping[str, Response]],
    report: LoadReport,
    beams: Mapping[str, tuple[Hypothesis, ...]] | None = None,
) -> RunResult:
    """Close the engine and return its answers and its load report."""
    dtype = engine.dtype
    engine.close()
    return RunResult(
        dtype=dtype,
        facts=report.setup,
        scoring=report.scoring,
        notes=report.notes,
        answers=answers,
        beams=beams or {},
    )


PRUNING = Run(name="pruning", what="pruning, and the published algorithm beside it", execute=_pruning)
SERVED = Run(name="served", what="the engine as evaluations use it", execute=_served)
BY_PROMPT = Run(name="by_prompt", what="a fresh engine, scoring by prompt log-probabilities", execute=_by_prompt)
TRANSFORMERS = Run(name="transformers", what="transformers", execute=_transformers)
EAGER = Run(name="eager", what="the engine without CUDA graphs", execute=_eager, gpus=1)
DETERMINISTIC = Run(
    name="deterministic", what="the engine with batch-invariant kernels", execute=_deterministic, gpus=1
)
DIVIDED = Run(name="divided", what="the engine on two GPUs (tensor_parallel: 2)", execute=_divided, gpus=2)
# In this order: the first run makes the checkpoints, and transformers scores the beams of `served`.
RUNS = (PRUNING, SERVED, BY_PROMPT, TRANSFORMERS, EAGER, DETERMINISTIC, DIVIDED)


def execute_here(run: Run, inputs: Inputs) -> RunResult:
    """Execute a run in this process and measure its time."""
    started = time.monotonic()
    result = run.execute(inputs)
    return dataclasses.replace(result, seconds=time.monotonic() - started)
