"""Options that commands share, and the checked configurations that they become."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from evaluator.core.errors import InputError, unknown
from evaluator.core.grading import RULES
from evaluator.core.records import FORMATS
from evaluator.engine.config import ENGINES, DType, EngineConfig
from evaluator.probes import PROBES, answering_probes
from evaluator.probes.config import EvalConfig
from launch.sweep.compress import spelled_source
from launch.sweep.config import Resources, SweepConfig, read_prompts, with_served_caches
from launch.sweep.document import validated
from launch.sweep.models import model_name, names_of, same_model
from pruning.config import Allocation, PruneConfig, Repair, needs_calibration
from pruning.methods import METHODS
from pruning.methods.patterns import Group
from quantising.methods import METHODS as QUANTISING


def grouped(title: str) -> Callable[..., Any]:
    """`typer.Option`, for the options that a help text shows under `title`."""
    return partial(typer.Option, rich_help_panel=title)


question, models, running, output = map(
    grouped, ("The questions", "The models", "How it runs", "The output")
)
RunDirectory = Annotated[Path, typer.Argument(metavar="RUN", help="a run directory")]
Out = Annotated[
    Path, output("--out", help="the run directory; the same command resumes there")
]
Track = Annotated[
    str | None, output("--track", help="send finished checkpoints to mlflow or wandb")
]
Notify = Annotated[
    str | None,
    output(
        "--notify", metavar="COMMAND", help="run it at the first failure and the end"
    ),
]
Prompts = Annotated[
    Path | None,
    question("--prompts", help="YAML, NAME: TEMPLATE; each poses the task again"),
]
Date = Annotated[
    str | None, question(metavar="DAY", help="for chat templates, as 2026-01-31")
]
DTYPES: tuple[str, ...] = get_args(DType)


def eval_sweep(checkpoints: Sequence[str], typed: Mapping[str, Any]) -> SweepConfig:
    """A sweep without pruning, from the options of `resurface eval`. Raises
    InputError naming the option and the value."""
    models = names_of(checkpoints, "CHECKPOINT")
    base, named = typed.get("base"), None
    if base is not None:
        equal = [name for name, value in models.items() if same_model(value, base)]
        named = next(iter(equal), None)
        # given by --base alone, or under a name that another checkpoint has
        if named is None:
            models = names_of([base, *checkpoints], "CHECKPOINT and --base")
            named = model_name(base)
    options = {**typed, "kind": typed["engine"]}
    for name in ("languages", "context_tokens", "formats", "probes"):
        if options.get(name) is not None:
            options[name] = listed(name.replace("_", "-"), options[name])
    if options.get("probes") is None:
        options.pop("probes", None)
    each_known("format", options["formats"], FORMATS)
    each_known("probe", options.get("probes", []), PROBES.names)
    for name, known in (
        ("engine", ENGINES.names),
        ("dtype", DTYPES),
        ("grading", RULES),
    ):
        each_known(f"--{name}", [options[name]], known)
    parts: dict[str, Any] = {}
    for model in (EvalConfig, EngineConfig, Resources):
        given = {name: options[name] for name in model.model_fields if name in options}
        parts[model.__name__] = given
    task = parts["EvalConfig"] | {"date": None, "prompts": None}
    prompts = options.get("prompts")
    config = validated(
        SweepConfig,
        {
            "models": models,
            "base": named,
            "prompts": {} if prompts is None else read_prompts(prompts),
            "tasks": [task],
            "date": options.get("date"),
            "seed": options["seed"],
            "engine": parts["EngineConfig"],
            "resources": parts["Resources"],
            "kv_cache": listed("kv-cache-dtype", options["kv_cache_dtype"]),
        },
        "resurface eval",
        as_option,
    )
    return with_served_caches(config, "--kv-cache-dtype")


def prune_request(source: Path, options: Mapping[str, Any]) -> PruneConfig:
    """A pruning by the options of `resurface prune`. Raises InputError naming the
    option and the value."""
    method, sparsity, pattern = (
        options[name] for name in ("method", "sparsity", "pattern")
    )
    if method is None:
        raise InputError(
            f"Missing option '--method': one of {', '.join(METHODS.names)}"
        )
    if method in QUANTISING.names:
        raise InputError(
            f"--method {method} quantises: `resurface compress MODEL --method {method}"
            f" --scheme {QUANTISING[method].schemes[0]} --out DIR`"
        )
    allowed = {
        "method": METHODS.names,
        "allocation": get_args(Allocation),
        "repair": get_args(Repair),
    }
    for name, known in (allowed | {"group": get_args(Group)}).items():
        if options[name] is not None:
            each_known(f"--{name}", [options[name]], known)
    if (sparsity is None) == (pattern is None):
        given = f"not both, --sparsity {sparsity} and --pattern {pattern}"
        if pattern is None:
            given = "neither is given"
        raise InputError(
            f"give one of --sparsity (as 0.5) and --pattern (as 2:4): {given}"
        )
    names = ("method", "allocation", "group", "repair", "seed", "sparsity", "pattern")
    wanted = {"source": source} | {name: options[name] for name in names}
    # the one that is not given has a default of its own
    del wanted["sparsity" if pattern is not None else "pattern"]
    if needs_calibration(method, options["allocation"], options["repair"]):
        if options["calibration"] is None and not METHODS[method].needs_calibration:
            reason = f"--repair {options['repair']}"
            if options["allocation"] == "owl":
                reason = "--allocation owl"
            raise InputError(
                f"Missing option '--calibration': {reason} looks at text (c4,"
                " gazetteer, text:FILE)"
            )
        calibration = {name: options[name] for name in ("samples", "sequence_length")}
        wanted["calibration"] = calibration | {"source": options["calibration"] or "c4"}
    config = validated(PruneConfig, wanted, "resurface prune", as_option)
    if config.calibration is None:
        return config
    return config.model_copy(update={"calibration": spelled_source(config.calibration)})


def match_request(
    probes: str, engine: Mapping[str, Any]
) -> tuple[list[str], EngineConfig]:
    """The probes and the engine of `resurface match`. Raises InputError naming the
    option and the value."""
    each_known("--engine", [engine["kind"]], ENGINES.names)
    each_known("--dtype", [engine["dtype"]], DTYPES)
    chosen = each_known(
        "probe with responses", listed("probes", probes), answering_probes()
    )
    return chosen, validated(EngineConfig, engine, "resurface match", as_option)


def as_option(location: tuple[int | str, ...]) -> str:
    """The option of a field: tasks.0.items is --items. Empty for a whole task, which
    has no option."""
    inside = location[2:] if location[:2] == ("tasks", 0) else location
    name = next((part for part in reversed(inside) if isinstance(part, str)), None)
    name = {"kv_cache": "kv_cache_dtype"}.get(name or "", name)
    return "" if name is None else f"--{name.replace('_', '-')}"


def listed(option: str, value: str) -> list[str]:
    parts = [part.strip() for part in value.split(",") if part.strip()]
    if not parts:
        raise InputError(f"--{option}: {value!r} lists nothing")
    return parts


def each_known(what: str, values: list[str], allowed: Sequence[str]) -> list[str]:
    """The values. Raises InputError for the first that is not allowed."""
    for value in values:
        if value not in allowed:
            raise unknown(what, value, allowed)
    return values
