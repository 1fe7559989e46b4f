"""Our vLLM engine's own loop in front of a `PacedCore`: what a GPU's engine runs, but for vLLM and the GPU."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from benchmarks.paced.core import Clock, PacedCore
from benchmarks.paced.language import ScriptedLM
from evaluator.checkpoints.blueprint import read_blueprint
from evaluator.engine.base import LoadReport
from evaluator.engine.config import EngineConfig
from evaluator.engine.vllm.engine import VLLMEngine
from evaluator.engine.vllm.requests.sampling import Dialect
from evaluator.engine.vllm.start import Started
from evaluator.probes.base import ItemPlan
from evaluator.probes.planning import Plan
from launch.sweep.estimate import vocabulary_of

_LEAD_IN = 3  # tokens before the gold answer


class PacedEngine(VLLMEngine):
    """Requests are worded as for vLLM's V2 runner, which GPUs have: candidates are scored by forced decoding."""

    def __init__(self, core: PacedCore, rows: int, model: Path, eos_id: int, graphs: str) -> None:
        super().__init__(EngineConfig(max_num_seqs=rows))
        self._core = core
        self._graphs = graphs
        self._rows = rows
        self._eos_ids = [eos_id]
        self.load(model)

    def load(self, checkpoint: Path) -> LoadReport:
        """The core is ready as it is; `checkpoint` says what requests are held against."""
        self._blueprint = read_blueprint(checkpoint)
        self._started = Started(
            llm=SimpleNamespace(engine_core=self._core),
            dialect=Dialect(v2=True),
            max_model_len=4096,
            positions=4096,
            max_num_seqs=self._rows,
            dtype="bfloat16",
            scoring="forced",
            graphs=self._graphs,
        )
        return LoadReport(checkpoint=checkpoint, swapped=False, tensors=0, seconds=0.0)


@dataclass(frozen=True, slots=True)
class Paced:
    engine: PacedEngine
    core: PacedCore


def paced_engine(
    plans: Sequence[Plan],
    model: Path,
    eos_id: int,
    *,
    pace: float,
    rows: int,
    graphs: str = "FULL",
    clock: Clock | None = None,
) -> Paced:
    """An engine that answers `plans`; a step of at most `rows` rows takes `pace` seconds. `graphs` is vLLM's name."""
    language = ScriptedLM(vocabulary_of(model), eos_id)
    plant_answers(language, plans)
    core = PacedCore(language, pace=pace, rows=rows, clock=clock)
    engine = PacedEngine(core, rows, model, eos_id, graphs)
    gc.collect()
    gc.freeze()  # as vLLM does when its engine core has been built
    return Paced(engine, core)


def plant_answers(model: ScriptedLM, plans: Sequence[Plan]) -> None:
    """Every second item is answered: some words of its context, then the gold answer."""
    for plan in plans[::2]:
        if isinstance(plan, ItemPlan) and "open" in plan.prompts and plan.scored:
            prompt = plan.prompts["open"].token_ids
            gold = plan.scored.get(plan.question.item.answers[0])
            if gold is not None:
                model.plant(prompt, (*prompt[:_LEAD_IN], *gold.continuation_ids))
