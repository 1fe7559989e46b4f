"""How far two computations of the same numbers may be apart, by what they were computed
in: of an engine's own check, the doctor and `tests/gpu`. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Precision = Literal["float32", "float32 on a GPU", "half, float32 logits", "half"]


def precision(dtype: str, logits: str, *, on_gpu: bool) -> Precision:
    """The key of the tolerances, for a model's dtype and its logits' dtype."""
    if dtype != "float32":
        return "half, float32 logits" if logits == "float32" else "half"
    return "float32 on a GPU" if on_gpu else "float32"


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The largest of some distances and their mean; or how large both may be."""

    largest: float
    mean: float

    @classmethod
    def of(cls, distances: Sequence[float]) -> "Tolerance":
        """NaN without any distance."""
        mean = math.fsum(distances) / max(1, len(distances))
        return cls(max(distances, default=math.nan), mean)

    def allows(self, measured: "Tolerance") -> bool:
        # Written so that NaN fails.
        return measured.largest <= self.largest and measured.mean <= self.mean

    def __str__(self) -> str:
        return f"{self.largest:.2g} / {self.mean:.2g}"


def agree(one_TV: Any, other_TV: Any, computed: Precision) -> bool:
    """Whether two computations of the same logits are as close as rounding explains."""
    one_TV = one_TV.float().log_softmax(-1).nan_to_num()
    distances = (one_TV - other_TV.float().log_softmax(-1).nan_to_num()).abs()
    measured = Tolerance(float(distances.max()), float(distances.mean()))
    return NATS[computed].allows(measured)


# Nats per token between two computations of the same log-probability by one engine.
# Products of float32 on a GPU may keep ten bits of the mantissa. Those of float32 were
# measured on CPUs; the others are estimates, and none was tried on a GPU.
#
# In half precision, the hidden states are rounded, whatever the logits are. On CPUs, in
# bfloat16, we measured:
# - vLLM's V2 runner: the two ways are equal to six digits, so CPU results predict
#   little about a GPU.
# - transformers, a prompt at once and token by token: 0.08 / 0.0013 (bundled model),
#   0.17 / 0.0086 (16 random layers), with logits in float32.
# Twice as many layers round twice as often. Random tokens of a small vocabulary are
# likelier than those of a large one. Both call for room: three times the largest
# distance, and six times the mean. Logits in bfloat16 are rounded as well: of size 16
# and more, they have a resolution of 1/8. On CPUs that added 0.01 at most; a GPU sums
# in other orders.
NATS: Mapping[Precision, Tolerance] = {
    "float32": Tolerance(1e-3, 2e-4),
    "float32 on a GPU": Tolerance(2e-2, 2e-3),
    "half, float32 logits": Tolerance(0.5, 0.05),
    "half": Tolerance(0.75, 0.1),
}
# The same between two programs, which round half precision in other places, however
# exact the logits are. We measured vLLM and transformers in bfloat16 on CPUs: 0.12 /
# 0.013 (bundled model), 0.43 / 0.073 (a random one of 16 layers).
APART: Mapping[Precision, Tolerance] = {**NATS, "half, float32 logits": NATS["half"]}
# Log ratio of two ranks: rounding swaps neighbours that are close.
RANKS: Mapping[Precision, Tolerance] = {
    "float32": Tolerance(math.log(2) + 1e-9, 0.01),
    "float32 on a GPU": Tolerance(math.log(3), 0.05),
    # measured as above: 0.69 / 0.026
    "half, float32 logits": Tolerance(math.log(4), 0.1),
    "half": Tolerance(math.log(8), 0.3),
}
# Share of answers that differ: rounded logits can turn a draw between two tokens either
# way.
DRAWS: Mapping[Precision, Tolerance] = {
    "float32": Tolerance(0, 0),
    "float32 on a GPU": Tolerance(1, 0.05),
    "half, float32 logits": Tolerance(1, 0.35),
    "half": Tolerance(1, 0.35),
}
