"""Files that run a sweep on a cluster: one function per format, with a template or a
YAML document.

Shell scripts and YAML quote the values of the settings. Quoting does not help in
Slurm's comments, nor in commands that Ray forwards: Ray quotes them for Windows' shell.
Settings refuse unsafe values there.
"""

import hashlib
import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, cast

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from evaluator.core.errors import Document, InputError, Json, unknown
from launch.sweep.config import bundled_recipes

RAY_PORT = 6379
Parts = tuple[tuple[str, ...], ...]  # the models of each independent part of a sweep
_LABEL = (
    # of Kubernetes, with room for what is added to it
    re.compile(r"[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?"),
    "small letters, digits and hyphens only, as Kubernetes has them",
)
_KEY = r"([\w.-]+(?:/[\w.-]+)?)"  # of Kubernetes' labels and taints
_WORD = (
    re.compile(r"[A-Za-z0-9][A-Za-z0-9_.,+@:/-]*"),
    "letters, digits and _ . , + @ : / - only",
)
_FORMS: Mapping[str, tuple[re.Pattern[str], str]] = {
    **dict.fromkeys(("name", "partition", "account"), _WORD),
    **dict.fromkeys(("namespace", "claim", "queue"), _LABEL),
    "time": (
        re.compile(r"\d+|\d+:\d\d(:\d\d)?|\d+-\d+(:\d\d){0,2}"),
        "minutes, HH:MM:SS or D-HH:MM:SS, as Slurm has it",
    ),
    **dict.fromkeys(
        ("memory", "shm"),
        (
            re.compile(r"\d+([KMGT]i?)?"),
            "a number and K, M, G or T (Kubernetes also Ki, Mi, Gi, Ti)",
        ),
    ),
    "secrets": (
        re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?"),
        "is no name of a Kubernetes secret",
    ),
    "node_selector": (
        re.compile(rf"{_KEY}=([\w.-]*)", re.ASCII),
        "KEY=VALUE is needed",
    ),
    "tolerations": (
        re.compile(
            rf"{_KEY}(?:=([\w.-]*))?(?::(NoSchedule|PreferNoSchedule|NoExecute))?",
            re.ASCII,
        ),
        "KEY[=VALUE][:EFFECT] is needed, as `kubectl taint` has it",
    ),
    "user": (re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*"), "is no user's name"),
    **dict.fromkeys(
        ("head", "workers"),
        (re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:-]*[A-Za-z0-9])?"), "is no host"),
    ),
}
_ANY = re.compile(r"[^\x00-\x1f\x7f]+"), "is empty or holds a control character"
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./=@%+,:~-]+")
_TEMPLATES = Environment(  # noqa: S701  (scripts and YAML, not HTML)
    loader=FileSystemLoader(Path(__file__).parent),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_TEMPLATES.filters["sh"] = shlex.quote


def _filled(template: str, **values: Any) -> str:
    return _TEMPLATES.get_template(f"{template}.j2").render(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """Options of `resurface render`; None: not given."""

    out: Path  # the run directory, on a file system that all nodes share
    sweep: str  # the sweep file as the cluster's machines see it, or a bundled recipe
    name: str = "resurface"  # of the job
    nodes: int = 1
    gpus: int = 0  # per node
    cpus: int | None = None  # per node
    memory: str | None = None  # per node
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    # a command before all others, as `source .venv/bin/activate`: it is run, not quoted
    setup: str | None = None
    mode: str = "symmetric"  # of Slurm
    image: str | None = None
    claim: str | None = None  # a PersistentVolumeClaim, mounted at `mount`
    mount: str = "/shared"
    namespace: str | None = None
    queue: str | None = None  # of Kueue
    tries: int = 3
    ray_version: str | None = None
    node_selector: tuple[str, ...] = ()  # KEY=VALUE
    tolerations: tuple[str, ...] = ()  # KEY[=VALUE][:EFFECT]
    secrets: tuple[str, ...] = ()  # of Kubernetes: each key becomes a variable
    # of /dev/shm. With less than 10 GB, Ray keeps its objects elsewhere
    shm: str = "16Gi"
    address: str | None = None  # of a Ray cluster's dashboard
    head: str | None = None  # a host, for `ray up`
    workers: tuple[str, ...] = ()
    user: str | None = None

    def __post_init__(self) -> None:
        """Raises InputError naming the option and the value."""
        for setting in fields(self):
            value = getattr(self, setting.name)
            for text in value if isinstance(value, tuple) else (value,):
                if isinstance(text, str | Path):
                    for form, why in (_ANY, _FORMS.get(setting.name, _ANY)):
                        fits = form.fullmatch(str(text)) is not None
                        _need(fits, setting.name, text, why)
        for name in ("nodes", "cpus", "tries"):
            value = getattr(self, name)
            _need(value is None or value >= 1, name, value, "at least one is needed")
        _need(self.gpus >= 0, "gpus", self.gpus, "cannot be fewer than none")
        try:
            shlex.split(self.setup or "")
        except ValueError:
            _need(False, "setup", self.setup, "a quote is not closed")

    def need(self, **options: str) -> None:
        """Raises InputError if one of these options is missing. The values explain
        them."""
        for name, what in options.items():
            if not getattr(self, name):
                raise InputError(f"Missing option '--{name.replace('_', '-')}': {what}")

    def need_plain_paths(self) -> None:
        """Raises InputError if Ray would change a path in a command that it
        forwards."""
        for name in ("out", "sweep"):
            value = getattr(self, name)
            why = "letters, digits and _ . / = @ % + , : ~ - only: Ray hands it on"
            _need(bool(_PLAIN_PATH.fullmatch(str(value))), name, value, why)


def _need(holds: bool, name: str, value: object, why: str) -> None:
    """Raises InputError naming the option and the value unless the condition holds."""
    if not holds:
        option = "sweep-path" if name == "sweep" else name.replace("_", "-")
        raise InputError(
            f"--{option}: {(str(value) if isinstance(value, Path) else value)!r}: {why}"
        )


def render(format: str, settings: ClusterSettings, parts: Parts) -> dict[str, str]:
    """The files of a format: text by name. Raises InputError for an unknown format,
    a missing or an unused setting."""
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    rendered, uses = FORMATS[format]
    for each in fields(settings):
        value = getattr(settings, each.name)
        used = each.name in uses or each.default is MISSING or value == each.default
        _need(used, each.name, value, f"not used by {format}")
    return rendered(
        settings,
        parts,
        shlex.join(["resurface", "sweep", settings.sweep, "--out", str(settings.out)]),
    )


def _slurm(settings: ClusterSettings, parts: Parts, command: str) -> dict[str, str]:
    if settings.memory and settings.memory.endswith("i"):
        raise InputError(f"--memory: {settings.memory!r}: Slurm has K, M, G and T only")
    # Slurm's signal may come a minute early, and the sweep needs some seconds to end.
    limit = _seconds(settings.time) if settings.time else 0
    warning = min(120, limit // 4) if limit else 120  # seconds
    values = {**asdict(settings), "command": command, "warning": warning}
    values["file"] = "sweep.sbatch"
    if settings.mode in ("symmetric", "start"):
        return {"sweep.sbatch": _filled(f"slurm-{settings.mode}.sbatch", **values)}
    if settings.mode != "array":
        raise unknown("--mode", settings.mode, ("symmetric", "start", "array"))
    why = "each job of an array has one node"
    _need(settings.nodes == 1, "nodes", settings.nodes, why)
    why = "the sweep has one part only (a model, with what is compared with it)"
    _need(len(parts) >= 2, "mode", settings.mode, why)
    out = str(settings.out)
    values["parts"] = [
        {"models": ",".join(models), "out": f"{out}.parts/{models[0]}"}
        for models in parts
    ]
    sweep = shlex.join(["resurface", "sweep", settings.sweep])
    array = values | {"command": sweep, "join": "join.sbatch"}
    report = shlex.join(["resurface", "report", out])
    join = values | {"command": report, "file": "join.sbatch", "out": out}
    return {
        "sweep.sbatch": _filled("slurm-array.sbatch", **array),
        "join.sbatch": _filled("slurm-join.sbatch", **join),
    }


def _kuberay(settings: ClusterSettings, _: Parts, command: str) -> dict[str, str]:
    settings.need(
        image="the image that all pods run, with Resurface and Ray in it",
        claim="the PersistentVolumeClaim that holds run directory and models",
        ray_version="the version of Ray in the image",
    )
    settings.need_plain_paths()
    label, why = _LABEL
    _need(bool(label.fullmatch(settings.name)), "name", settings.name, why)
    absolute = re.fullmatch("/[^:]*", settings.mount) is not None
    why = "an absolute path without a colon is needed"
    _need(absolute, "mount", settings.mount, why)
    for name, path in (("out", str(settings.out)), ("sweep", settings.sweep)):
        kept = Path(settings.mount) in Path(os.path.normpath(path)).parents
        why = f"is not below --mount {settings.mount}, so the pods do not share it"
        _need(kept or (name == "sweep" and path in bundled_recipes()), name, path, why)
    old = re.match(
        r"([01]\.|2\.([0-9]|[1-4][0-9]|5[01])(\.|$))", settings.ray_version or ""
    )
    _need(
        not old,
        "ray-version",
        settings.ray_version,
        "only Ray 2.52 and later has tokens",
    )
    group = {
        "rayStartParams": {"num-gpus": str(settings.gpus)},
        "template": {"spec": _pod(settings)},
    }
    cluster: Json = {
        "rayVersion": settings.ray_version,
        # KubeRay makes a secret for each cluster, and hands it to the pods
        "authOptions": {"mode": "token"},
        "headGroupSpec": group,
    }
    if settings.nodes > 1:
        count = dict.fromkeys(
            ("replicas", "minReplicas", "maxReplicas"), settings.nodes - 1
        )
        cluster["workerGroupSpecs"] = [{"groupName": "engines", **count, **group}]
    labels = {"kueue.x-k8s.io/queue-name": settings.queue} if settings.queue else None
    metadata = {
        "name": settings.name,
        "namespace": settings.namespace,
        "labels": labels,
    }
    spec = {
        "jobId": settings.name,  # by which the job stops itself
        "entrypoint": f"python -m launch.cluster.job {settings.name} {command}",
        "submissionMode": "K8sJobMode",
        "backoffLimit": settings.tries - 1,
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": 3600,
        "rayClusterSpec": cluster,
        # Slurm's 0, no limit, is refused by KubeRay
        "activeDeadlineSeconds": _seconds(settings.time or "0") or None,
        "suspend": True if settings.queue else None,  # until Kueue lets it in
    }
    heading = (
        "# A sweep as a RayJob of KubeRay: kubectl apply -f rayjob.yaml\n# A try that"
        " fails gets a new cluster, which finishes what the one before began"
        " (backoffLimit).\n# The exit codes 2, 3 and 4 stay the same: the job then ends"
        " as STOPPED, and is not tried again.\n# The claim's volume is mounted by all"
        " pods: it needs the access mode ReadWriteMany.\n"
    )
    document = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": _given(metadata),
        "spec": _given(spec),
    }
    return {"rayjob.yaml": heading + _yaml(document)}


def _pod(settings: ClusterSettings) -> Json:
    """The pod of the head or a worker: one or several engines on its GPUs, or one
    engine without GPUs."""
    cpus = str(settings.cpus) if settings.cpus else None
    resources = _given(
        {
            "cpu": cpus,
            "memory": settings.memory,
            "nvidia.com/gpu": settings.gpus or None,
        }
    )
    container = {
        "name": "ray",
        "image": settings.image,
        "volumeMounts": [
            {"name": "shared", "mountPath": settings.mount},
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
        ],
        "envFrom": [{"secretRef": {"name": name}} for name in settings.secrets],
        "resources": (
            {"requests": resources, "limits": resources} if resources else None
        ),
    }
    pod = {
        "containers": [_given(container)],
        "volumes": [
            {"name": "shared", "persistentVolumeClaim": {"claimName": settings.claim}},
            # What workers of one engine exchange.
            {
                "name": "shm",
                "emptyDir": {"medium": "Memory", "sizeLimit": settings.shm},
            },
        ],
        "nodeSelector": dict(each.split("=") for each in settings.node_selector),
        "tolerations": list(_tolerations(settings)),
    }
    return _given(pod)


def _tolerations(settings: ClusterSettings) -> Iterator[dict[str, str]]:
    """Those that were asked for; and with GPUs, the one for the taint that nodes
    with GPUs usually have."""
    form, _ = _FORMS["tolerations"]
    for text in (*settings.tolerations, *(["nvidia.com/gpu"] if settings.gpus else [])):
        key, value, effect = cast("re.Match[str]", form.fullmatch(text)).groups()
        toleration = {"key": key, "operator": "Exists"}
        if value is not None:
            toleration |= {"operator": "Equal", "value": value}
        if effect:
            toleration["effect"] = effect
        yield toleration


def _job(settings: ClusterSettings, _: Parts, command: str) -> dict[str, str]:
    settings.need(address="the address of the cluster's dashboard, as http://HOST:8265")
    settings.need_plain_paths()
    slug = re.sub(r"[^A-Za-z0-9]+", "-", settings.out.name).strip("-")[:40]
    id = (
        f"resurface-{slug}-{hashlib.sha256(str(settings.out).encode()).hexdigest()[:8]}"
    )
    script = _filled(
        "job.sh", file="submit.sh", address=settings.address, id=id, command=command
    )
    return {"submit.sh": script}


def _up(settings: ClusterSettings, _: Parts, command: str) -> dict[str, str]:
    settings.need(head="the host of the cluster's head", user="who ssh is on the hosts")
    hosts = [settings.head, *settings.workers]
    for host in hosts:  # Ray accepts one node per host
        _need(hosts.count(host) == 1, "head and --workers", host, "occurs twice")
    setup = settings.setup or ""
    whole = shlex.split(setup, comments=True) == shlex.split(setup)
    _need(
        whole,
        "setup",
        setup,
        "what follows on the line would be part of the comment after #",
    )
    before = [settings.setup] if settings.setup else []
    token = "export RAY_AUTH_MODE=token"  # noqa: S105
    cpus = f" --num-cpus={settings.cpus}" if settings.cpus else ""
    start = f"--num-gpus={settings.gpus} --disable-usage-stats{cpus}"
    head = (
        "ray start --head"
        f" --port={RAY_PORT} --autoscaling-config=~/ray_bootstrap_config.yaml {start}"
    )
    worker = f'ray start --address="$RAY_HEAD_IP:{RAY_PORT}" {start}'
    document = {
        "cluster_name": settings.name,
        "provider": {
            "type": "local",
            "head_ip": settings.head,
            "worker_ips": list(settings.workers),
        },
        "auth": {"ssh_user": settings.user},
        "max_workers": len(settings.workers),
        "file_mounts": {"~/.ray/auth_token": "~/.ray/auth_token"},
        "head_start_ray_commands": [" && ".join([*before, token, "ray stop", head])],
        "worker_start_ray_commands": [
            " && ".join([*before, token, "ray stop", worker])
        ],
    }
    command = " && ".join(
        [*before, token, f"RAY_ADDRESS={settings.head}:{RAY_PORT} {command}"]
    )
    heading = (
        "# Machines that ssh reaches, as a Ray cluster: each holds Resurface and sees"
        " the same files.\n"
    )
    stop = " && ".join([*before, "ray stop"])
    script = _filled(
        "up.sh", file="up.sh", config="cluster.yaml", command=command, stop=stop
    )
    return {"cluster.yaml": heading + _yaml(document), "up.sh": script}


_MACHINES = frozenset({"name", "nodes", "gpus", "cpus", "memory"})
# What renders a format, and the settings that its files use besides the run directory
# and the sweep.
FORMATS: Mapping[
    str, tuple[Callable[[ClusterSettings, Parts, str], dict[str, str]], frozenset[str]]
] = {
    "slurm": (_slurm, _MACHINES | {"time", "partition", "account", "setup", "mode"}),
    "kuberay": (
        _kuberay,
        _MACHINES
        | {
            "time",
            "image",
            "claim",
            "mount",
            "namespace",
            "queue",
            "tries",
            "ray_version",
        }
        | {"node_selector", "tolerations", "secrets", "shm"},
    ),
    "job": (_job, frozenset({"address"})),
    "up": (
        _up,
        frozenset({"name", "gpus", "cpus", "setup", "head", "workers", "user"}),
    ),
}


def _seconds(time: str) -> int:
    """The seconds of a time in Slurm's form (minutes, HH:MM[:SS], D-HH[:MM[:SS]])."""
    days, dash, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    hours, minutes, seconds = (
        (*parts, 0, 0)[:3] if dash or len(parts) == 3 else (0, *parts, 0)[:3]
    )
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def _given(document: Document) -> Json:
    """Without what was not asked for."""
    return {
        name: value for name, value in document.items() if value not in (None, [], {})
    }


def _yaml(document: Document) -> str:
    """YAML without aliases: a copy by way of JSON shares no object."""
    copied = json.loads(json.dumps(document))
    return yaml.safe_dump(copied, sort_keys=False, allow_unicode=True, width=1000)
