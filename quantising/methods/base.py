"""The interface of a method, and llm-compressor's recipes as text. Functions import
torch where they work on tensors.

llm-compressor's environment applies a recipe; a checkpoint that was rounded here stores
one too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from evaluator.core.errors import InputError

if TYPE_CHECKING:
    from evaluator.checkpoints.checkpoint import Checkpoint

Sequences = Sequence[Sequence[int]]  # of token ids


@dataclass(frozen=True, slots=True)
class Modifier:
    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    quantises: bool = False  # it takes the scheme and what is ignored


def recipe_of(modifiers: Sequence[Modifier], wanted: Wanted) -> str:
    """The recipe that applies modifiers in their order."""
    scheme: dict[str, Any] = {"targets": ["Linear"], "scheme": wanted.scheme}
    if wanted.group_size is not None:
        from quantising.schemes import preset

        own = preset(wanted.scheme, wanted.group_size)
        scheme = {
            "config_groups": {"group_0": own.model_dump(mode="json", exclude_none=True)}
        }
    scheme["ignore"] = list(wanted.ignore)
    stated = {
        each.name: {**(scheme if each.quantises else {}), **each.settings}
        for each in modifiers
    }
    return yaml.safe_dump({"quant_stage": {"quant_modifiers": stated}}, sort_keys=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The settings of one quantisation."""

    scheme: str
    group_size: int | None  # None: the scheme's own
    ignore: tuple[str, ...]
    recipe: str | None = None  # llm-compressor's YAML, for the method that takes one


class Method(ABC):
    """One way to quantise a checkpoint."""

    name: str
    help: str  # one line
    schemes: tuple[str, ...]  # that it can make
    needs_calibration: bool = False
    takes_group: bool = True
    takes_recipe: bool = False
    passes: float = 0  # cost, in forward passes over the calibration text

    def check_here(self) -> None:
        """Raises InputError for what this machine lacks. May take a while the first
        time."""
        return

    def check(self, checkpoint: Checkpoint, wanted: Wanted) -> None:
        """Raises InputError for a checkpoint that cannot be quantised so; reads no
        weights."""
        if checkpoint.quantisation is not None:
            raise InputError(
                f"{checkpoint.config_file}: the checkpoint is already quantised"
            )

    @abstractmethod
    def write(
        self, checkpoint: Checkpoint, folder: Path, wanted: Wanted, sequences: Sequences
    ) -> dict[str, str]:
        """Fill `folder` with config.json, weights as safetensors, their index if there
        are several, and recipe.yaml.

        `sequences`: token ids, empty for a method that needs none. Returns the versions
        of what did the work.
        """
