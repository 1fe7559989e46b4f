"""`resurface render`: files that run a sweep on a cluster."""

import os
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer

from evaluator.core.errors import InputError, Json
from launch.cluster.rendering import FORMATS, ClusterSettings, render
from launch.commands.options import completing, grouped, listed, recipe_names
from launch.commands.terminal import print_plain
from launch.sweep.config import bundled_recipes, find_recipe, load_sweep

_FORMATS_HELP = (
    "slurm; kuberay (Kubernetes); job (a running Ray cluster); up (machines that ssh"
    " reaches)"
)
machines, slurm, kuberay, ray = map(
    grouped, ("The machines", "slurm", "kuberay", "job and up")
)


def render_files(
    format: Annotated[
        str,
        typer.Argument(
            metavar="FORMAT", help=_FORMATS_HELP, autocompletion=completing(FORMATS)
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
    nodes: Annotated[int, machines(help="number of machines")] = 1,
    gpus: Annotated[int, machines(help="GPUs per machine")] = 0,
    cpus: Annotated[int | None, machines(help="cores per machine")] = None,
    memory: Annotated[
        str | None, machines(help="per machine: 64G, or 64Gi for Kubernetes")
    ] = None,
    time: Annotated[
        str | None, machines(help="time limit: minutes, HH:MM:SS or D-HH:MM:SS")
    ] = None,
    partition: Annotated[str | None, slurm(help="the partition")] = None,
    account: Annotated[str | None, slurm(help="the account")] = None,
    setup: Annotated[
        str | None,
        machines(help="slurm, up: first command, as 'source x/bin/activate'"),
    ] = None,
    mode: Annotated[str, slurm(help="symmetric, start or array")] = "symmetric",
    image: Annotated[str | None, kuberay(help="the image of all pods")] = None,
    claim: Annotated[
        str | None, kuberay(help="PersistentVolumeClaim with run and models")
    ] = None,
    mount: Annotated[str, kuberay(help="where pods mount this volume")] = "/shared",
    namespace: Annotated[str | None, kuberay(help="the namespace")] = None,
    queue: Annotated[str | None, kuberay(help="Kueue's local queue")] = None,
    tries: Annotated[int, kuberay(help="starts, each on a new Ray cluster")] = 3,
    ray_version: Annotated[
        str | None, kuberay(help="the image's Ray version; default: the one here")
    ] = None,
    node_selector: Annotated[
        str | None, kuberay(metavar="K=V,...", help="labels of the nodes")
    ] = None,
    tolerations: Annotated[
        str | None, kuberay(metavar="TAINT,...", help="KEY[=VALUE][:EFFECT] to accept")
    ] = None,
    secrets: Annotated[
        str | None,
        kuberay(metavar="NAME,...", help="secrets; their keys become variables"),
    ] = None,
    shm: Annotated[str, kuberay(help="size of /dev/shm")] = "16Gi",
    address: Annotated[
        str | None, ray(help="job: the dashboard, http://HOST:8265")
    ] = None,
    head: Annotated[str | None, ray(help="up: the head's host")] = None,
    workers: Annotated[
        str | None, ray(metavar="HOST,...", help="up: the other hosts")
    ] = None,
    user: Annotated[str | None, ray(help="up: the user for ssh")] = None,
) -> None:
    """Write files that run a sweep on a cluster. Starts nothing."""
    given: Json = {
        key: value
        for key, value in locals().items()
        if key in ClusterSettings.__slots__
    }
    file = find_recipe(recipe)
    config = load_sweep(file)
    if gpus and gpus < config.engine.tensor_parallel:
        raise InputError(
            f"--gpus: {gpus}: an engine of this sweep takes"
            f" {config.engine.tensor_parallel} of one machine's"
        )
    for option in ("workers", "node_selector", "tolerations", "secrets"):
        given[option] = (
            tuple(listed(option.replace("_", "-"), given[option]))
            if given[option] is not None
            else ()
        )
    bundled = file in bundled_recipes().values() and not Path(recipe).exists()
    given["sweep"] = sweep_path or (recipe if bundled else os.path.abspath(file))
    # pods have another directory
    given["out"] = out if format == "kuberay" else Path(os.path.abspath(out))
    if format == "kuberay" and not ray_version:
        with suppress(PackageNotFoundError):
            given["ray_version"] = version("ray")
    from launch.sweep.jobs import parts_of

    rendered = render(format, ClusterSettings(**given), parts_of(config))
    from evaluator.core.files import write_atomically

    for file_name, text in rendered.items():
        write_atomically(to / file_name, text.encode())
        print_plain(str(to / file_name))
