"""The doctor's checks: which results are compared, and how far apart they may be. Pure.

A check is an object in `CHECKS`. It measures distances, one for each thing compared, and passes if the largest and the
mean are within the tolerance of what the engine computed in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from evaluator.engine.self_check import TOLERANCES, Precision
from launch.doctor.results import (
    DisagreementError,
    NotHereError,
    Results,
    of_beam_scores,
    of_beams,
    of_greedy,
    of_ranks,
    of_scores,
    of_tokens,
    of_twin_ranks,
)
from launch.doctor.runs import BY_PROMPT, DETERMINISTIC, DIVIDED, EAGER, PRUNING, SERVED, TRANSFORMERS, Run

Status = Literal["pass", "fail", "skipped"]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How large the distances of a check may be."""

    largest: float
    mean: float

    def __str__(self) -> str:
        return f"{self.largest:.2g} / {self.mean:.2g}"


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
    """One comparison of a fast path with a slow one: of the first run's answers with the last run's."""

    name: str
    fast: str
    slow: str
    runs: tuple[Run, ...]  # the check is skipped without them
    tolerance: Mapping[Precision, Tolerance]
    unit: str = "nats"
    stages: tuple[tuple[str, str], ...] = (("dense", "dense"),)  # of the fast and of the slow side
    kinds: tuple[str, ...] = ("score",)  # of answers; "rank": the ranks of scores
    shares: str = ""  # the comparison of pruning masks, in place of answers
    measure: Callable[[Results], list[float]] | None = None  # the distances, in place of those between answers
    need: Callable[[Results], object] | None = None  # raises an error if there is nothing to compare

    def compare(self, results: Results, setting: Setting) -> CheckResult:
        """Compare both. Answers that cannot be compared fail with the reason."""
        result = CheckResult(check=self, status="skipped", tolerance=self.tolerance[setting.precision])
        for run in self.runs:
            if run.name in setting.unavailable:
                return replace(result, why=setting.unavailable[run.name])
        try:
            distances = self._distances(results)
        except NotHereError as error:
            return replace(result, why=str(error))
        except DisagreementError as error:
            return replace(result, status="fail", why=str(error))
        if not distances:
            return replace(result, status="fail", why="there was nothing to compare")
        largest, mean = max(distances), math.fsum(distances) / len(distances)
        # Written so that NaN fails.
        holds = largest <= result.tolerance.largest and mean <= result.tolerance.mean
        status: Status = "pass" if holds else "fail"
        return replace(result, status=status, largest=largest, mean=mean, compared=len(distances))

    def _distances(self, results: Results) -> list[float]:
        if self.need is not None:
            self.need(results)
        if self.measure is not None:
            return self.measure(results)
        if self.shares:
            return list(results.of(PRUNING.name).shares.get(self.shares, {}).values())
        distances = []
        for (stage, other_stage), kind in product(self.stages, self.kinds):
            requests, compare = _COMPARISONS[kind]
            one = results.answers(self.runs[0].name, stage, requests)
            distances += compare(one, results.answers(self.runs[-1].name, other_stage, requests))
        return distances


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
        return f"{self.largest:.2g} / {self.mean:.2g} {self.check.unit}, of {self.compared}"


# By kind: the beginning of the requests' ids, and the comparison of two runs' answers to them.
_COMPARISONS = {
    "score": ("score-", of_scores),
    "rank": ("score-", of_ranks),
    "greedy": ("greedy-", of_greedy),
    "sample": ("sample-", of_tokens),
}


def _twins(results: Results) -> list[float]:
    """Whether each way to score counts ranks strictly; no other run is needed."""
    answers = [results.answers(run.name, "tied", "score-") for run in (SERVED, BY_PROMPT)]
    return [distance for each in answers for distance in of_twin_ranks(each)]


def _beams(results: Results) -> list[float]:
    """In float32: the beams that transformers finds. In half precision, rounding may change the search, so only the
    scores of the found beams must be those of transformers."""
    ours, theirs = results.of(SERVED.name), results.of(TRANSFORMERS.name)
    distances = of_beam_scores(ours.beams, theirs.answers.get("beams", {}))
    if ours.dtype == "float32":
        distances += of_beams(ours.beams, theirs.beams)
    return distances


def _need_graphs(results: Results) -> None:
    if results.of(SERVED.name).facts.get("graphs") == "NONE":
        raise NotHereError("vLLM uses none for this model and device")


def _need_deterministic(results: Results) -> None:
    result = results.of(DETERMINISTIC.name)
    if not result.answers:
        raise NotHereError("; ".join(result.notes))


CHECKS: tuple[Check, ...] = (
    Check(
        name="scores",
        fast="forced scores",
        slow="prompt log-probabilities",
        runs=(SERVED, BY_PROMPT),
        need=lambda results: results.forced(SERVED.name),
        tolerance=NATS,
    ),
    Check(
        name="scores, oracle", fast="forced scores", slow="transformers", runs=(SERVED, TRANSFORMERS), tolerance=APART
    ),
    Check(
        name="ranks",
        fast="ranks of scored tokens",
        slow="transformers",
        runs=(SERVED, TRANSFORMERS),
        kinds=("rank",),
        tolerance=RANKS,
        unit="log ratio",
    ),
    Check(
        name="ranks, ties",
        fast="ranks where every token has an equal",
        slow="strict counting, by both ways to score",
        runs=(SERVED, BY_PROMPT),
        measure=_twins,
        tolerance=EXACT,
        unit="not strict",
    ),
    Check(
        name="greedy",
        fast="greedy answers in a batch",
        slow="transformers, one at a time",
        runs=(SERVED, TRANSFORMERS),
        kinds=("greedy",),
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
        stages=(("dense", "alone"),),
        kinds=("sample",),
        tolerance=DRAWS,
        unit="differ",
    ),
    Check(
        name="two runs",
        fast="the second run of an engine",
        slow="its first",
        runs=(SERVED,),
        stages=(("again", "dense"),),
        kinds=("score", "greedy"),
        tolerance=NATS,
    ),
    Check(
        name="swap",
        fast="a pruned checkpoint, swapped in",
        slow="a fresh engine",
        runs=(SERVED, BY_PROMPT),
        stages=(("pruned", "pruned"),),
        kinds=("score", "greedy"),
        tolerance=NATS,
    ),
    Check(
        name="swap, oracle",
        fast="a pruned checkpoint, swapped in",
        slow="transformers",
        runs=(SERVED, TRANSFORMERS),
        stages=(("pruned", "pruned"),),
        kinds=("score", "greedy"),
        tolerance=APART,
    ),
    Check(
        name="swap back",
        fast="the dense checkpoint, swapped back",
        slow="before the swaps",
        runs=(SERVED,),
        stages=(("back", "dense"),),
        kinds=("score", "greedy"),
        tolerance=NATS,
    ),
    Check(
        name="CUDA graphs",
        fast="an engine with CUDA graphs",
        slow="one without",
        runs=(SERVED, EAGER),
        kinds=("score", "greedy"),
        need=_need_graphs,
        tolerance=NATS,
    ),
    Check(
        name="swap, eager",
        fast="a pruned checkpoint, swapped in without CUDA graphs",
        slow="a fresh engine",
        runs=(EAGER, BY_PROMPT),
        stages=(("pruned", "pruned"),),
        kinds=("score", "greedy"),
        tolerance=NATS,
    ),
    Check(
        name="swap back, eager",
        fast="the dense checkpoint, swapped back without CUDA graphs",
        slow="before the swaps",
        runs=(EAGER,),
        stages=(("back", "dense"),),
        kinds=("score", "greedy"),
        tolerance=NATS,
    ),
    Check(
        name="samples, deterministic",
        fast="seeded samples in a batch, with batch-invariant kernels",
        slow="each alone",
        runs=(DETERMINISTIC,),
        stages=(("dense", "alone"),),
        kinds=("sample",),
        need=_need_deterministic,
        tolerance=EXACT,
        unit="differ",
    ),
    Check(
        name="tensor parallel",
        fast="an engine on two GPUs, before and after a swap",
        slow="on one",
        runs=(DIVIDED, SERVED),
        stages=(("dense", "dense"), ("pruned", "pruned")),
        kinds=("score", "greedy"),
        need=lambda results: results.forced(DIVIDED.name),
        tolerance=APART,
    ),
    Check(
        name="masks",
        fast="Wanda, layer by layer",
        slow="the published algorithm, written plainly",
        runs=(PRUNING,),
        shares="plain",
        tolerance=MASKS,
        unit="of a matrix's weights",
    ),
    Check(
        name="masks, GPU",
        fast="Wanda on the GPU",
        slow="on the CPU",
        runs=(PRUNING, EAGER),
        shares="gpu_wanda",
        tolerance=ROUNDED_MASKS,
        unit="of a matrix's weights",
    ),
    Check(
        name="solver, GPU",
        fast="SparseGPT on the GPU",
        slow="on the CPU",
        runs=(PRUNING, EAGER),
        shares="gpu_sparsegpt",
        tolerance=SOLVED,
        unit="of a matrix's weights",
    ),
)
