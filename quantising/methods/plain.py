"""The ways that need no text and no other environment: rounding to nearest, and
vLLM's online quantisation."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from evaluator.checkpoints.files import write_json
from evaluator.checkpoints.quantisation import ONLINE, ONLINE_SCHEMES
from quantising.methods.base import Method, Modifier, Sequences, Settings, recipe_of
from quantising.schemes import SCHEMES

if TYPE_CHECKING:
    from evaluator.checkpoints.checkpoint import Checkpoint


class RTN(Method):
    """Every weight rounded to the nearest value (`rounding`)."""

    name = "rtn"
    help = "each weight rounded to the nearest value; needs no data"
    schemes = tuple(SCHEMES)

    def check(self, checkpoint: Checkpoint, config: Settings) -> None:
        from quantising.methods import rounding

        rounding.matrices(checkpoint, config)

    def write(
        self,
        checkpoint: Checkpoint,
        folder: Path,
        config: Settings,
        sequences: Sequences,
    ) -> dict[str, str]:
        from quantising.methods import rounding

        rounding.write(checkpoint, folder, config)
        recipe = recipe_of([Modifier("QuantizationModifier", quantises=True)], config)
        (folder / "recipe.yaml").write_text(recipe, encoding="utf-8")
        return {name: version(name) for name in ("compressed-tensors", "torch")}


class Online(Method):
    """A directory of links, and a config.json with the scheme for the engine."""

    name = ONLINE
    help = "vLLM rounds the weights while it loads them; nothing is written but links"
    schemes = tuple(ONLINE_SCHEMES)
    takes_group = False

    def write(
        self,
        checkpoint: Checkpoint,
        folder: Path,
        config: Settings,
        sequences: Sequences,
    ) -> dict[str, str]:
        for file in filter(None, (*checkpoint.shards, checkpoint.index)):
            (folder / file.name).symlink_to(file.resolve())
        quantisation = {"quant_method": ONLINE, "scheme": config.scheme}
        settings = checkpoint.stored_config | {"quantization_config": quantisation}
        write_json(folder / "config.json", settings)
        return {}
