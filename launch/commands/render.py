"""`resurface render`: files that run a sweep on a cluster."""

import os
from pathlib import Path
from typing import Annotated

import typer

from evaluator.core.errors import InputError, Json, unknown
from launch.cluster.rendering import MODES, ClusterSettings, render
from launch.commands.options import completing, grouped, recipe_names
from launch.commands.terminal import print_plain
from launch.sweep.config import bundled_recipes, find_recipe, load_sweep

FORMATS = ("slurm",)
machines = grouped("The machines")


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
    sweep_path: Annotated[
        str | None, typer.Option(help="the sweep file's path on the cluster")
    ] = None,
    name: Annotated[str, typer.Option(help="the job's name")] = "resurface",
    setup: Annotated[
        str | None, typer.Option(help="first command, as 'source x/bin/activate'")
    ] = None,
    mode: Annotated[str, typer.Option(help=", ".join(MODES))] = MODES[0],
    nodes: Annotated[int, machines(help="number of machines")] = 1,
    gpus: Annotated[int, machines(help="GPUs per machine")] = 0,
    cpus: Annotated[int | None, machines(help="cores per machine")] = None,
    memory: Annotated[str | None, machines(help="per machine: 64G")] = None,
    time: Annotated[
        str | None, machines(help="time limit: minutes, HH:MM:SS or D-HH:MM:SS")
    ] = None,
    partition: Annotated[str | None, machines(help="the partition")] = None,
    account: Annotated[str | None, machines(help="the account")] = None,
) -> None:
    """Write files that run a sweep on a cluster. Starts nothing."""
    given: Json = {
        key: value
        for key, value in locals().items()
        if key in ClusterSettings.__slots__
    }
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    file = find_recipe(recipe)
    config = load_sweep(file)
    if gpus and gpus < config.engine.tensor_parallel:
        raise InputError(
            f"--gpus: {gpus}: an engine of this sweep takes"
            f" {config.engine.tensor_parallel} of one machine's"
        )
    bundled = file in bundled_recipes().values() and not Path(recipe).exists()
    given["sweep"] = sweep_path or (recipe if bundled else os.path.abspath(file))
    given["out"] = Path(os.path.abspath(out))
    from launch.sweep.jobs import parts_of

    rendered = render(ClusterSettings(**given), parts_of(config))
    from evaluator.core.files import write_atomically

    for file_name, text in rendered.items():
        write_atomically(to / file_name, text.encode())
        print_plain(str(to / file_name))
