"""The doctor's runs: engines and pruning jobs. Each runs in a separate process, which
frees its memory at the end::

    python -m launch.doctor.runs NAME INPUTS RESULT

INPUTS and RESULT are pickles in a temporary folder that only this program writes. An
exception is the reason for a missing result. Checks come later. The cases are a few
requests about the bundled task, the same for every run.
"""

import dataclasses
import pickle
import sys
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evaluator.core.errors import Document, InputError, one_line
from evaluator.core.files import write_atomically
from evaluator.core.isolated import run_module
from evaluator.core.records import TokenIds
from evaluator.engine.base import (
    Engine,
    FixedSource,
    Generate,
    Request,
    Response,
    Score,
)
from evaluator.engine.beam import BeamSearch, Hypothesis
from evaluator.engine.config import EngineConfig, build_engine
from evaluator.engine.processor import usable_cores
from launch.doctor.results import Beams, RunResult

PROMPT_TOKENS = 384  # longest prompt: several cache blocks, the last one partly filled
BEAM_WIDTH, BEAM_TOKENS = 5, 16
_LANGUAGES = 6  # one question per language
_GREEDY_TOKENS, _LISTED = 24, 8
_SAMPLES, _SAMPLE_TOKENS, _TOP_P = 4, 12, 0.9
# contexts that end within, before and after a cache block's end
_CUTS, _LONG = (1, 31, 32, 129, 256), 33
_SEARCHED = 3  # prompts that beams start from


@dataclass(frozen=True, slots=True, kw_only=True)
class Cases:
    """Requests by kind; the ids of a kind begin with its name."""

    scores: tuple[Score, ...]
    greedy: tuple[Generate, ...]
    samples: tuple[Generate, ...]
    searched: dict[str, TokenIds]  # prompts of beam searches, by name
    eos_ids: frozenset[int]

    @property
    def exact(self) -> tuple[Score | Generate, ...]:
        return (*self.scores, *self.greedy)


def cases_for(checkpoint: Path) -> Cases:
    """The cases in a checkpoint's tokens: the same for all checkpoints with its
    tokenizer."""
    from evaluator.checkpoints.tokenizer import load_tokenizer
    from evaluator.probes.config import EvalConfig
    from evaluator.probes.planning import prompter_of, questions_of, tokenised
    from evaluator.tasks import load_task

    config = EvalConfig(
        task="gazetteer",
        items=1,
        probes=("greedy", "choice"),
        prompt_tokens=PROMPT_TOKENS,
    )
    prompter = prompter_of(load_tokenizer(checkpoint), config)
    asked = questions_of(load_task(config.task, None), config)[:_LANGUAGES]
    scores: list[Score] = []
    greedy: list[Generate] = []
    samples: list[Generate] = []
    text: TokenIds = ()

    def score(name: str, prompt: TokenIds, continuation: TokenIds) -> None:
        scores.append(
            Score(
                request_id=f"score-{name}",
                prompt_ids=prompt,
                continuation_ids=continuation,
            )
        )

    for number, question in enumerate(asked):
        plan = tokenised(question, prompter, config)
        prompt = plan.prompts["open"].token_ids
        text += prompt
        for place, option in enumerate(plan.scored.values()):
            score(f"{number}.{place}", option.prompt_ids, option.continuation_ids)
        # The model continues half a prompt for many tokens; it answers a whole one in a
        # few and ends with EOS.
        for part, ids in (("whole", prompt), ("half", prompt[: len(prompt) // 2])):
            request = Generate(
                request_id=f"greedy-{number}.{part}",
                prompt_ids=ids,
                max_tokens=_GREEDY_TOKENS,
                top_logprobs=_LISTED,
            )
            greedy.append(request)
        for draw in range(_SAMPLES):
            request = Generate(
                request_id=f"sample-{number}.{draw}",
                prompt_ids=prompt,
                max_tokens=_SAMPLE_TOKENS,
                temperature=1.0,
                top_p=_TOP_P,
                seed=1000 * number + draw,
            )
            samples.append(request)
    for cut in _CUTS:
        score(f"long.{cut}", text[:cut], text[cut : cut + _LONG])
    return Cases(
        scores=tuple(scores),
        greedy=tuple(greedy),
        samples=tuple(samples),
        searched={
            f"beam-{each.request_id}": each.prompt_ids for each in greedy[:_SEARCHED]
        },
        eos_ids=prompter.eos_ids,
    )


_ENGINE = {
    "max_model_len": PROMPT_TOKENS + 64,
    "max_num_seqs": 32,
    "gpu_memory_utilization": 0.3,  # the model is small, and other work may be there
}
_VARIABLES = {
    # as for a single engine in an evaluation
    "OMP_NUM_THREADS": str(max(1, usable_cores() - 1)),
    # as in an evaluation: which runner, graphs and kernels vLLM chose
    "VLLM_LOGGING_LEVEL": "INFO",
}
_SECONDS = 600  # without a result by then, the run hangs


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    dense: Path
    # an empty folder; the first run writes the checkpoints `pruned` and `tied` into it
    scratch: Path
    logs: Path  # folder of the processes' output
    dtype: str  # "auto"; after the run `served`, its engine's dtype
    # found by the run `served`
    beams: Beams = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Run:
    """One process of the doctor: pruning jobs, or an engine that answers the cases
    on several checkpoints."""

    name: str
    what: str  # for progress lines
    # what the engine loads, in this order; "back": the dense checkpoint again
    stages: tuple[str, ...] = ()
    settings: Document = field(default_factory=dict)  # of the engine
    # on the dense checkpoint, also the samples: all at once, then each alone
    samples: bool = False
    gpus: int = 0  # how many it needs


PRUNING = Run("pruning", "pruning, and the published algorithm beside it")
SERVED = Run(
    "served",
    "the engine as evaluations use it",
    ("dense", "pruned", "tied", "back"),
    samples=True,
)
BY_PROMPT = Run(
    "by_prompt",
    "a fresh engine, scoring by prompt log-probabilities",
    ("pruned", "tied", "dense"),
    {"scoring": "prompt_logprobs"},
)
TRANSFORMERS = Run(
    "transformers", "transformers", ("pruned", "tied", "dense"), {"kind": "torch"}
)
EAGER = Run(
    "eager",
    "the engine without CUDA graphs",
    ("dense", "pruned", "back"),
    {"cuda_graphs": False},
    samples=True,
    gpus=1,
)
DETERMINISTIC = Run(
    "deterministic",
    "the engine with batch-invariant kernels",
    ("dense",),
    {"deterministic": True},
    samples=True,
    gpus=1,
)
DIVIDED = Run(
    "divided",
    "the engine on two GPUs (tensor_parallel: 2)",
    ("dense", "pruned"),
    {"tensor_parallel": 2},
    gpus=2,
)
# In this order: the first run makes the checkpoints, and transformers scores the beams
# of `served`.
RUNS = (PRUNING, SERVED, BY_PROMPT, TRANSFORMERS, EAGER, DETERMINISTIC, DIVIDED)


def run_apart(run: Run, inputs: Inputs) -> RunResult | str:
    """The result of a run, or one line that explains why there is none. A log file
    keeps the run's output."""
    given, written = (
        inputs.scratch / f"{run.name}.{end}" for end in ("inputs", "result")
    )
    log = inputs.logs / f"{run.name}.log"
    given.write_bytes(pickle.dumps(inputs))
    arguments = [run.name, str(given), str(written)]
    ending = run_module(
        "launch.doctor.runs", arguments, log, defaults=_VARIABLES, timeout=_SECONDS
    )
    if not written.exists():
        return f"its process {ending.how}"
    result: RunResult | str = pickle.loads(written.read_bytes())  # noqa: S301
    return result


def main() -> None:
    name, given, written = sys.argv[1:]
    warnings.simplefilter("ignore")
    inputs: Inputs = pickle.loads(Path(given).read_bytes())  # noqa: S301
    result: RunResult | str
    try:
        result = execute(next(each for each in RUNS if each.name == name), inputs)
    except Exception as error:
        import traceback

        traceback.print_exc()
        result = f"{type(error).__name__}: {one_line(error)}"
    write_atomically(Path(written), pickle.dumps(result))


def execute(run: Run, inputs: Inputs) -> RunResult:
    """Execute a run here, timed. Without the mode `deterministic`, the result has a
    note and no answers."""
    started = time.monotonic()
    if run is PRUNING:
        from launch.doctor.checkpoints import prunings

        result = prunings(inputs.dense, inputs.scratch)
    else:
        try:
            result = _answered(run, inputs)
        except InputError as error:
            if run is not DETERMINISTIC:
                raise
            result = RunResult(notes=(str(error),))
    return dataclasses.replace(result, seconds=time.monotonic() - started)


def _answered(run: Run, inputs: Inputs) -> RunResult:
    """An engine's answers by stage, without the stages whose checkpoint is missing."""
    engine = build_engine(
        EngineConfig(**{"dtype": inputs.dtype, **_ENGINE, **run.settings})
    )
    cases = cases_for(inputs.dense)
    paths = {
        stage: inputs.scratch / stage if stage in ("pruned", "tied") else inputs.dense
        for stage in run.stages
    }
    paths = {stage: path for stage, path in paths.items() if path.is_dir()}
    if run is DIVIDED:
        from launch.doctor.checkpoints import write_divisible

        paths = {
            stage: write_divisible(path, inputs.scratch / "divisible" / stage)
            for stage, path in paths.items()
        }
    answers: dict[str, Mapping[str, Response]] = {}
    beams: Beams = {}
    reports = []
    for stage, path in paths.items():
        reports.append(engine.load(path))
        samples = cases.samples if run.samples and stage == "dense" else ()
        answers[stage] = _answers(engine, (*cases.exact, *samples))
        if run is SERVED and stage == "dense":
            answers["again"] = _answers(engine, cases.exact)
            beams = search(engine, cases)
        if samples:
            alone: dict[str, Response] = {}
            for request in samples:
                alone |= _answers(engine, [request])
            answers["alone"] = alone
    if run is TRANSFORMERS:
        answers["beams"] = _answers(engine, scores_of(inputs.beams, cases))
        beams = _transformers_beams(inputs, engine.dtype, cases)
    dtype, report = engine.dtype, reports[0]
    engine.close()
    return RunResult(
        dtype=dtype,
        facts=report.setup,
        scoring=report.scoring,
        notes=report.notes,
        answers=answers,
        beams=beams,
    )


def _answers(engine: Engine, requests: Iterable[Request]) -> dict[str, Response]:
    return {
        response.request_id: response
        for response in engine.run(FixedSource(list(requests)))
    }


def search(engine: Engine, cases: Cases) -> Beams:
    """Beam search from several prompts at once."""
    searches = {
        name: BeamSearch(
            name,
            prompt,
            width=BEAM_WIDTH,
            max_tokens=BEAM_TOKENS,
            eos_ids=cases.eos_ids,
        )
        for name, prompt in cases.searched.items()
    }
    requests: list[Any] = [
        request for search in searches.values() for request in search.start()
    ]
    # the source reads what is appended here
    for response in engine.run(FixedSource(requests)):
        requests += searches[response.request_id.split("/")[0]].advance([response])
    return {name: search.hypotheses() for name, search in searches.items()}


def scores_of(beams: Beams, cases: Cases) -> list[Score]:
    """Requests that score beams, each as `NAME/NUMBER`."""
    return [
        Score(
            request_id=f"{name}/{number}",
            prompt_ids=cases.searched[name],
            continuation_ids=hypothesis.token_ids,
        )
        for name, hypotheses in beams.items()
        for number, hypothesis in enumerate(hypotheses)
    ]


def _transformers_beams(inputs: Inputs, dtype: str, cases: Cases) -> Beams:
    """transformers' own beam search."""
    import torch
    from transformers import AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model: Any = (
        AutoModelForCausalLM.from_pretrained(inputs.dense, dtype=dtype)
        .to(device)
        .eval()
    )
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
        for row, score in zip(
            output.sequences[:, len(prompt) :].tolist(),
            output.sequences_scores.tolist(),
            strict=True,
        ):
            ids: list[int] = []
            for token in row:
                ids.append(token)
                if token in cases.eos_ids:
                    break
            logprob = score * len(ids)
            beams.append(Hypothesis(token_ids=tuple(ids), logprob=logprob, score=score))
        found[name] = tuple(beams)
    return found


if __name__ == "__main__":
    from launch.doctor import runs  # the module whose names the pickles have

    runs.main()
