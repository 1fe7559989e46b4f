"""What an examination holds against what, and how far apart the two may be. Pure: evidence in, findings out.

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
from launch.doctor.evidence import DisagreementError, Evidence, NotHereError
from launch.doctor.witnesses import (
    BY_PROMPT,
    DETERMINISTIC,
    DIVIDED,
    EAGER,
    PRUNING,
    SERVED,
    TRANSFORMERS,
    Witness,
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
# Of the logarithm of the ratio of two ranks: neighbours that are closer than the rounding change places.
RANKS: Mapping[Precision, Tolerance] = {
    "float32": Tolerance(math.log(2) + 1e-9, 0.01),
    "float32 on a GPU": Tolerance(math.log(3), 0.05),
    "half, float32 logits": Tolerance(math.log(4), 0.1),  # measured as above: 0.69 / 0.026
    "half": Tolerance(math.log(8), 0.3),
}
EXACT: Mapping[Precision, Tolerance] = dict.fromkeys(NATS, Tolerance(0, 0))
# Of answers that may differ: a draw that falls between two tokens goes either way when logits are rounded otherwise.
DRAWS: Mapping[Precision, Tolerance] = {
    "float32": Tolerance(0, 0),
    "float32 on a GPU": Tolerance(1, 0.05),
    "half, float32 logits": Tolerance(1, 0.35),
    "half": Tolerance(1, 0.35),
}
# Of a matrix's weights that only one side prunes.
MASKS = dict.fromkeys(NATS, Tolerance(2e-3, 5e-4))
# The same where one side, a GPU, computes in the checkpoint's dtype, and the other, a CPU, in float32. Of the bundled
# model, a CPU that is made to compute in its bfloat16 differs by 2.5e-3 / 9.4e-4 (of the solver's, by 0.011 / 0.0037).
ROUNDED_MASKS = dict.fromkeys(NATS, Tolerance(0.01, 0.004))
SOLVED = dict.fromkeys(NATS, Tolerance(0.05, 0.02))  # a solver's later columns depend on every earlier choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the machine offers to an examination."""

    gpus: int  # that engines run on; 0: engines run on the CPU
    precision: Precision
    unavailable: Mapping[str, str]  # witness -> why it cannot be asked here


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that is held against another."""

    name: str
    fast: str
    slow: str
    witnesses: tuple[Witness, ...]  # without which it is skipped
    measure: Callable[[Evidence], list[float]]
    tolerance: Mapping[Precision, Tolerance]
    unit: str = "nats"

    def find(self, evidence: Evidence, setting: Setting) -> Finding:
        """Hold the two against each other. A disagreement that cannot be measured fails with its reason."""
        tolerance = self.tolerance[setting.precision]
        for witness in self.witnesses:
            if witness.name in setting.unavailable:
                why = setting.unavailable[witness.name]
                return Finding(check=self, status="skipped", tolerance=tolerance, why=why)
        try:
            distances = self.measure(evidence)
        except NotHereError as error:
            return Finding(check=self, status="skipped", tolerance=tolerance, why=str(error))
        except DisagreementError as error:
            return Finding(check=self, status="fail", tolerance=tolerance, why=str(error))
        if not distances:
            return Finding(check=self, status="fail", tolerance=tolerance, why="there was nothing to compare")
        largest, mean = max(distances), math.fsum(distances) / len(distances)
        # Written so that NaN fails.
        holds = largest <= tolerance.largest and mean <= tolerance.mean
        return Finding(
            check=self,
            status="pass" if holds else "fail",
            tolerance=tolerance,
            largest=largest,
            mean=mean,
            compared=len(distances),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What came of a check."""

    check: Check
    status: Status
    tolerance: Tolerance
    why: str = ""  # it was skipped, or failed without a measurement
    largest: float | None = None
    mean: float | None = None
    compared: int = 0

    @property
    def measured(self) -> str:
        """The distances in words, or why there are none."""
        if self.largest is None or self.mean is None:
            return self.why
        return f"{_short(self.largest)} / {_short(self.mean)} {self.check.unit}, of {self.compared}"


def _short(value: float) -> str:
    """Two digits: 0.0005, 4.8e-06."""
    return f"{value:.2g}"


def _stages(one: Witness, stage: str, other: Witness, other_stage: str, kind: str) -> Callable[[Evidence], list[float]]:
    """Compares the answers of a kind, of two witnesses or stages."""
    compare = {
        "score": comparisons.of_scores,
        "greedy": comparisons.of_greedy,
        "sample": comparisons.of_tokens,
        "rank": comparisons.of_ranks,
    }[kind]
    requests = "score" if kind == "rank" else kind

    def measure(evidence: Evidence) -> list[float]:
        ours = evidence.answers(one.name, stage, f"{requests}-")
        return compare(ours, evidence.answers(other.name, other_stage, f"{requests}-"))

    return measure


def _forced(one: Witness, other: Witness) -> Callable[[Evidence], list[float]]:
    """Compares the scores of a witness that forces tokens with another's."""

    def measure(evidence: Evidence) -> list[float]:
        evidence.forced(one.name)
        return _stages(one, "dense", other, "dense", "score")(evidence)

    return measure


def _both(*measures: Callable[[Evidence], list[float]]) -> Callable[[Evidence], list[float]]:
    return lambda evidence: [distance for measure in measures for distance in measure(evidence)]


def _scores_and_greedy(one: Witness, stage: str, other: Witness, other_stage: str) -> Callable[[Evidence], list[float]]:
    return _both(*(_stages(one, stage, other, other_stage, kind) for kind in ("score", "greedy")))


def _twins(*witnesses: Witness) -> Callable[[Evidence], list[float]]:
    """Strict by their own statement: nothing is held against another."""
    return lambda evidence: [
        distance
        for witness in witnesses
        for distance in comparisons.of_twin_ranks(evidence.answers(witness.name, "tied", "score-"))
    ]


def _beams(evidence: Evidence) -> list[float]:
    """Beams as transformers finds them, in float32. In less, a rounding may lead the search elsewhere: what was found
    must have the score that transformers gives it."""
    ours, theirs = evidence.of(SERVED.name), evidence.of(TRANSFORMERS.name)
    distances = comparisons.of_beam_scores(ours.beams, theirs.answers.get("beams", {}))
    if ours.dtype == "float32":
        distances += comparisons.of_beams(ours.beams, theirs.beams)
    return distances


def _deterministic(evidence: Evidence) -> list[float]:
    said = evidence.of(DETERMINISTIC.name)
    if not said.answers:
        raise NotHereError("; ".join(said.notes))
    return _stages(DETERMINISTIC, "dense", DETERMINISTIC, "alone", "sample")(evidence)


def _graphs(evidence: Evidence) -> list[float]:
    if evidence.of(SERVED.name).facts.get("graphs") == "NONE":
        raise NotHereError("vLLM uses none for this model and device")
    return _scores_and_greedy(SERVED, "dense", EAGER, "dense")(evidence)


def _masks(comparison: str) -> Callable[[Evidence], list[float]]:
    return lambda evidence: list(evidence.of(PRUNING.name).shares.get(comparison, {}).values())


CHECKS: tuple[Check, ...] = (
    Check(
        name="scores",
        fast="forced scores",
        slow="prompt log-probabilities",
        witnesses=(SERVED, BY_PROMPT),
        measure=_forced(SERVED, BY_PROMPT),
        tolerance=NATS,
    ),
    Check(
        name="scores, oracle",
        fast="forced scores",
        slow="transformers",
        witnesses=(SERVED, TRANSFORMERS),
        measure=_stages(SERVED, "dense", TRANSFORMERS, "dense", "score"),
        tolerance=APART,
    ),
    Check(
        name="ranks",
        fast="ranks of scored tokens",
        slow="transformers",
        witnesses=(SERVED, TRANSFORMERS),
        measure=_stages(SERVED, "dense", TRANSFORMERS, "dense", "rank"),
        tolerance=RANKS,
        unit="log ratio",
    ),
    Check(
        name="ranks, ties",
        fast="ranks where every token has an equal",
        slow="strict counting, by both ways to score",
        witnesses=(SERVED, BY_PROMPT),
        measure=_twins(SERVED, BY_PROMPT),
        tolerance=EXACT,
        unit="not strict",
    ),
    Check(
        name="greedy",
        fast="greedy answers in a batch",
        slow="transformers, one at a time",
        witnesses=(SERVED, TRANSFORMERS),
        measure=_stages(SERVED, "dense", TRANSFORMERS, "dense", "greedy"),
        tolerance=APART,
    ),
    Check(
        name="beams",
        fast="beams along streamed rollouts",
        slow="transformers' beam search",
        witnesses=(SERVED, TRANSFORMERS),
        measure=_beams,
        tolerance=APART,
        unit="nats per token",
    ),
    Check(
        name="samples",
        fast="seeded samples in a batch",
        slow="each alone",
        witnesses=(SERVED,),
        measure=_stages(SERVED, "dense", SERVED, "alone", "sample"),
        tolerance=DRAWS,
        unit="differ",
    ),
    Check(
        name="two runs",
        fast="the second run of an engine",
        slow="its first",
        witnesses=(SERVED,),
        measure=_scores_and_greedy(SERVED, "again", SERVED, "dense"),
        tolerance=NATS,
    ),
    Check(
        name="swap",
        fast="a pruned checkpoint, swapped in",
        slow="a fresh engine",
        witnesses=(SERVED, BY_PROMPT),
        measure=_scores_and_greedy(SERVED, "pruned", BY_PROMPT, "pruned"),
        tolerance=NATS,
    ),
    Check(
        name="swap, oracle",
        fast="a pruned checkpoint, swapped in",
        slow="transformers",
        witnesses=(SERVED, TRANSFORMERS),
        measure=_scores_and_greedy(SERVED, "pruned", TRANSFORMERS, "pruned"),
        tolerance=APART,
    ),
    Check(
        name="swap back",
        fast="the dense checkpoint, swapped back",
        slow="before the swaps",
        witnesses=(SERVED,),
        measure=_scores_and_greedy(SERVED, "back", SERVED, "dense"),
        tolerance=NATS,
    ),
    Check(
        name="CUDA graphs",
        fast="an engine with CUDA graphs",
        slow="one without",
        witnesses=(SERVED, EAGER),
        measure=_graphs,
        tolerance=NATS,
    ),
    Check(
        name="swap, eager",
        fast="a pruned checkpoint, swapped in without CUDA graphs",
        slow="a fresh engine",
        witnesses=(EAGER, BY_PROMPT),
        measure=_scores_and_greedy(EAGER, "pruned", BY_PROMPT, "pruned"),
        tolerance=NATS,
    ),
    Check(
        name="swap back, eager",
        fast="the dense checkpoint, swapped back without CUDA graphs",
        slow="before the swaps",
        witnesses=(EAGER,),
        measure=_scores_and_greedy(EAGER, "back", EAGER, "dense"),
        tolerance=NATS,
    ),
    Check(
        name="samples, deterministic",
        fast="seeded samples in a batch, with batch-invariant kernels",
        slow="each alone",
        witnesses=(DETERMINISTIC,),
        measure=_deterministic,
        tolerance=EXACT,
        unit="differ",
    ),
    Check(
        name="tensor parallel",
        fast="an engine on two GPUs, before and after a swap",
        slow="on one",
        witnesses=(DIVIDED, SERVED),
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
        witnesses=(PRUNING,),
        measure=_masks("plain"),
        tolerance=MASKS,
        unit="of a matrix's weights",
    ),
    Check(
        name="masks, GPU",
        fast="Wanda on the GPU",
        slow="on the CPU",
        witnesses=(PRUNING, EAGER),
        measure=_masks("gpu_wanda"),
        tolerance=ROUNDED_MASKS,
        unit="of a matrix's weights",
    ),
    Check(
        name="solver, GPU",
        fast="SparseGPT on the GPU",
        slow="on the CPU",
        witnesses=(PRUNING, EAGER),
        measure=_masks("gpu_sparsegpt"),
        tolerance=SOLVED,
        unit="of a matrix's weights",
    ),
)
