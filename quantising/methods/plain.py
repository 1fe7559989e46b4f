"""The ways that need no text and no other environment: rounding to nearest, and
vLLM's online quantisation."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from evaluator.checkpoints.quantisation import ONLINE, ONLINE_SCHEMES
from quantising.methods.base import Method, Modifier, Sequences, Wanted, recipe_of
from quantising.schemes import SCHEMES

if TYPE_CHECKING:
    from evaluator.checkpoints.checkpoint import Checkpoint


class RTN(Method):
    """Every weight rounded to the nearest value (`rounding`)."""

    name = "rtn"
    help = "each weight rounded to the nearest value; needs no data"
    schemes = tuple(SCHEMES)

    def check(self, checkpoint: Checkpoint, wanted: Wanted) -> None:
        from quantising.methods import rounding

        rounding.matrices(checkpoint, wanted.scheme, wanted.group_size, wanted.ignore)

    def write(
        self, checkpoint: Checkpoint, folder: Path, wanted: Wanted, sequences: Sequences
    ) -> dict[str, str]:
        from quantising.methods import rounding

        rounding.write(
            checkpoint, folder, wanted.scheme, wanted.group_size, wanted.ignore
        )
        recipe = recipe_of([Modifier("QuantizationModifier", quantises=True)], wanted)
        (folder / "recipe.yaml").write_text(recipe, encoding="utf-8")
        return {name: version(name) for name in ("compressed-tensors", "torch")}


class Online(Method):
    """A directory of links, and a config.json with the scheme for the engine."""

    name = ONLINE
    help = "vLLM rounds the weights while it loads them; nothing is written but links"
    schemes = tuple(ONLINE_SCHEMES)
    takes_group = False

    def write(
        self, checkpoint: Checkpoint, folder: Path, wanted: Wanted, sequences: Sequences
    ) -> dict[str, str]:
        quantisation = {"quant_method": ONLINE, "scheme": wanted.scheme}
        for file in filter(None, (*checkpoint.shards, checkpoint.index)):
            (folder / file.name).symlink_to(file.resolve())
        config = checkpoint.stored_config | {"quantization_config": quantisation}
        (folder / "config.json").write_text(
            json.dumps(config, indent=2) + "\n", encoding="utf-8"
        )
        return {}
