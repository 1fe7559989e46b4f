"""How much place the distributions take that bases keep for the probes that compare them (RUN/references)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from evaluator.checkpoints.info import read_config
from evaluator.checkpoints.text_model import text_model
from evaluator.core.errors import InputError
from evaluator.engine.config import ENGINES, EngineConfig
from evaluator.probes.base import PROBES
from evaluator.probes.config import EvalConfig
from launch.sweep.jobs import CheckpointJob
from launch.sweep.tasks import PreparedTask

_LISTED = 8  # bytes of one listed token: its id and its log-probability


def check_references(engine: EngineConfig, tasks: Iterable[PreparedTask]) -> None:
    """Raises InputError for a probe that compares distributions on an engine that cannot."""
    able = [kind.name for kind in ENGINES if kind.references]
    for task in tasks:
        if task.config.references and engine.kind not in able:
            probe = next(name for name in task.config.probes if PROBES[name].references)
            raise InputError(
                f"engine: kind: {engine.kind!r} compares no distributions, which the probe {probe} of task "
                f"{task.name!r} needs: use {' or '.join(able)}"
            )


def keeps(job: CheckpointJob, jobs: Sequence[CheckpointJob]) -> bool:
    """Whether a checkpoint keeps its distributions: it is compared with itself, or another with it."""
    return (job.base is None and not job.is_made) or any(other.base == job.name for other in jobs)


def reference_bytes(task: EvalConfig, positions: int, vocabulary: int, dtype: str) -> int:
    """Of so many positions of one base. A model's logits have the dtype that it computes in; `auto` may be float32."""
    if task.fidelity_top:
        return positions * _LISTED * min(task.fidelity_top, vocabulary)
    return positions * vocabulary * (2 if dtype == "bfloat16" else 4)


def positions_prepared(task: PreparedTask) -> int:
    """At how many positions of a task a base keeps a distribution, at most: answers that run to their cap."""
    if task.config.is_text:
        return sum(len(window.token_ids) for window in task.windows)
    return sum(probe.cost(task.config).compared for probe in task.config.item_probes) * len(task.questions)


def vocabulary_of(checkpoint: Path) -> int:
    """The columns of a model's logits; 0 where its configuration does not say."""
    size: Any = text_model(read_config(checkpoint)).get("vocab_size")
    return size if isinstance(size, int) else 0
