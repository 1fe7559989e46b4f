"""`resurface render`: files that run a sweep on a cluster."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from evaluator.core.config import validated
from evaluator.core.errors import InputError, unknown
from launch.cluster.rendering import ClusterSettings, render
from launch.commands.options import as_option, completing, recipe_names, with_fields
from launch.commands.terminal import print_plain
from launch.sweep.config import bundled_recipes, find_recipe, load_sweep

FORMATS = ("slurm",)


@with_fields("Options", ClusterSettings, "sweep", "name", "setup", "mode")
@with_fields(
    *("The machines", ClusterSettings, "nodes", "gpus", "cpus", "memory", "time"),
    *("partition", "account"),
)
def render_files(
    format: Annotated[
        str,
        typer.Argument(
            metavar="FORMAT", help="slurm", autocompletion=completing(FORMATS)
        ),
    ],
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="SWEEP",
            help="file or recipe, as in `resurface sweep`",
            autocompletion=recipe_names,
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", help="the run directory; all nodes share it")
    ],
    to: Annotated[Path, typer.Option("--to", help="the folder of the files")] = Path(
        "cluster"
    ),
    **typed: Any,
) -> None:
    """Write files that run a sweep on a cluster. Starts nothing."""
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    file = find_recipe(recipe)
    config = load_sweep(file)
    bundled = file in bundled_recipes().values() and not Path(recipe).exists()
    usual = {
        "sweep": recipe if bundled else os.path.abspath(file),
        "out": os.path.abspath(out),
    }
    settings = validated(ClusterSettings, usual | typed, "resurface render", as_option)
    if settings.gpus and settings.gpus < config.engine.tensor_parallel:
        raise InputError(
            f"--gpus: {settings.gpus}: an engine of this sweep takes"
            f" {config.engine.tensor_parallel} of one machine's"
        )
    from launch.sweep.jobs import parts_of

    rendered = render(settings, parts_of(config))
    from evaluator.core.files import write_atomically

    for file_name, text in rendered.items():
        write_atomically(to / file_name, text.encode())
        print_plain(str(to / file_name))
