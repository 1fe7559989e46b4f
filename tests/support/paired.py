"""What the gate compares, from plain numbers."""

from typing import Any

import numpy as np

from evaluator.deciding.criteria import Paired, Probe
from evaluator.metrics.intervals import Floats


def paired(base: Floats, own: Floats, **more: Any) -> Paired:
    """The open answers of a base and of a checkpoint to the same items, each of a
    context of its own. `answers`: of other probes."""
    count = len(base)
    values: dict[str, Any] = {
        "languages": np.full(count, "english", dtype=object),
        "contexts": np.arange(count),
    }
    answers: dict[Probe, Any] = {"open": (base, own, np.ones(count, dtype=bool))}
    answers |= more.pop("answers", {})
    return Paired.of_answers(**values | more, answers=answers)
