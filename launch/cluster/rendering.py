"""From a sweep and a cluster's settings to the files that run it there, one function per format."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Any

import yaml
from jinja2 import Environment, FunctionLoader, StrictUndefined

from evaluator.core.errors import InputError, unknown
from launch.cluster.settings import ClusterSettings
from launch.sweep.jobs import Part

RAY_PORT = 6379


@dataclass(frozen=True, slots=True)
class Rendered:
    """One file."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A kind of cluster, and the settings that its files use besides the run directory and the sweep."""

    name: str
    help: str
    render: Callable[[ClusterSettings, tuple[Part, ...]], list[Rendered]]
    uses: frozenset[str]


def render(format: str, settings: ClusterSettings, parts: tuple[Part, ...]) -> list[Rendered]:
    """The files of a format. `parts`: the independent parts of the sweep.

    Raises InputError for an unknown format, a missing setting, and a setting that the format does not use.
    """
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    chosen = FORMATS[format]
    for each in fields(settings):
        given = each.default is not MISSING and getattr(settings, each.name) != each.default
        if given and each.name not in chosen.uses:
            option = each.name.replace("_", "-")
            raise InputError(f"--{option}: {getattr(settings, each.name)!r}: not used by {format}")
    return chosen.render(settings, parts)


def _slurm(settings: ClusterSettings, parts: tuple[Part, ...]) -> list[Rendered]:
    if settings.memory and settings.memory.endswith("i"):
        raise InputError(f"--memory: {settings.memory!r}: Slurm has K, M, G and T only")
    more = {
        "file": "sweep.sbatch",
        **{name: getattr(settings, name) for name in ("name", "nodes", "gpus", "cpus", "memory", "time")},
        **{name: getattr(settings, name) for name in ("partition", "account", "setup")},
    }
    if settings.mode in ("symmetric", "start"):
        command = _command("sweep", settings.sweep, "--out", str(settings.out))
        return [Rendered("sweep.sbatch", _filled(f"slurm-{settings.mode}.sbatch.j2", command=command, **more))]
    if settings.mode != "array":
        raise unknown("--mode", settings.mode, ("symmetric", "start", "array"))
    if settings.nodes != 1:
        raise InputError(f"--nodes: {settings.nodes}: each job of an array has one node")
    if len(parts) < 2:
        raise InputError("--mode: 'array': the sweep has one part only (a model, with what is compared with it)")
    told = [{"models": ",".join(part.models), "out": f"{settings.out}.parts/{part.name}"} for part in parts]
    array = _filled(
        "slurm-array.sbatch.j2", command=_command("sweep", settings.sweep), parts=told, join="join.sbatch", **more
    )
    join = _filled(
        "slurm-join.sbatch.j2",
        command=_command("report", str(settings.out)),
        parts=told,
        out=str(settings.out),
        **{**more, "file": "join.sbatch"},
    )
    return [Rendered("sweep.sbatch", array), Rendered("join.sbatch", join)]


def _kuberay(settings: ClusterSettings, _: tuple[Part, ...]) -> list[Rendered]:
    settings.need("the image that all pods run, with Resurface and Ray in it", "image")
    settings.need("the PersistentVolumeClaim that holds run directory and models", "claim")
    settings.need("the version of Ray in the image", "ray_version")
    settings.need_plain("out", "sweep")
    settings.need_label("name")
    settings.need_mount()
    group = {"rayStartParams": {"num-gpus": str(settings.gpus)}, "template": {"spec": _pod(settings)}}
    cluster: dict[str, Any] = {"rayVersion": settings.ray_version, "headGroupSpec": group}
    if settings.nodes > 1:
        count = dict.fromkeys(("replicas", "minReplicas", "maxReplicas"), settings.nodes - 1)
        cluster["workerGroupSpecs"] = [{"groupName": "engines", **count, **group}]
    metadata: dict[str, Any] = {"name": settings.name}
    if settings.namespace:
        metadata["namespace"] = settings.namespace
    spec: dict[str, Any] = {
        "entrypoint": _command("sweep", settings.sweep, "--out", str(settings.out)),
        "submissionMode": "K8sJobMode",
        "backoffLimit": settings.tries - 1,
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": 3600,
        "rayClusterSpec": cluster,
    }
    if settings.time and (seconds := _seconds(settings.time)):  # 0 is no limit to Slurm, and refused by KubeRay
        spec["activeDeadlineSeconds"] = seconds
    if settings.queue:
        metadata["labels"] = {"kueue.x-k8s.io/queue-name": settings.queue}
        spec["suspend"] = True  # until Kueue lets it in
    heading = (
        "# A sweep as a RayJob of KubeRay: kubectl apply -f rayjob.yaml\n"
        "# A try that fails gets a new cluster, which finishes what the one before began (backoffLimit).\n"
        "# The claim's volume is mounted by all pods: it needs the access mode ReadWriteMany.\n"
    )
    document = {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": metadata, "spec": spec}
    return [Rendered("rayjob.yaml", heading + _yaml(document))]


def _pod(settings: ClusterSettings) -> dict[str, Any]:
    """The pod of the head or a worker: one or several engines on its GPUs, or one engine without GPUs."""
    resources: dict[str, Any] = {}
    if settings.cpus:
        resources["cpu"] = str(settings.cpus)
    if settings.memory:
        resources["memory"] = settings.memory
    if settings.gpus:
        resources["nvidia.com/gpu"] = settings.gpus
    container: dict[str, Any] = {
        "name": "ray",
        "image": settings.image,
        "volumeMounts": [{"name": "shared", "mountPath": settings.mount}, {"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108
    }
    if resources:
        container["resources"] = {"requests": dict(resources), "limits": dict(resources)}
    return {
        "containers": [container],
        "volumes": [
            {"name": "shared", "persistentVolumeClaim": {"claimName": settings.claim}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},  # what workers of one engine exchange
        ],
    }


def _job(settings: ClusterSettings, _: tuple[Part, ...]) -> list[Rendered]:
    settings.need("the address of the cluster's dashboard, as http://HOST:8265", "address")
    settings.need_plain("out", "sweep")
    slug = re.sub(r"[^A-Za-z0-9]+", "-", settings.out.name).strip("-")[:40]
    id = f"resurface-{slug}-{hashlib.sha256(str(settings.out).encode()).hexdigest()[:8]}"
    command = _command("sweep", settings.sweep, "--out", str(settings.out))
    return [
        Rendered("submit.sh", _filled("job.sh.j2", file="submit.sh", address=settings.address, id=id, command=command))
    ]


def _up(settings: ClusterSettings, _: tuple[Part, ...]) -> list[Rendered]:
    settings.need("the host of the cluster's head", "head")
    settings.need("who ssh is on the hosts", "user")
    settings.need_distinct_hosts()
    settings.need_uncommented_setup()
    before = [settings.setup] if settings.setup else []
    token = "export RAY_AUTH_MODE=token"  # noqa: S105
    start = f"--num-gpus={settings.gpus} --disable-usage-stats" + (
        f" --num-cpus={settings.cpus}" if settings.cpus else ""
    )
    head = f"ray start --head --port={RAY_PORT} --autoscaling-config=~/ray_bootstrap_config.yaml {start}"
    document = {
        "cluster_name": settings.name,
        "provider": {"type": "local", "head_ip": settings.head, "worker_ips": list(settings.workers)},
        "auth": {"ssh_user": settings.user},
        "max_workers": len(settings.workers),
        "file_mounts": {"~/.ray/auth_token": "~/.ray/auth_token"},
        "head_start_ray_commands": [" && ".join([*before, token, "ray stop", head])],
        "worker_start_ray_commands": [
            " && ".join([*before, token, "ray stop", f'ray start --address="$RAY_HEAD_IP:{RAY_PORT}" {start}'])
        ],
    }
    sweep = _command("sweep", settings.sweep, "--out", str(settings.out))
    command = " && ".join([*before, token, f"RAY_ADDRESS={settings.head}:{RAY_PORT} {sweep}"])
    heading = "# Machines that ssh reaches, as a Ray cluster: each holds Resurface and sees the same files.\n"
    stop = " && ".join([*before, "ray stop"])
    script = _filled("up.sh.j2", file="up.sh", config="cluster.yaml", command=command, stop=stop)
    return [Rendered("cluster.yaml", heading + _yaml(document)), Rendered("up.sh", script)]


_MACHINES = frozenset({"name", "nodes", "gpus", "cpus", "memory"})
FORMATS: Mapping[str, Format] = {
    each.name: each
    for each in (
        Format(
            name="slurm",
            help="a batch script: --mode symmetric (whole nodes), start (shared nodes) or array (a job per model)",
            render=_slurm,
            uses=_MACHINES | {"time", "partition", "account", "setup", "mode"},
        ),
        Format(
            name="kuberay",
            help="a RayJob for KubeRay (ray.io/v1), under Kueue with --queue",
            render=_kuberay,
            uses=_MACHINES | {"time", "image", "claim", "mount", "namespace", "queue", "tries", "ray_version"},
        ),
        Format(
            name="job",
            help="a script that submits a job to a Ray cluster that is running",
            render=_job,
            uses=frozenset({"address"}),
        ),
        Format(
            name="up",
            help="a configuration for `ray up` on machines that ssh reaches, and a script that runs the sweep there",
            render=_up,
            uses=frozenset({"name", "gpus", "cpus", "setup", "head", "workers", "user"}),
        ),
    )
}


def _command(*words: str) -> str:
    return shlex.join(["resurface", *words])


def _seconds(time: str) -> int:
    """The seconds of a time in Slurm's form (minutes, HH:MM[:SS], D-HH[:MM[:SS]])."""
    days, dash, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash:
        hours, minutes, seconds = (*parts, 0, 0)[:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:  # MM or MM:SS
        hours, (minutes, seconds) = 0, (*parts, 0)[:2]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def _yaml(document: Mapping[str, Any]) -> str:
    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    return yaml.dump(document, Dumper=Plain, sort_keys=False, allow_unicode=True, width=1000)


@cache
def _environment() -> Environment:
    folder = files("launch.cluster")
    environment = Environment(  # noqa: S701  (scripts and YAML, not HTML)
        loader=FunctionLoader(lambda name: folder.joinpath(name).read_text(encoding="utf-8")),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["sh"] = shlex.quote
    return environment


def _filled(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(values)
