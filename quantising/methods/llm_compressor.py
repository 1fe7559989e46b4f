"""The methods that llm-compressor does, in an environment of its own: GPTQ, AWQ, SmoothQuant, and recipes of users."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from evaluator.core.errors import InputError
from quantising.methods.base import Method, Wanted
from quantising.methods.modifiers import Modifier, recipe_of
from quantising.schemes import SCHEMES

if TYPE_CHECKING:
    from pruning.model.checkpoint import Checkpoint


class Recipe(Method):
    """A recipe file of the user's."""

    name = "recipe"
    help = "a recipe file for llm-compressor (recipe: FILE), run in an environment of its own"
    schemes = tuple(SCHEMES)
    needs_calibration = True
    takes_group = False
    takes_recipe = True
    passes = 2
    modifiers: tuple[Modifier, ...] = ()

    def check_here(self) -> None:
        from quantising.llm_compressor.process import environment

        environment()

    def check(self, checkpoint: Checkpoint, wanted: Wanted) -> None:
        if checkpoint.config.get("quantization_config"):
            raise InputError(f"{checkpoint.directory / 'config.json'}: the checkpoint is already quantised")

    def write(
        self, checkpoint: Checkpoint, folder: Path, wanted: Wanted, sequences: Sequence[Sequence[int]]
    ) -> dict[str, str]:
        from quantising.llm_compressor.process import apply_recipe

        recipe = wanted.recipe or recipe_of(self.modifiers, wanted)
        versions = apply_recipe(recipe, checkpoint.directory, folder, sequences)
        (folder / "recipe.yaml").write_text(recipe, encoding="utf-8")  # as it was asked for
        return versions


class GPTQ(Recipe):
    """Frantar et al., 2023."""

    name = "gptq"
    help = "llm-compressor's GPTQ: rounds column by column and corrects the columns that are left"
    schemes = ("W4A16", "W4A16_ASYM", "W8A16", "W8A8")
    takes_group = True
    takes_recipe = False
    modifiers = (Modifier("GPTQModifier", quantises=True),)


class AWQ(Recipe):
    """Lin et al., 2024."""

    name = "awq"
    help = "llm-compressor's AWQ: scales columns by their activations, then rounds"
    schemes = ("W4A16", "W4A16_ASYM", "W8A16")
    takes_group = True
    takes_recipe = False
    passes = 22  # its grid of scales
    modifiers = (Modifier("AWQModifier"), Modifier("QuantizationModifier", quantises=True))


class SmoothQuant(Recipe):
    """Xiao et al., 2023, then GPTQ, as llm-compressor's own recipe of W8A8 does."""

    name = "smoothquant"
    help = "llm-compressor's SmoothQuant, then GPTQ: moves outliers of activations into weights"
    schemes = ("W8A8",)
    takes_group = False
    takes_recipe = False
    passes = 3
    modifiers = (Modifier("SmoothQuantModifier", {"smoothing_strength": 0.8}), Modifier("GPTQModifier", quantises=True))
