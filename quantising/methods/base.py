"""The interface of a method, and llm-compressor's recipes as text. Functions import
torch where they work on tensors.

llm-compressor's environment applies a recipe; a checkpoint that was rounded here stores
one too.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import yaml
from pydantic import AfterValidator, Field

from evaluator.checkpoints.manifests import JobManifest, QuantiseManifest
from evaluator.core.errors import InputError, Json
from pruning.config import JobConfig
from quantising.schemes import config_groups

if TYPE_CHECKING:
    from evaluator.checkpoints.checkpoint import Checkpoint

Sequences = Sequence[Sequence[int]]  # of token ids


# by llm-compressor's own examples: the output head stays as it is
IGNORED = ("lm_head",)


def _compiling(name: str) -> str:
    """Raises ValueError for what is no pattern."""
    try:
        re.compile(name.removeprefix("re:"))
    except re.error as error:
        raise ValueError(f"no pattern: {error}") from error
    return name


class Settings(JobConfig):
    """What a method reads of a job's configuration (`QuantiseConfig`)."""

    method: str
    scheme: str = Field(default="", description="W4A16, W8A16, W8A8, FP8_DYNAMIC, ...")
    # weights of a row
    group_size: int | None = Field(
        default=None,
        ge=1,
        description="weights that share a scale; default: the scheme's",
    )
    ignore: tuple[Annotated[str, AfterValidator(_compiling)], ...] = Field(
        default=IGNORED,
        description="modules that stay as they are, or re:PATTERN; commas",
    )
    # the text of llm-compressor's recipe, for method `recipe`
    recipe: str | None = None
    # of each layer
    experts: float | None = Field(
        default=None, description="share of experts that go, for method reap"
    )


@dataclass(frozen=True, slots=True)
class Modifier:
    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    quantises: bool = False  # it takes the scheme and what is ignored


def recipe_of(modifiers: Sequence[Modifier], config: Settings) -> str:
    """The recipe that applies modifiers in their order."""
    scheme: Json = {"targets": ["Linear"], "scheme": config.scheme}
    if config.group_size is not None:
        scheme = {"config_groups": config_groups(config.scheme, config.group_size)}
    scheme["ignore"] = list(config.ignore)
    stated = {}
    for modifier in modifiers:
        settings = scheme if modifier.quantises else {}
        stated[modifier.name] = {**settings, **modifier.settings}
    return yaml.safe_dump({"quant_stage": {"quant_modifiers": stated}}, sort_keys=False)


class Method(ABC):
    """One way to quantise a checkpoint."""

    name: str
    help: str  # one line
    schemes: tuple[str, ...] = ()  # that it can make
    manifest: type[JobManifest] = QuantiseManifest
    needs_calibration: bool = False
    takes_group: bool = True
    takes_recipe: bool = False
    takes_experts: bool = False
    passes: float = 0  # cost, in forward passes over the calibration text

    def check_here(self) -> None:
        """Raises InputError for what this machine lacks. May take a while the first
        time."""
        return

    def check(self, checkpoint: Checkpoint, config: Settings) -> None:
        """Raises InputError for a checkpoint that cannot be quantised so; reads no
        weights."""
        if checkpoint.quantisation is not None:
            raise InputError(
                f"{checkpoint.config_file}: the checkpoint is already quantised;"
                " compress the dense model that it was made from"
            )

    @abstractmethod
    def write(
        self,
        checkpoint: Checkpoint,
        folder: Path,
        config: Settings,
        sequences: Sequences,
    ) -> dict[str, str]:
        """Fill `folder` with config.json, weights as safetensors, their index if there
        are several, and recipe.yaml.

        `sequences`: token ids, empty for a method that needs none. Returns the versions
        of what did the work.
        """

    def outcome(
        self, source: Checkpoint, folder: Path, config: Settings
    ) -> dict[str, Any]:
        """What the manifest says of the weights that `write` left in `folder`."""
        share, pattern = _sparsity(source, folder) or (None, None)
        return {"scheme": config.scheme, "pattern": pattern, "measured_sparsity": share}


def _sparsity(source: Checkpoint, folder: Path) -> tuple[float, str] | None:
    """Of the matrices that were pruned in `source`, as they are in `folder`; None:
    none were, or it cannot be said."""
    pruned = source.pruned
    if pruned is None:
        return None
    if pruned.removed is not None:  # the parts stay gone
        return pruned.measured_sparsity, pruned.pattern
    from evaluator.checkpoints.checkpoint import Checkpoint
    from evaluator.checkpoints.sparsity import measure

    names = [matrix.name for matrix in pruned.matrices]
    return measure(Checkpoint(folder), names, pruned.pattern)
