"""What a checkpoint's files state beside its weights: how its answers end, samplers
that no engine uses, and what differs from its base."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from evaluator.checkpoints.checkpoint import NOT_COMPARED, Checkpoint, foreign_window
from evaluator.checkpoints.shapes import text_model
from evaluator.checkpoints.tokenizer import GENERATION, eos_ids_of, stated_eos_ids
from evaluator.core.errors import Document, Json, of_kind, one_line, parse, read_bytes

# fields of generation_config.json that choose no token; a run has its own lengths
_NO_SAMPLERS = re.compile(r"_token_id$|^_|^use_cache$|_version$|^max_(new|length)")
# of no effect in a sampler
_NEUTRAL: tuple[Any, ...] = (None, 0, 1, [], {})
# Fields of config.json that pruning and quantising change: sizes, and what describes
# them. And those of training alone, or of tokens, which have their own line.
_MAY_DIFFER = re.compile(
    r"_size$|_dim$|^(num|n)_(\w+_)?(layers?|heads?|experts)$|^n_embd$"
    r"|^(quantization|compression)_config$|_token_id$|dropout|_pdrop$|^initializer_"
    r"|_loss_coef$|^output_|^id2label$|^label2id$|^_|^pretraining_tp$"
    r"|_version$|^auto_map$|^architectures$"
)
# what removed layers change
_BY_LAYER = re.compile(r"_layers$|layer_types$")
_LAYERS = "num_hidden_layers"
_SHOWN = 120  # characters of a value


def generation_notes(checkpoint: Path, tokenizer: Any) -> Iterator[str]:
    """A line each: an id that cannot end an answer, ends that differ from those of
    transformers' `generate`, and samplers and a window that are not used. Raises
    InputError for what is no id."""
    ids = eos_ids_of(tokenizer)
    config = Checkpoint(checkpoint).config
    if (window := foreign_window(config)) is not None:
        yield (
            f"config.json: sliding_window {_value(window)}: not used: architecture"
            f" {config['model_type']} has none"
        )
    size = text_model(config).get("vocab_size")
    for number in ids:
        if isinstance(size, int) and number not in range(size):
            yield (
                f"eos_token_id: {number}, which ends no answer, is no id of the"
                " vocabulary"
            )
            break
    file = checkpoint / GENERATION
    alone = file if file.is_file() else checkpoint / "config.json"
    theirs = stated_eos_ids(alone)
    if theirs != ids:
        yield (
            f"answers end at token {_listed(ids)}; transformers' generate would end"
            f" them at {_listed(theirs)}"
        )
    if unused := _samplers(file):
        yield (
            f"{GENERATION}: {unused}: not used: greedy answers are plain, and samples"
            " have the run's settings"
        )


def differences(base: Path, other: Path) -> Iterator[str]:
    """How config.json of a compressed checkpoint differs from its base's, apart from
    sizes: a line for each field."""
    ours, theirs = map(_compared, (base, other))
    if ours["model_type"] != theirs["model_type"]:
        ours, theirs = ({"model_type": each["model_type"]} for each in (ours, theirs))
    for field, before, after in _differing("", ours, theirs):
        yield f"config.json: {field} {_value(before)} against {_value(after)}"


def _compared(checkpoint: Path) -> Json:
    settings = text_model(Checkpoint(checkpoint).settings)
    settings.pop("text_config", None)  # its fields are there
    return settings


def _differing(
    within: str, ours: Document, theirs: Document
) -> Iterator[tuple[str, Any, Any]]:
    """The fields that differ, with both values. `within`: before each name."""
    other_depth = ours.get(_LAYERS) != theirs.get(_LAYERS)
    for name in sorted(ours.keys() | theirs.keys()):
        if name in NOT_COMPARED or _MAY_DIFFER.search(name):
            continue
        if other_depth and _BY_LAYER.search(name):
            continue
        if name == "type" and "rope_type" in ours.keys() & theirs.keys():
            continue  # its older name
        before, after = ours.get(name), theirs.get(name)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from _differing(f"{within}{name}.", before, after)
        elif before != after and _text(before) != _text(after):  # NaN is as NaN
            yield within + name, before, after


def other_ends(base: Any, other: Any) -> Iterator[str]:
    """A line if the answers with two tokenizers end at different tokens."""
    before, after = eos_ids_of(base), eos_ids_of(other)
    if before != after:
        yield f"eos_token_id {_listed(before)} against {_listed(after)}"


def _samplers(file: Path) -> str:
    if not file.is_file():
        return ""
    stated = of_kind(parse(read_bytes(file), str(file)), dict, str(file))
    parts = []
    for name, value in stated.items():
        if not _NO_SAMPLERS.search(name) and (value is True or value not in _NEUTRAL):
            parts.append(f"{name} {_value(value)}")
    return ", ".join(parts)


def _listed(ids: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(ids))) or "none"


def _text(value: Any) -> str:
    return json.dumps(value, default=str)


def _value(value: Any) -> str:
    return one_line(_text(value), _SHOWN)
