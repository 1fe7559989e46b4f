"""The doctor's checks: which results are compared, and how far apart they may be. Pure.

A check is an object in `CHECKS`. It measures distances, one for each thing compared, and passes if the largest and the
mean are within the tolerance of what the engine computed in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from evaluator.engine.self_check import TOLERANCES, Precision
from launch.doctor import comparisons
from launch.doctor.results import DisagreementError, NotHereError, Results
from launch.doctor.runs import (
    BY_PROMPT,
    DETERMINISTIC,
    DIVIDED,
    EAGER,
    PRUNING,
    SERVED,
    TRANSFORMERS,
    Run,
)

Status = Literal["pass", "fail", "skipped"]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How large the distances of a check may be."""

    largest: float
    mean: float

    def __str__(self) -> str:
        return f"{_short(self.largest)} / {_short(self.mean)}"


# Nats per token between two computations of the same log-probability: the engine's own, when it checks itself.
NATS: Mapping[Precision, Tolerance] = {name: Tolerance(*allowed) for name, allowed in TOLERANCES.items()}
# The same between two programs, which round half precision in other places, however exact the logits are. We measured
# vLLM and transformers in bfloat16 on CPUs: 0.12 / 0.013 (bundled model), 0.43 / 0.073 (a random one of 16 layers).
APART: Mapping[Precision, Tolerance] = {**NATS, "half, float32 logits": NATS["half"]}
# Log ratio of two ranks: rounding swaps neighbours that are close.
RANKS: Mapping[Precision, Tolerance] = {
    "float32": Tolerance(math.log(2) + 1e-9, 0.01),
    "float32 on a GPU": Tolerance(math.log(3), 0.05),
    "half, float32 logits": Tolerance(math.log(4), 0.1),  # measured as above: 0.69 / 0.026
    "half": Tolerance(math.log(8), 0.3),
}
EXACT: Mapping[Precision, Tolerance] = dict.fromkeys(NATS, Tolerance(0, 0))
# Share of answers that differ: rounded logits can turn a draw between two tokens either way.
DRAWS: Mapping[Precision, Tolerance] = {
    "float32": Tolerance(0, 0),
    "float32 on a GPU": Tolerance(1, 0.05),
    "half, float32 logits": Tolerance(1, 0.35),
    "half": Tolerance(1, 0.35),
}
# Share of a matrix's weights that only one side prunes.
MASKS = dict.fromkeys(NATS, Tolerance(2e-3, 5e-4))
# The same between a GPU in the checkpoint's dtype and a CPU in float32. Measured on a CPU with the bundled model in
# bfloat16: 2.5e-3 / 9.4e-4; for the solver 0.011 / 0.0037.
ROUNDED_MASKS = dict.fromkeys(NATS, Tolerance(0.01, 0.004))
SOLVED = dict.fromkeys(NATS, Tolerance(0.05, 0.02))  # a solver's later columns depend on every earlier choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The limits of this machine."""

    gpus: int  # for engines; 0: engines run on the CPU
    precision: Precision
    unavailable: Mapping[str, str]  # run -> why it is impossible here


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One comparison of a fast path with a slow one."""

    name: str
    fast: str
    slow: str
    runs: tuple[Run, ...]  # the check is skipped without them
    measure: Callable[[Results], list[float]]
    tolerance: Mapping[Precision, Tolerance]
    unit: str = "nats"

    def compare(self, results: Results, setting: Setting) -> CheckResult:
        """Compare both. Answers that cannot be compared fail with the reason."""
        tolerance = self.tolerance[setting.precision]
        for run in self.runs:
            if run.name in setting.unavailable:
                why = setting.unavailable[run.name]
                return CheckResult(check=self, status="skipped", tolerance=tolerance, why=why)
        try:
            distances = self.measure(results)
        except NotHereError as error:
            return CheckResult(check=self, status="skipped", tolerance=tolerance, why=str(error))
        except DisagreementError as error:
            return CheckResult(check=self, status="fail", tolerance=tolerance, why=str(error))
        if not distances:
            return CheckResult(check=self, status="fail", tolerance=tolerance, why="there was nothing to compare")
        largest, mean = max(distances), math.fsum(distances) / len(distances)
        # Written so that NaN fails.
        holds = largest <= tolerance.largest and mean <= tolerance.mean
        return CheckResult(
            check=self,
            status="pass" if holds else "fail",
            tolerance=tolerance,
            largest=largest,
            mean=mean,
            compared=len(distances),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The result of a check."""

    check: Check
    status: Status
    tolerance: Tolerance
    why: str = ""  # reason of a skip, or of a failure without a measurement
    largest: float | None = None
    mean: float | None = None
    compared: int = 0

    @property
    def measured(self) -> str:
        """The distances in words, or the reason for their absence."""
        if self.largest is None or self.mean is None:
            return self.why
        return f"{_short(self.largest)} / {_short(self.mean)} {self.check.unit}, of {self.compared}"


def _short(value: float) -> str:
    """Two digits: 0.0005, 4.8e-06."""
    return f"{value:.2g}"


def _stages(one: Run, stage: str, other: Run, other_stage: str, kind: str) -> Callable[[Results], list[float]]:
    """Compares one kind of answers between two runs or stages."""
    compare = {
        "score": comparisons.of_scores,
        "greedy": comparisons.of_greedy,
        "sample": comparisons.of_tokens,
        "rank": comparisons.of_ranks,
    }[kind]
    requests = "score" if kind == "rank" else kind

    def measure(results: Results) -> list[float]:
        ours = results.answers(one.name, stage, f"{requests}-")
        return compare(ours, results.answers(other.name, other_stage, f"{requests}-"))

    return measure


def _forced(one: Run, other: Run) -> Callable[[Results], list[float]]:
    """Compares the scores of a run that forces tokens with another's."""

    def measure(results: Results) -> list[float]:
        results.forced(one.name)
        return _stages(one, "dense", other, "dense", "score")(results)

    return measure


def _both(*measures: Callable[[Results], list[float]]) -> Callable[[Results], list[float]]:
    return lambda results: [distance for measure in measures for distance in measure(results)]


def _scores_and_greedy(one: Run, stage: str, other: Run, other_stage: str) -> Callable[[Results], list[float]]:
    return _both(*(_stages(one, stage, other, other_stage, kind) for kind in ("score", "greedy")))


def _twins(*runs: Run) -> Callable[[Results], list[float]]:
    """Whether each run counts ranks strictly; no other run is needed."""
    return lambda results: [
        distance for run in runs for distance in comparisons.of_twin_ranks(results.answers(run.name, "tied", "score-"))
    ]


def _beams(results: Results) -> list[float]:
    """In float32: the beams that transformers finds. In half precision, rounding may change the search, so only the
    scores of the found beams must be those of transformers."""
    ours, theirs = results.of(SERVED.name), results.of(TRANSFORMERS.name)
    distances = comparisons.of_beam_scores(ours.beams, theirs.answers.get("beams", {}))
    if ours.dtype == "float32":
        distances += comparisons.of_beams(ours.beams, theirs.beams)
    return distances


def _deterministic(results: Results) -> list[float]:
    result = results.of(DETERMINISTIC.name)
    if not result.answers:
        raise NotHereError("; ".join(result.notes))
    return _stages(DETERMINISTIC, "dense", DETERMINISTIC, "alone", "sample")(results)


def _graphs(results: Results) -> list[float]:
    if results.of(SERVED.name).facts.get("graphs") == "NONE":
        raise NotHereError("vLLM uses none for this model and device")
    return _scores_and_greedy(SERVED, "dense", EAGER, "dense")(results)


def _masks(comparison: str) -> Callable[[Results], list[float]]:
    return lambda results: list(results.of(PRUNING.name).shares.get(comparison, {}).values())


CHECKS: tuple[Check, ...] = (
    Check(
        name="scores",
        fast="forced scores",
        slow="prompt log-probabilities",
        runs=(SERVED, BY_PROMPT),
        measure=_forced(SERVED, BY_PROMPT),
        tolerance=NATS,
    ),
    Check(
        name="scores, oracle",
        fast="forced scores",
        slow="transformers",
        runs=(SERVED, TRANSFORMERS),
        measure=_stages(SERVED, "dense", TRANSFORMERS, "dense", "score"),
        tolerance=APART,
    ),
    Check(
        name="ranks",
        fast="ranks of scored tokens",
        slow="transformers",
        runs=(SERVED, TRANSFORMERS),
        measure=_stages(SERVED, "dense", TRANSFORMERS, "dense", "rank"),
        tolerance=RANKS,
        unit="log ratio",
    ),
    Check(
        name="ranks, ties",
        fast="ranks where every token has an equal",
        slow="strict counting, by both ways to score",
        runs=(SERVED, BY_PROMPT),
        measure=_twins(SERVED, BY_PROMPT),
        tolerance=EXACT,
        unit="not strict",
    ),
    Check(
        name="greedy",
        fast="greedy answers in a batch",
        slow="transformers, one at a time",
        runs=(SERVED, TRANSFORMERS),
        measure=_stages(SERVED, "dense", TRANSFORMERS, "dense", "greedy"),
        tolerance=APART,
    ),
    Check(
        name="beams",
        fast="beams along streamed rollouts",
        slow="transformers' beam search",
        runs=(SERVED, TRANSFORMERS),
        measure=_beams,
        tolerance=APART,
        unit="nats per token",
    ),
    Check(
        name="samples",
        fast="seeded samples in a batch",
        slow="each alone",
        runs=(SERVED,),
        measure=_stages(SERVED, "dense", SERVED, "alone", "sample"),
        tolerance=DRAWS,
        unit="differ",
    ),
    Check(
        name="two runs",
        fast="the second run of an engine",
        slow="its first",
        runs=(SERVED,),
        measure=_scores_and_greedy(SERVED, "again", SERVED, "dense"),
        tolerance=NATS,
    ),
    Check(
        name="swap",
        fast="a pruned checkpoint, swapped in",
        slow="a fresh engine",
        runs=(SERVED, BY_PROMPT),
        measure=_scores_and_greedy(SERVED, "pruned", BY_PROMPT, "pruned"),
        tolerance=NATS,
    ),
    Check(
        name="swap, oracle",
        fast="a pruned checkpoint, swapped in",
        slow="transformers",
        runs=(SERVED, TRANSFORMERS),
        measure=_scores_and_greedy(SERVED, "pruned", TRANSFORMERS, "pruned"),
        tolerance=APART,
    ),
    Check(
        name="swap back",
        fast="the dense checkpoint, swapped back",
        slow="before the swaps",
        runs=(SERVED,),
        measure=_scores_and_greedy(SERVED, "back", SERVED, "dense"),
        tolerance=NATS,
    ),
    Check(
        name="CUDA graphs",
        fast="an engine with CUDA graphs",
        slow="one without",
        runs=(SERVED, EAGER),
        measure=_graphs,
        tolerance=NATS,
    ),
    Check(
        name="swap, eager",
        fast="a pruned checkpoint, swapped in without CUDA graphs",
        slow="a fresh engine",
        runs=(EAGER, BY_PROMPT),
        measure=_scores_and_greedy(EAGER, "pruned", BY_PROMPT, "pruned"),
        tolerance=NATS,
    ),
    Check(
        name="swap back, eager",
        fast="the dense checkpoint, swapped back without CUDA graphs",
        slow="before the swaps",
        runs=(EAGER,),
        measure=_scores_and_greedy(EAGER, "back", EAGER, "dense"),
        tolerance=NATS,
    ),
    Check(
        name="samples, deterministic",
        fast="seeded samples in a batch, with batch-invariant kernels",
        slow="each alone",
        runs=(DETERMINISTIC,),
        measure=_deterministic,
        tolerance=EXACT,
        unit="differ",
    ),
    Check(
        name="tensor parallel",
        fast="an engine on two GPUs, before and after a swap",
        slow="on one",
        runs=(DIVIDED, SERVED),
        measure=_both(
            _forced(DIVIDED, SERVED),
            *(_scores_and_greedy(DIVIDED, stage, SERVED, stage) for stage in ("dense", "pruned")),
        ),
        tolerance=APART,
    ),
    Check(
        name="masks",
        fast="Wanda, layer by layer",
        slow="the published algorithm, written plainly",
        runs=(PRUNING,),
        measure=_masks("plain"),
        tolerance=MASKS,
        unit="of a matrix's weights",
    ),
    Check(
        name="masks, GPU",
        fast="Wanda on the GPU",
        slow="on the CPU",
        runs=(PRUNING, EAGER),
        measure=_masks("gpu_wanda"),
        tolerance=ROUNDED_MASKS,
        unit="of a matrix's weights",
    ),
    Check(
        name="solver, GPU",
        fast="SparseGPT on the GPU",
        slow="on the CPU",
        runs=(PRUNING, EAGER),
        measure=_masks("gpu_sparsegpt"),
        tolerance=SOLVED,
        unit="of a matrix's weights",
    ),
)
