"""Whether the difference of a checkpoint and its base is damage: only if nothing else
differs.

These must be equal on both sides (`difference`):

- for each item: the engine, its version and dtype, and the length of the open prompt
  (another template or tokenizer);
- in run.json: the settings of the task, including the seed, and how each checkpoint's
  options were scored;
- for comparisons of beams or samples: how many there are, and how they were drawn.

Checkpoints with quantised activations are comparable, but have their own noise floor. A
note on their rows gives it.
"""

from collections.abc import Mapping

import numpy as np

from evaluator.checkpoints.quantisation import ROUNDED_ACTIVATIONS
from evaluator.core.errors import Document, mapping_at, rows_at
from evaluator.core.records import SERVING
from evaluator.metrics.items import BASE, Items
from evaluator.probes.config import if_omitted

# Outcome columns that must be equal on both sides of an item, and the name of a
# difference for people.
_ALIKE = {
    **{name: name.replace("_", " ") for name in SERVING},
    "greedy_prompt_tokens": "prompt tokens (another template or tokenizer)",
    "greedy_prompt_digest": "prompts (another template, date or tokenizer)",
}
_ALIKE_DRAWN = {"beams": "beams", "samples": "samples"}
# These settings select probes, formats and items; they do not change an answer.
# `_DRAWN`: for drawn answers alone.
SERVED = "endpoint"  # the engine of served models
_WHAT = ("probes", "formats", "name", "languages", "items", "window")
_DRAWN = ("beam_width", "samples", "seeds", "top_p", "temperature")
# A model without such a template has none of these.
_BY_TEMPLATE = ("date", "thought_format", "thought_limit")
# Patterns of records whose scheme quantises activations: W8A8, W4A8, FP8; not FP8
# W8A16.
ROUNDED = (
    "quantised activations: rounding alone moves an option's log-likelihood, by .9 nats"
    " in a test"
)


def difference(
    items: Items, checkpoint: str, base: str, task: str, run: Document, *, drawn: bool
) -> str:
    """How a checkpoint's evaluation differs from its base's; empty: it does not.
    `items`: those that both have. `drawn`: also for drawn answers."""
    alike = _ALIKE | (_ALIKE_DRAWN if drawn else {})
    # a server computes in its own way; its checkpoint's notes say so
    served = bool((items["engine"] == SERVED).any())
    if served:
        alike = {name: words for name, words in alike.items() if name not in SERVING}
    theirs, own = settings_of(run, base, task), settings_of(run, checkpoint, task)
    differing = _differing_columns(items, alike)
    ignored = _WHAT if drawn else (*_WHAT, *_DRAWN)
    for name in sorted(theirs.keys() & own.keys() - {*ignored}):
        unset = name in _BY_TEMPLATE and not (theirs[name] and own[name])
        if theirs[name] != own[name] and not unset:
            differing.append(_against(name, theirs[name], own[name]))
    ways = scoring_of(run, base), scoring_of(run, checkpoint)
    if all(ways) and ways[0] != ways[1] and not served:
        differing.append(_against("scoring", *map(" and ".join, ways)))
    return f"not comparable with the base: {', '.join(differing)}" if differing else ""


def _differing_columns(items: Items, alike: Mapping[str, str]) -> list[str]:
    differing = []
    for name, words in alike.items():
        theirs, own = items[f"{BASE}{name}"], items[name]
        differ = items.has(f"{BASE}{name}") & items.has(name) & (theirs != own)
        if differ.any():
            first = int(np.flatnonzero(differ)[0])
            text = _against(words, theirs[first], own[first])
            if not differ.all():
                text += f" on {int(differ.sum())} of {len(items)} items"
            differing.append(text)
    return differing


def _against(words: str, *values: object) -> str:
    """`beams 5 against 4`: floats without a trailing zero."""
    base, own = (f"{each:g}" if isinstance(each, float) else each for each in values)
    return f"{words} {base} against {own}"


def rounded_activations(pattern: str | None) -> str | None:
    """The note on quantised activations, by the `pattern` of a checkpoint's records;
    None for any other."""
    return (
        ROUNDED if pattern is not None and ROUNDED_ACTIVATIONS.search(pattern) else None
    )


def settings_of(run: Document, checkpoint: str | None, task: str) -> Document:
    """The settings in run.json under which a checkpoint was evaluated on a task; empty
    if there are none."""
    found = mapping_at(run, "identity", "task_settings", checkpoint, task)
    if "seeds" not in found:
        return found
    usual = if_omitted().items()
    filled = {name: "" if value is None else value for name, value in usual}
    found = {**filled, **found}
    asked = mapping_at(run, "seeds", checkpoint).get(task)  # by the last call
    seeds = asked or found["seeds"] or [found.get("seed")]
    return {**found, "seeds": sorted(seeds)}


def scoring_of(run: Document, checkpoint: str | None) -> list[str]:
    """How engines scored this checkpoint's options: the names of all methods."""
    methods = set()
    for row in rows_at(run, "engine_stats"):
        if row.get("checkpoint") == checkpoint and row.get("scoring"):
            methods.add(str(row["scoring"]))
    return sorted(methods)
