"""What the gate compares, from plain numbers."""

from typing import Any

import numpy as np

from evaluator.deciding.criteria import Paired
from evaluator.metrics.intervals import Floats


def paired(base: Floats, own: Floats, **more: Any) -> Paired:
    """The open answers of a base and of a checkpoint to the same items, each of a
    context of its own; nothing else was asked."""
    count = len(base)
    unasked, every = np.full(count, np.nan), np.ones(count, dtype=bool)
    values: dict[str, Any] = {
        "languages": np.full(count, "english", dtype=object),
        "contexts": np.arange(count),
        "base_said": base,
        "said": own,
        "base_picked": unasked,
        "picked": unasked,
        "open": every,
        "choice": ~every,
    }
    return Paired(**values | more)
