"""From a typed model to its checkpoint directory: `bundled`, a directory, or a hub id.

A hub id is `org/name` or `org/name@revision`, unless a directory has that name. The
environment variable RESURFACE_MODELS may name a directory with models as DIR/org/name
or DIR/org/name@revision. The hub's cache holds any other model, and is filled if
necessary: weights in safetensors, configuration and tokenizer, no code.
"""

import os
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.served import Endpoint
from evaluator.checkpoints.shapes import text_model
from evaluator.core.errors import InputError, meant, one_line

# names the model that Resurface contains, in place of any checkpoint
BUNDLED = "bundled"
BUNDLED_MODEL = Path(__file__).parents[1] / "reference_model"
# environment variable: a directory with checkpoints under their hub ids
MIRROR = "RESURFACE_MODELS"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(@(?!.*\.\.)[\w./-]+)?")
_FETCHED = [
    "*.safetensors",
    "*.json",
    "*.jinja",
    "tokenizer*",
    "*.tiktoken",
    "vocab*",
    "merges.txt",
    "LICENSE*",
]
# what `models:` names: a directory, a hub id or a GGUF file, or what is served
ModelValue = str | Endpoint
_GGUF = ".gguf"
# the same weights again, in a format of their makers
_NOT_FETCHED = ["consolidated*", "*/*"]


def is_served(value: ModelValue) -> bool:
    """Whether a server answers for the model: it has a base, but no weights here."""
    return isinstance(value, Endpoint) or value.endswith(_GGUF)


def resolve_served(value: ModelValue, base: Path) -> Path:
    """The directory of a served model with the tokenizer of `base`. Asks the server.
    Raises InputError."""
    from evaluator.engine.endpoint import prepare  # httpx

    if isinstance(value, Endpoint):
        named = value.tokenizer and resolve_model(value.tokenizer)
        return prepare.prepare_endpoint(value, named or base)
    return prepare.prepare_gguf(Path(os.path.expanduser(value)), base)


def check_gguf(value: str) -> None:
    """Raises InputError for a GGUF file that is damaged or not finite."""
    from evaluator.engine.endpoint.gguf import read_header  # httpx

    read_header(Path(os.path.expanduser(value)), weights=True)


def local_directory(value: str) -> Path | None:
    """A model's directory, without network; None for a hub id outside
    RESURFACE_MODELS."""
    if value == BUNDLED:
        return BUNDLED_MODEL
    if not is_hub_id(value):
        return Path(os.path.expanduser(value))
    mirrored = _mirrored(value)
    return mirrored if mirrored is not None and mirrored.is_dir() else None


def no_directory(value: str | Path) -> InputError:
    """The error for a checkpoint that is not there, with the near name."""
    near = meant(Path(value), BUNDLED)
    if _HUB_ID.fullmatch(str(value)):
        near += f" (of the hub: {value}@main)"
    return InputError(f"checkpoint {value}: no such directory{near}")


def is_hub_id(value: str) -> bool:
    """Whether a value names a model of the hub, and no directory here. In a folder that
    is here, only one with a revision does: the other is mistyped."""
    path = Path(os.path.expanduser(value))
    here = path.exists()
    if "@" not in value and not (_mirrored(value) or path).exists():
        here |= path.parent.is_dir()
    return value != BUNDLED and not here and bool(_HUB_ID.fullmatch(value))


def resolve_model(value: str) -> Path:
    """A model's checkpoint directory. Fetches it from the hub if necessary. Raises
    InputError if that fails."""
    directory = local_directory(value)
    if directory is not None:
        return directory
    from huggingface_hub import snapshot_download

    repository, _, revision = value.partition("@")
    try:
        found = snapshot_download(
            repository,
            revision=revision or None,
            allow_patterns=_FETCHED,
            ignore_patterns=_NOT_FETCHED,
        )
        return Path(found)
    # No network, an unknown name, a gated model: each raises another library's
    # exceptions.
    except Exception as error:
        neither = "no such directory"
        if mirrored := _mirrored(value):
            neither += f", none at {mirrored}"
        first = str(error).strip().partition("\n")[0]
        why = textwrap.shorten(first, 160, placeholder=" ...")
        raise InputError(
            f"checkpoint {value}: {neither}, and the hub does not give it"
            f" ({one_line(why)}); with {MIRROR}=DIR it may be at DIR/{value}"
        ) from error


def model_name(value: str) -> str:
    """The last part of a path or hub id; each run of characters besides letters,
    digits, `._-` becomes a hyphen."""
    if value == BUNDLED:
        return BUNDLED
    # a link has its own name
    name = os.path.basename(os.path.abspath(os.path.expanduser(value)))
    if is_hub_id(value):
        name = value.partition("@")[0].partition("/")[2]
    name = name.removesuffix(_GGUF)
    return (
        re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip("-._").rstrip("-") or "checkpoint"
    )


def names_of(
    values: Sequence[str], option: str, earlier: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The models by name. `earlier`: names of values in an earlier call. Raises
    InputError, which names `option`, if two would have the same name."""
    models: dict[str, str] = {}
    for value in values:
        name = (earlier or {}).get(value) or model_name(value)
        if name not in models:
            models[name] = value
        elif same_model(models[name], value):
            raise InputError(f"{option}: {value!r} is given twice")
        else:
            raise InputError(
                f"{option}: the results of {models[name]!r} and {value!r} would have"
                f" the same name {name!r}: rename one, or name both in a sweep file"
                " (models: {one: DIR, other: DIR})"
            )
    return models


def same_model(one: str, other: str) -> bool:
    ours, theirs = local_directory(one), local_directory(other)
    if ours is None or theirs is None:
        return one == other
    return ours.resolve() == theirs.resolve()


def _mirrored(value: str) -> Path | None:
    mirror = os.environ.get(MIRROR)
    return Path(os.path.expanduser(mirror)) / value if mirror else None


def vocabulary_of(checkpoint: Path) -> int:
    """The columns of a model's logits; 0 if its configuration gives none."""
    size: Any = text_model(Checkpoint(checkpoint).config).get("vocab_size")
    return size if isinstance(size, int) else 0
