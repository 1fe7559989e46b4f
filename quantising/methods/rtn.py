"""Rounding to nearest: no data, no other environment."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from quantising.methods.base import Method, Modifier, Wanted, recipe_of
from quantising.schemes import SCHEMES

if TYPE_CHECKING:
    from pruning.model.checkpoint import Checkpoint


class RTN(Method):
    """Every weight rounded to the nearest value (`rounding`)."""

    name = "rtn"
    help = "each weight rounded to the nearest value; needs no data"
    schemes = tuple(SCHEMES)

    def check(self, checkpoint: Checkpoint, wanted: Wanted) -> None:
        from quantising.methods import rounding

        rounding.matrices(checkpoint, wanted.scheme, wanted.group_size, wanted.ignore)

    def write(
        self, checkpoint: Checkpoint, folder: Path, wanted: Wanted, sequences: Sequence[Sequence[int]]
    ) -> dict[str, str]:
        from quantising.methods import rounding

        rounding.write(checkpoint, folder, wanted.scheme, wanted.group_size, wanted.ignore)
        recipe = recipe_of([Modifier("QuantizationModifier", quantises=True)], wanted)
        (folder / "recipe.yaml").write_text(recipe, encoding="utf-8")
        return {name: version(name) for name in ("compressed-tensors", "torch")}
