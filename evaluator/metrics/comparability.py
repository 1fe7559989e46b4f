"""Whether a checkpoint and its base were evaluated alike: their difference is damage only if nothing else differs.

These must be equal on both sides:

- for each item: the engine, its version and dtype, and the length of the open prompt (another template or tokenizer);
- in run.json: the settings of the task, including the seed, and how each checkpoint's options were scored;
- for comparisons of beams or samples: how many there are, and how they were drawn.

A run without the setting `options` drew distractors as `any` does.

Checkpoints with quantised activations are comparable, but have their own noise floor. A note on their rows gives it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from evaluator.core.errors import mapping_at, rows_at
from evaluator.core.records import SERVING

# Outcome columns that must be equal on both sides of an item, and the name of a difference for people.
_ALIKE = {
    **{name: name.replace("_", " ") for name in SERVING},
    "greedy_prompt_tokens": "prompt tokens (another template or tokenizer)",
}
_ALIKE_DRAWN = {"beams": "beams", "samples": "samples"}
# These settings select probes, formats and items; they do not change an answer. `_DRAWN`: for drawn answers alone.
_WHAT = ("probes", "formats", "name", "languages", "items", "window")
# Patterns of records whose scheme quantises activations: W8A8, W4A8, FP8; not FP8 W8A16.
_ACTIVATIONS = re.compile(r"\bW\d+A[48]\b|\bFP8\b(?! W\d+A16)")
ROUNDED = "quantised activations: rounding alone moves an option's log-likelihood, by .9 nats in a test"
_DRAWN = ("beam_width", "samples", "sample_seeds", "top_p", "temperature")


def difference(outcomes: pd.DataFrame, run: Mapping[str, Any], base: str, own: tuple[str, str], *, drawn: bool) -> str:
    """How the evaluation of a checkpoint (`own`: its task and name) differs from its base's, for people; empty:
    comparable.

    `outcomes` are those of a comparison. `drawn` includes the settings that beams and samples depend on.
    """
    task, checkpoint = own
    found = [*_of_records(outcomes, _ALIKE | (_ALIKE_DRAWN if drawn else {}))]
    sides = [settings_of(run, name, task) for name in (base, checkpoint)]
    found += _of_settings(*sides, ignored={*_WHAT, *(() if drawn else _DRAWN)})
    base_ways, own_ways = (scoring_of(run, name) for name in (base, checkpoint))
    if base_ways and own_ways and base_ways != own_ways:
        found.append(f"scoring {' and '.join(base_ways)} against {' and '.join(own_ways)}")
    return f"not comparable with the base: {', '.join(found)}" if found else ""


def rounded_activations(pattern: str | None) -> str | None:
    """The note on a checkpoint with quantised activations, by the `pattern` of its records; None for any other
    checkpoint."""
    return ROUNDED if pattern is not None and _ACTIVATIONS.search(pattern) else None


def _of_records(items: pd.DataFrame, alike: Mapping[str, str]) -> Iterator[str]:
    for name, what in alike.items():
        dense, pruned = items[f"{name}_dense"], items[f"{name}_pruned"]
        differ = dense.notna() & pruned.notna() & (dense != pruned)
        if differ.any():
            first = int(np.flatnonzero(differ)[0])
            values = f"{_plain(dense.iloc[first])} against {_plain(pruned.iloc[first])}"
            yield f"{what} {values}" + ("" if differ.all() else f" on {int(differ.sum())} of {len(items)} items")


def _of_settings(base: Mapping[str, Any], own: Mapping[str, Any], *, ignored: set[str]) -> Iterator[str]:
    for name in sorted(base.keys() & own.keys() - ignored):
        if base[name] != own[name]:
            yield f"{name} {_plain(base[name])} against {_plain(own[name])}"


def settings_of(run: Mapping[str, Any], checkpoint: str | None, task: str) -> Mapping[str, Any]:
    """The settings in run.json under which a checkpoint was evaluated on a task; empty if there are none."""
    found = mapping_at(run, "identity", "task_settings", checkpoint, task)
    return {"options": "any", **found} if found else {}


def scoring_of(run: Mapping[str, Any], checkpoint: str | None) -> list[str]:
    """How engines scored this checkpoint's options: the names of all methods."""
    rows = rows_at(run, "engine_stats")
    return sorted({str(row["scoring"]) for row in rows if row.get("checkpoint") == checkpoint and row.get("scoring")})


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
