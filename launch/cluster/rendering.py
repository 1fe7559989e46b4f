"""Scripts that run a sweep under Slurm, from templates.

They quote the values of the settings. Quoting does not help in Slurm's comments:
settings refuse unsafe values there.
"""

import re
import shlex
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from evaluator.core.errors import InputError, unknown

MODES = ("symmetric", "start", "array")
Parts = tuple[tuple[str, ...], ...]  # the models of each independent part of a sweep
_WORD = (
    re.compile(r"[A-Za-z0-9][A-Za-z0-9_.,+@:/-]*"),
    "letters, digits and _ . , + @ : / - only",
)
_FORMS = {
    **dict.fromkeys(("name", "partition", "account"), _WORD),
    "time": (
        re.compile(r"\d+|\d+:\d\d(:\d\d)?|\d+-\d+(:\d\d){0,2}"),
        "minutes, HH:MM:SS or D-HH:MM:SS, as Slurm has it",
    ),
    "memory": (re.compile(r"\d+[KMGT]?"), "a number and K, M, G or T"),
}
_ANY = re.compile(r"[^\x00-\x1f\x7f]+"), "is empty or holds a control character"
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
    mode: str = MODES[0]

    def __post_init__(self) -> None:
        """Raises InputError naming the option and the value."""
        for setting in fields(self):
            value = getattr(self, setting.name)
            if isinstance(value, str | Path):
                for form, why in (_ANY, _FORMS.get(setting.name, _ANY)):
                    fits = form.fullmatch(str(value)) is not None
                    _need(fits, setting.name, str(value), why)
        for name in ("nodes", "cpus"):
            value = getattr(self, name)
            _need(value is None or value >= 1, name, value, "at least one is needed")
        _need(self.gpus >= 0, "gpus", self.gpus, "cannot be fewer than none")
        if self.mode not in MODES:
            raise unknown("--mode", self.mode, MODES)
        try:
            shlex.split(self.setup or "")
        except ValueError:
            _need(False, "setup", self.setup, "a quote is not closed")


def _need(holds: bool, name: str, value: object, why: str) -> None:
    """Raises InputError naming the option and the value unless the condition holds."""
    if not holds:
        option = "sweep-path" if name == "sweep" else name
        raise InputError(f"--{option}: {value!r}: {why}")


def render(settings: ClusterSettings, parts: Parts) -> dict[str, str]:
    """The scripts: text by name. Raises InputError for an array without parts."""
    # Slurm's signal may come a minute early, and the sweep needs some seconds to end.
    limit = _seconds(settings.time) if settings.time else 0
    warning = min(120, limit // 4) if limit else 120  # seconds
    out, sweep = str(settings.out), ["resurface", "sweep", settings.sweep]
    values = {**asdict(settings), "warning": warning, "file": "sweep.sbatch"}
    values["command"] = shlex.join([*sweep, "--out", out])
    if settings.mode != "array":
        return {"sweep.sbatch": _filled(f"slurm-{settings.mode}.sbatch", **values)}
    why = "each job of an array has one node"
    _need(settings.nodes == 1, "nodes", settings.nodes, why)
    why = "the sweep has one part only (a model, with what is compared with it)"
    _need(len(parts) >= 2, "mode", settings.mode, why)
    values["parts"] = [
        {"models": ",".join(models), "out": f"{out}.parts/{models[0]}"}
        for models in parts
    ]
    array = values | {"command": shlex.join(sweep), "join": "join.sbatch"}
    report = shlex.join(["resurface", "report", out])
    join = values | {"command": report, "file": "join.sbatch", "out": out}
    return {
        "sweep.sbatch": _filled("slurm-array.sbatch", **array),
        "join.sbatch": _filled("slurm-join.sbatch", **join),
    }


def _seconds(time: str) -> int:
    """The seconds of a time in Slurm's form (minutes, HH:MM[:SS], D-HH[:MM[:SS]])."""
    days, dash, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    hours, minutes, seconds = (
        (*parts, 0, 0)[:3] if dash or len(parts) == 3 else (0, *parts, 0)[:3]
    )
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
