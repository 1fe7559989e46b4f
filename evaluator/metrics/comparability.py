"""Whether a checkpoint and its base were asked alike: a difference between them is damage only if nothing else differs.

What is held against each other, item by item: the engine, its version and dtype, the length of the open prompt (another
template or tokenizer), how many beams and samples there are. And of run.json: the settings of the task, the seed among
them, and how each checkpoint's answers were scored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from evaluator.metrics.inputs import Comparison, Inputs
from evaluator.records import SERVING

NOT_COMPARABLE = "not comparable"

# Outcome columns that must be equal on both sides of an item, and what a difference is called.
_ALIKE = {
    **{name: name.replace("_", " ") for name in SERVING},
    "greedy_prompt_tokens": "prompt tokens (another template or tokenizer)",
    "beams": "beams",
    "samples": "samples",
}
# Settings of a task that say what is asked, not how an answer comes about.
_WHAT = ("probes", "formats", "name", "languages", "items")


def differences(inputs: Inputs, comparison: Comparison) -> list[str]:
    """How the checkpoint was asked otherwise than its base, one clause each: base first. Empty: comparable."""
    return [*_of_records(comparison.outcomes), *_of_run(inputs.run, comparison)]


def label(inputs: Inputs, comparison: Comparison) -> str | None:
    """The differences as a reason for a table's row; None where there are none."""
    found = differences(inputs, comparison)
    return f"{NOT_COMPARABLE} with the base: {', '.join(found)}" if found else None


def _of_records(items: pd.DataFrame) -> Iterator[str]:
    for name, what in _ALIKE.items():
        dense, pruned = items[f"{name}_dense"], items[f"{name}_pruned"]
        differ = dense.notna() & pruned.notna() & (dense != pruned)
        if differ.any():
            first = int(np.flatnonzero(differ)[0])
            values = f"{_plain(dense.iloc[first])} against {_plain(pruned.iloc[first])}"
            yield f"{what} {values}" + ("" if differ.all() else f" on {int(differ.sum())} of {len(items)} items")


def _of_run(run: Mapping[str, Any], comparison: Comparison) -> Iterator[str]:
    subject = comparison.subject
    base, own = (settings_of(run, name, subject.task) for name in (subject.base, subject.checkpoint))
    for name in sorted(base.keys() & own.keys() - {*_WHAT}):
        if base[name] != own[name]:
            yield f"{name} {_plain(base[name])} against {_plain(own[name])}"
    base_ways, own_ways = (scoring_of(run, name) for name in (subject.base, subject.checkpoint))
    if base_ways and own_ways and base_ways != own_ways:
        yield f"scoring {' and '.join(base_ways)} against {' and '.join(own_ways)}"


def settings_of(run: Mapping[str, Any], checkpoint: str | None, task: str) -> Mapping[str, Any]:
    """What run.json says of how a checkpoint was asked a task; empty where it says nothing."""
    found: Any = run
    for key in ("identity", "task_settings", checkpoint, task):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def scoring_of(run: Mapping[str, Any], checkpoint: str | None) -> list[str]:
    """The ways in which engines scored for a checkpoint."""
    stats = run.get("engine_stats")
    rows = [row for row in stats if isinstance(row, Mapping)] if isinstance(stats, list) else []
    return sorted({str(row["scoring"]) for row in rows if row.get("checkpoint") == checkpoint and row.get("scoring")})


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
