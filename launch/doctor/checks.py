"""The doctor's checks: which results are compared, and how far apart they may be.
Pure.

A check is an object in `CHECKS`. It measures distances, one for each thing compared,
and passes if the largest and the mean are within the tolerance of what the engine
computed in."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from evaluator.engine.comparisons import (
    DisagreementError,
    of_ranks,
    of_scores,
    of_tokens,
)
from evaluator.engine.tolerances import (
    APART,
    DRAWS,
    EXACT,
    MASKS,
    NATS,
    RANKS,
    ROUNDED_MASKS,
    SOLVED,
    Precision,
    Tolerance,
)
from launch.doctor.results import (
    NotHereError,
    Results,
    of_beam_scores,
    of_beams,
    of_greedy,
    of_twin_ranks,
)
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
class Check:
    """One comparison of a fast path with a slow one: of the first run's answers with
    the last run's."""

    name: str
    fast: str
    slow: str
    runs: tuple[Run, ...]  # the check is skipped without them
    tolerance: Mapping[Precision, Tolerance]
    unit: str = "nats"
    # of the fast and of the slow side
    stages: tuple[tuple[str, str], ...] = (("dense", "dense"),)
    kinds: tuple[str, ...] = ("score",)  # of answers; "rank": the ranks of scores
    # the distances, in place of those between answers
    measure: Callable[[Results], list[float]] | None = None
    # raises an error if there is nothing to compare
    need: Callable[[Results], object] | None = None

    def compare(
        self, results: Results, precision: Precision, unavailable: Mapping[str, str]
    ) -> "CheckResult":
        """Compare both. Answers that cannot be compared fail with the reason.
        `unavailable`: run -> why it is."""
        result = CheckResult(
            check=self, status="skipped", tolerance=self.tolerance[precision]
        )
        for run in self.runs:
            if run.name in unavailable:
                return replace(result, why=unavailable[run.name])
        try:
            distances = self._distances(results)
        except NotHereError as error:
            return replace(result, why=str(error))
        except DisagreementError as error:
            return replace(result, status="fail", why=str(error))
        if not distances:
            return replace(result, status="fail", why="there was nothing to compare")
        measured = Tolerance.of(distances)
        status: Status = "pass" if result.tolerance.allows(measured) else "fail"
        return replace(
            result, status=status, distances=measured, compared=len(distances)
        )

    def _distances(self, results: Results) -> list[float]:
        if self.need is not None:
            self.need(results)
        if self.measure is not None:
            return self.measure(results)
        distances = []
        for (stage, other_stage), kind in product(self.stages, self.kinds):
            requests, compare = _COMPARISONS[kind]
            one = results.answers(self.runs[0].name, stage, requests)
            distances += compare(
                one, results.answers(self.runs[-1].name, other_stage, requests)
            )
        return distances


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    check: Check
    status: Status
    tolerance: Tolerance
    why: str = ""  # reason of a skip, or of a failure without a measurement
    distances: Tolerance | None = None  # that were measured
    compared: int = 0

    @property
    def measured(self) -> str:
        """The distances in words, or the reason for their absence."""
        if self.distances is None:
            return self.why
        return f"{self.distances} {self.check.unit}, of {self.compared}"


# By kind: the beginning of the requests' ids, and the comparison of two runs' answers
# to them.
_COMPARISONS = {
    "score": ("score-", of_scores),
    "rank": ("score-", of_ranks),
    "greedy": ("greedy-", of_greedy),
    "sample": ("sample-", of_tokens),
}


def _twins(results: Results) -> list[float]:
    """Whether each way to score counts ranks strictly; no other run is needed."""
    answers = [
        results.answers(run.name, "tied", "score-") for run in (SERVED, BY_PROMPT)
    ]
    return [distance for each in answers for distance in of_twin_ranks(each)]


def _beams(results: Results) -> list[float]:
    """In float32: the beams that transformers finds. In half precision, rounding may
    change the search, so only the scores of the found beams must be those of
    transformers."""
    ours, theirs = results.of(SERVED.name), results.of(TRANSFORMERS.name)
    distances = of_beam_scores(ours.beams, theirs.answers.get("beams", {}))
    if ours.dtype == "float32":
        distances += of_beams(ours.beams, theirs.beams)
    return distances


def _masks(name: str) -> Callable[[Results], list[float]]:
    """Measures the share of each matrix's weights that only one side of a comparison
    pruned."""
    return lambda results: list(results.of(PRUNING.name).shares.get(name, {}).values())


def _need_graphs(results: Results) -> None:
    if results.of(SERVED.name).facts.get("graphs") == "NONE":
        raise NotHereError("vLLM uses none for this model and device")


def _need_deterministic(results: Results) -> None:
    result = results.of(DETERMINISTIC.name)
    if not result.answers:
        raise NotHereError("; ".join(result.notes))


_ANSWERS, _PRUNED = ("score", "greedy"), (("pruned", "pruned"),)
# fmt: off
CHECKS: tuple[Check, ...] = (
    Check("scores", "forced scores", "prompt log-probabilities",
          (SERVED, BY_PROMPT), need=lambda results: results.forced(SERVED.name), tolerance=NATS),
    Check("scores, oracle", "forced scores", "transformers", (SERVED, TRANSFORMERS), tolerance=APART),
    Check("ranks", "ranks of scored tokens", "transformers",
          (SERVED, TRANSFORMERS), kinds=("rank",), tolerance=RANKS, unit="log ratio"),
    Check("ranks, ties", "ranks where every token has an equal", "strict counting, by both ways to score",
          (SERVED, BY_PROMPT), measure=_twins, tolerance=EXACT, unit="not strict"),
    Check("greedy", "greedy answers in a batch", "transformers, one at a time",
          (SERVED, TRANSFORMERS), kinds=("greedy",), tolerance=APART),
    Check("beams", "beams along streamed rollouts", "transformers' beam search",
          (SERVED, TRANSFORMERS), measure=_beams, tolerance=APART, unit="nats per token"),
    Check("samples", "seeded samples in a batch", "each alone",
          (SERVED,), stages=(("dense", "alone"),), kinds=("sample",), tolerance=DRAWS, unit="differ"),
    Check("two runs", "the second run of an engine", "its first",
          (SERVED,), stages=(("again", "dense"),), kinds=_ANSWERS, tolerance=NATS),
    Check("swap", "a pruned checkpoint, swapped in", "a fresh engine",
          (SERVED, BY_PROMPT), stages=_PRUNED, kinds=_ANSWERS, tolerance=NATS),
    Check("swap, oracle", "a pruned checkpoint, swapped in", "transformers",
          (SERVED, TRANSFORMERS), stages=_PRUNED, kinds=_ANSWERS, tolerance=APART),
    Check("swap back", "the dense checkpoint, swapped back", "before the swaps",
          (SERVED,), stages=(("back", "dense"),), kinds=_ANSWERS, tolerance=NATS),
    Check("CUDA graphs", "an engine with CUDA graphs", "one without",
          (SERVED, EAGER), kinds=_ANSWERS, need=_need_graphs, tolerance=NATS),
    Check("swap, eager", "a pruned checkpoint, swapped in without CUDA graphs", "a fresh engine",
          (EAGER, BY_PROMPT), stages=_PRUNED, kinds=_ANSWERS, tolerance=NATS),
    Check("swap back, eager", "the dense checkpoint, swapped back without CUDA graphs", "before the swaps",
          (EAGER,), stages=(("back", "dense"),), kinds=_ANSWERS, tolerance=NATS),
    Check("samples, deterministic", "seeded samples in a batch, with batch-invariant kernels", "each alone",
          (DETERMINISTIC,), tolerance=EXACT, unit="differ",
          stages=(("dense", "alone"),), kinds=("sample",), need=_need_deterministic),
    Check("tensor parallel", "an engine on two GPUs, before and after a swap", "on one",
          (DIVIDED, SERVED), tolerance=APART,
          stages=(("dense", "dense"), ("pruned", "pruned")), kinds=_ANSWERS,
          need=lambda results: results.forced(DIVIDED.name)),
    Check("masks", "Wanda, layer by layer", "the published algorithm, written plainly",
          (PRUNING,), measure=_masks("plain"), tolerance=MASKS, unit="of a matrix's weights"),
    Check("masks, GPU", "Wanda on the GPU", "on the CPU",
          (PRUNING, EAGER), measure=_masks("gpu_wanda"), tolerance=ROUNDED_MASKS, unit="of a matrix's weights"),
    Check("solver, GPU", "SparseGPT on the GPU", "on the CPU",
          (PRUNING, EAGER), measure=_masks("gpu_sparsegpt"), tolerance=SOLVED, unit="of a matrix's weights"),
)
# fmt: on
