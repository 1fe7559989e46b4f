"""Scripts that run a sweep under Slurm, from templates.

They quote the values of the settings. Quoting does not help in Slurm's comments:
settings refuse unsafe values there.
"""

import re
import shlex
from pathlib import Path
from typing import Any, Literal, get_args

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic import Field, ValidationInfo, field_validator

from evaluator.core.config import Frozen
from evaluator.core.errors import InputError

Mode = Literal["symmetric", "start", "array"]
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


class ClusterSettings(Frozen):
    """Options of `resurface render`; None: not given."""

    out: Path  # the run directory, on a file system that all nodes share
    # as the cluster's machines see it, or a bundled recipe
    sweep: str = Field(description="the sweep file's path on the cluster")
    name: str = Field(default="resurface", description="the job's name")
    # before all other commands: it is run, not quoted
    setup: str | None = Field(
        default=None, description="first command, as 'source x/bin/activate'"
    )
    mode: Mode = Field(default="symmetric", description=", ".join(get_args(Mode)))
    nodes: int = Field(default=1, ge=1, description="number of machines")
    gpus: int = Field(default=0, ge=0, description="GPUs per machine")
    cpus: int | None = Field(default=None, ge=1, description="cores per machine")
    memory: str | None = Field(default=None, description="per machine: 64G")
    time: str | None = Field(
        default=None, description="time limit: minutes, HH:MM:SS or D-HH:MM:SS"
    )
    partition: str | None = Field(default=None, description="the partition")
    account: str | None = Field(default=None, description="the account")

    @field_validator("*")
    @classmethod
    def _fits(cls, value: Any, field: ValidationInfo) -> Any:
        for form, why in (_ANY, _FORMS.get(field.field_name or "", _ANY)):
            if isinstance(value, str | Path) and not form.fullmatch(str(value)):
                raise ValueError(why)
        return value

    @field_validator("setup")
    @classmethod
    def _is_closed(cls, value: str | None) -> str | None:
        try:
            shlex.split(value or "")
        except ValueError as error:
            raise ValueError("a quote is not closed") from error
        return value


def render(settings: ClusterSettings, parts: Parts) -> dict[str, str]:
    """The scripts: text by name. Raises InputError for an array without parts."""
    # Slurm's signal may come a minute early, and the sweep needs some seconds to end.
    limit = _seconds(settings.time) if settings.time else 0
    warning = min(120, limit // 4) if limit else 120  # seconds
    out, sweep = str(settings.out), ["resurface", "sweep", settings.sweep]
    values = {**settings.model_dump(), "warning": warning, "file": "sweep.sbatch"}
    values["command"] = shlex.join([*sweep, "--out", out])
    if settings.mode != "array":
        return {"sweep.sbatch": _filled(f"slurm-{settings.mode}.sbatch", **values)}
    if settings.nodes != 1:
        raise InputError(
            f"--nodes: {settings.nodes}: each job of an array has one node"
        )
    if len(parts) < 2:
        raise InputError(
            "--mode: array: the sweep has one part only (a model, with what is compared"
            " with it)"
        )
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
