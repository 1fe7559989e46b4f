"""What a way to quantise is. torch is imported where a tensor is worked on, not here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pruning.model.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to become of one checkpoint."""

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
        """Raises InputError for what this machine lacks. May take a while the first time."""
        return

    @abstractmethod
    def check(self, checkpoint: Checkpoint, wanted: Wanted) -> None:
        """Raises InputError for a checkpoint that cannot be quantised so; reads no weights."""

    @abstractmethod
    def write(
        self, checkpoint: Checkpoint, folder: Path, wanted: Wanted, sequences: Sequence[Sequence[int]]
    ) -> dict[str, str]:
        """Fill `folder` with config.json, weights as safetensors, their index if there are several, and recipe.yaml.

        `sequences`: token ids, empty for a method that needs none. Returns the versions of what did the work.
        """
