"""GPTQ, AWQ, SmoothQuant and recipes of users: llm-compressor does them, in a
separate process and environment.

It needs other versions of torch, transformers and compressed-tensors than ours. Its
process stays offline. It gets token ids in place of data sets, and no variables that
are secrets of the user's."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from evaluator.core.errors import InputError, JobError
from evaluator.core.isolated import run_isolated
from evaluator.core.liveness import HEARTBEAT
from quantising.environment import pins, python_of
from quantising.methods.base import Method, Modifier, Sequences, Settings, recipe_of
from quantising.schemes import SCHEMES

if TYPE_CHECKING:
    from evaluator.checkpoints.checkpoint import Checkpoint

NAME = "llm-compressor"
REQUIREMENT = "llmcompressor==0.14.0.1"
LOCK = Path(__file__).parents[2] / "requirements" / "llm-compressor.lock"
_JOB = Path(__file__).with_name("llm_compressor_job.py")
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
# in the names of variables
_SECRETS = ("TOKEN", "SECRET", "PASSWORD", "API_KEY", "CREDENTIAL")


def environment() -> Path:
    """The interpreter, in an environment made if absent; in a source tree the lock
    file pins the packages.

    Raises InputError, in one line, if it cannot be made."""
    locked = LOCK.is_file()
    try:
        return python_of(NAME, pins(LOCK) if locked else [REQUIREMENT], pinned=locked)
    except InputError as error:
        raise InputError(
            f"compress: {error}; method rtn needs no environment"
        ) from None


def apply_recipe(
    recipe: str, source: Path, folder: Path, sequences: Sequences
) -> dict[str, str]:
    """Write `source` as a recipe makes it; returns versions. Raises JobError with
    its last line, or InputError."""
    python = environment()
    with tempfile.TemporaryDirectory(prefix="resurface-llm-compressor-") as scratch:
        request, answer, log = (
            Path(scratch) / name for name in ("request.json", "answer.json", "log")
        )
        document = {
            "source": str(source.absolute()),
            "out": str(folder.absolute()),
            "recipe": recipe,
            "sequences": [list(ids) for ids in sequences],
            "answer": str(answer),
        }
        request.write_text(json.dumps(document), encoding="utf-8")
        kept = {
            name: value
            for name, value in os.environ.items()
            if not any(part in name.upper() for part in _SECRETS)
        }
        ending = run_isolated(
            [str(python), "-I", str(_JOB), str(request)],
            log,
            env=kept | _ENVIRONMENT,
            cwd=Path(scratch),
            meanwhile=_beat_while_growing(log, folder),
        )
        print(log.read_text(encoding="utf-8", errors="replace"), file=sys.stderr)
        if ending.code or not answer.exists():
            reason = f"its process {ending.how}"
            if ending.code is not None and ending.code > 0 and ending.last_line:
                reason = ending.last_line
            raise JobError(f"{NAME}: {reason}")
        versions: dict[str, str] = json.loads(answer.read_text(encoding="utf-8"))
        return versions


def _beat_while_growing(log: Path, target: Path) -> Callable[[], None]:
    """The job gets on while `log` (it counts its layers there) or the output in
    `target` grows."""
    seen = -1

    def look() -> None:
        nonlocal seen
        written = 0  # bytes
        for file in (log, *target.iterdir()):
            with suppress(OSError):  # it has just been renamed
                written += file.stat().st_size
        if written != seen:
            seen = written
            HEARTBEAT.beat()

    return look


class Modifiers(Method):
    """Applies a recipe, its own or a user's."""

    needs_calibration = True
    modifiers: tuple[Modifier, ...] = ()

    def check_here(self) -> None:
        environment()

    def recipe(self, checkpoint: Checkpoint, config: Settings) -> str:
        return config.recipe or recipe_of(self.modifiers, config)

    def write(
        self,
        checkpoint: Checkpoint,
        folder: Path,
        config: Settings,
        sequences: Sequences,
    ) -> dict[str, str]:
        recipe = self.recipe(checkpoint, config)
        versions = apply_recipe(recipe, checkpoint.path, folder, sequences)
        # as it was asked for
        (folder / "recipe.yaml").write_text(recipe, encoding="utf-8")
        return versions


class Recipe(Modifiers):
    name = "recipe"
    help = (
        "a recipe file for llm-compressor (recipe: FILE), run in an environment of"
        " its own"
    )
    schemes = tuple(SCHEMES)
    takes_group = False
    takes_recipe = True
    passes = 2


class GPTQ(Modifiers):
    """Frantar et al., 2023."""

    name = "gptq"
    help = (
        "llm-compressor's GPTQ: rounds column by column and corrects the columns that"
        " are left"
    )
    schemes = ("W4A16", "W4A16_ASYM", "W8A16", "W8A8")
    passes = 2
    modifiers = (Modifier("GPTQModifier", quantises=True),)


class AWQ(Modifiers):
    """Lin et al., 2024."""

    name = "awq"
    help = "llm-compressor's AWQ: scales columns by their activations, then rounds"
    schemes = ("W4A16", "W4A16_ASYM", "W8A16")
    passes = 22  # its grid of scales
    modifiers = (
        Modifier("AWQModifier"),
        Modifier("QuantizationModifier", quantises=True),
    )


class SmoothQuant(Modifiers):
    """Xiao et al., 2023, then GPTQ, as llm-compressor's own recipe of W8A8 does."""

    name = "smoothquant"
    help = (
        "llm-compressor's SmoothQuant, then GPTQ: moves outliers of activations into"
        " weights"
    )
    schemes = ("W8A8",)
    takes_group = False
    passes = 3
    modifiers = (
        Modifier("SmoothQuantModifier", {"smoothing_strength": 0.8}),
        Modifier("GPTQModifier", quantises=True),
    )
