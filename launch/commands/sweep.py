"""`resurface sweep`: a whole grid, or what it would cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evaluator.core.errors import InputError
from launch.commands.options import Track, listed
from launch.commands.running import run_and_report
from launch.commands.terminal import console
from launch.sweep.config import bundled_recipes, find_recipe, load_sweep


def sweep(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help=f"a YAML file, or a bundled recipe: {', '.join(bundled_recipes())}")
    ],
    out: Annotated[Path | None, typer.Option("--out", help="as everywhere; not needed for a dry run")] = None,
    only: Annotated[
        str | None, typer.Option(metavar="MODEL,...", help="of its models these alone, with what is pruned from them")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what it would cost; start nothing")] = False,
    track: Track = None,
) -> None:
    """Prune, quantise, evaluate and report a whole grid; the same command resumes."""
    config = load_sweep(find_recipe(recipe))
    if only is not None:
        config = config.model_copy(update={"only": tuple(listed("only", only))})
    if dry_run:
        from launch.commands.dry_run import print_estimate

        print_estimate(console, config)
    elif out is None:
        raise InputError("Missing option '--out': the directory where everything is written")
    else:
        run_and_report(config, out, track)
