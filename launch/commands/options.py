"""Options that commands share, and the checked configurations that they become."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial, wraps
from inspect import Parameter, signature
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args

import typer
from pydantic import BaseModel
from typer.core import TyperCommand, TyperOption
from typer.exceptions import TyperException

from evaluator.checkpoints.served import Endpoint
from evaluator.core.config import validated
from evaluator.core.errors import Document, InputError, mapping_at, unknown
from evaluator.core.graders import GRADERS
from evaluator.core.records import FORMATS
from evaluator.core.removed import REMOVED
from evaluator.engine.config import ENGINES, DType, EngineConfig, engines_help
from evaluator.probes import PROBES
from evaluator.probes.config import EvalConfig
from evaluator.store.run_json import read_run
from evaluator.tasks import TASKS
from launch.sweep.config import (
    Resources,
    SweepConfig,
    bundled_recipes,
    read_prompts,
    tasks_of_suite,
    with_served_caches,
)
from launch.sweep.models import ModelValue, model_name, names_of, same_model
from pruning.methods import METHODS
from quantising.schemes import SCHEMES


class Command(TyperCommand):
    """A command that refuses an option with one value that is there twice: typer would
    forget the first."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, _, options = self.make_parser(ctx).parse_args([*args])
        for option in options:
            once = isinstance(option, TyperOption) and not option.multiple
            if once and options.count(option) > 1:
                raise InputError(
                    f"{option.opts[0]} is there twice: write it once, with commas"
                    " between several values"
                )
        return super().parse_args(ctx, args)


def grouped(title: str) -> Callable[..., Any]:
    """`typer.Option`, for the options that a help text shows under `title`."""
    return partial(typer.Option, rich_help_panel=title)


def completing(known: Iterable[Any]) -> Callable[[str], list[str]]:
    """Completes a name, of a registry too, also the last of several with commas
    between them."""

    def completed(incomplete: str) -> list[str]:
        head, comma, _ = incomplete.rpartition(",")
        return [f"{head}{comma}{getattr(each, 'name', each)}" for each in known]

    return completed


def runs() -> list[str]:
    """The run directories here, and one folder down."""
    files = [*Path().glob("*/run.json"), *Path().glob("*/*/run.json")]
    return [str(file.parent) for file in files]


# the values of fields, to complete
_NAMES: dict[str, Iterable[Any]] = {
    "formats": FORMATS,
    "probes": PROBES,
    "dtype": get_args(DType),
    "grader": GRADERS,
    "method": METHODS,
    "scheme": SCHEMES,
}


# fields, and the options that set them
_RENAMED = {
    "kv_cache": "kv_cache_dtype",
    "controls": "control",
    "kind": "engine",
    "source": "calibration",
    "sweep": "sweep_path",
}


def with_fields(
    panel: str, model: type[BaseModel], *names: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command options from fields of a model, which help shows under `panel`,
    before its keyword-only ones. The command takes those that were typed as `**typed`."""

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        known = signature(command, eval_str=True)
        shown = [field_option(model, name, panel) for name in names]
        shown += [
            parameter
            for parameter in known.parameters.values()
            if parameter.kind is not Parameter.VAR_KEYWORD
        ]
        shown.sort(key=lambda each: each.kind)

        @wraps(command)
        def called(**given: Any) -> None:
            typed = {
                name: value
                for name, value in given.items()
                if value is not None or name not in names
            }
            command(**typed)

        setattr(called, "__signature__", known.replace(parameters=shown))  # noqa: B010
        return called

    return decorated


def field_option(model: type[BaseModel], name: str, panel: str) -> Parameter:
    """An option with the name, the title in place of its type, the help and the default
    of a model's field. The model checks its value."""
    field = model.model_fields[name]
    parts = get_args(field.annotation) or (field.annotation,)
    kinds = {getattr(part, "__origin__", part) for part in parts} - {NoneType}
    known = (bool, int, float, Path)
    kind: Any = next((each for each in known if kinds == {each}), str)
    default = field.default
    if isinstance(default, tuple):
        default = ", ".join(map(str, default))
    if isinstance(default, float):
        default = f"{default:g}"
    told = default and not field.is_required()
    shown = f" (default: {default})" if told else ""
    option = typer.Option(
        as_option((name,)),
        metavar=field.title,
        help=f"{field.description}{shown}",
        rich_help_panel=panel,
        autocompletion=completing(_NAMES[name]) if name in _NAMES else None,
    )
    kept: Any = Annotated[kind | None, option]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kept)


question, models, running, output = map(
    grouped, ("The questions", "The models", "How it runs", "The output")
)
RunDirectory = Annotated[
    Path, typer.Argument(metavar="RUN", help="a run directory", autocompletion=runs)
]
RunDirectories = Annotated[
    list[Path] | None,
    typer.Argument(metavar="RUN...", help="run directories", autocompletion=runs),
]
Out = Annotated[
    Path | None,
    output("--out", help="the run directory; the same command resumes there"),
]
DryRun = Annotated[bool, running("--dry-run", help="check and estimate; start nothing")]
Strict = Annotated[
    bool, running("--strict", help="start only if every checkpoint can be used")
]
TakeOver = Annotated[
    bool, running("--take-over", help="take the run from another machine at once")
]
Track = Annotated[
    str | None,
    output(
        "--track",
        help="send the ended run to mlflow or wandb",
        autocompletion=completing(("mlflow", "wandb")),
    ),
]
Notify = Annotated[
    str | None,
    output(
        "--notify", metavar="COMMAND", help="run it at the first failure and the end"
    ),
]
Detach = Annotated[
    bool, output("--detach", help="go on without the terminal, after a line of JSON")
]
Prompts = Annotated[
    Path | None, question("--prompts", help="YAML, NAME: TEMPLATE; further prompts")
]
recipe_names = completing(bundled_recipes())
task_names = completing(TASKS)
TaskName = Annotated[
    str, question(help="see `resurface list tasks`", autocompletion=task_names)
]
EngineName = Annotated[
    str, running(help=engines_help(), autocompletion=completing(ENGINES))
]


def eval_sweep(checkpoints: Sequence[str], typed: Document) -> SweepConfig:
    """A sweep without pruning, from the options of `resurface eval`. Raises
    InputError naming the option and the value."""
    typed = {name: value for name, value in typed.items() if value is not None}
    earlier = _earlier_names(typed.get("out"))
    models = names_of(checkpoints, "CHECKPOINT", earlier)
    if ("task" in typed) == ("suite" in typed):
        raise InputError(
            "give one of --task (a task of `resurface list tasks`) and --suite"
            " (zero-shot)"
        )
    if "suite" in typed:
        suite, colon, folder = typed["suite"].partition(":")
        names = tasks_of_suite(suite)
        lacking = [name for name in names if not (Path(folder) / name).exists()]
        if colon and lacking:
            raise InputError(f"--suite: {folder}: has no {', '.join(lacking)}")
    base, named = typed.get("base"), None
    if base is not None:
        equal = (name for name, value in models.items() if same_model(value, base))
        named = next(equal, None)
        # given by --base alone, or under a name that another checkpoint has
        if named is None:
            models = names_of([base, *checkpoints], "CHECKPOINT and --base", earlier)
            named = next(iter(models))
        models = {named: models[named], **models}  # the base first
    values: dict[str, ModelValue] = dict(models)
    if "key_env" in typed and not typed.get("endpoint"):
        raise InputError("--key-env: it goes with --endpoint")
    for text in typed.get("endpoint") or ():
        name, endpoint = served_model(text, typed.get("key_env"))
        if name in values:
            raise InputError(f"--endpoint: {name!r} is the name of another checkpoint")
        values[name] = endpoint
    typed["kind"] = typed["engine"]
    lists = "languages", "context_tokens", "formats", "probes", "seeds", "kv_cache"
    for name in (*lists, "controls"):
        if name in typed:
            typed[name] = listed(name, typed[name])
    whole = ("kv_cache", "controls", "date", "seed")  # fields of the sweep itself
    of_sweep = {name: typed[name] for name in whole if name in typed}
    typed.pop("kv_cache", None)  # an engine has one too
    if "prompts" in typed:
        of_sweep["prompts"] = read_prompts(typed["prompts"])
    task, engine, resources = (
        {name: typed[name] for name in model.model_fields if name in typed}
        for model in (EvalConfig, EngineConfig, Resources)
    )
    config = validated(
        SweepConfig,
        {
            "models": values,
            "base": named,
            "tasks": [task | {"date": None, "prompts": None}],
            "engine": engine,
            "resources": resources,
            **of_sweep,
        },
        "resurface eval",
        as_option,
    )
    return with_served_caches(config, "--kv-cache-dtype")


def served_model(text: str, key_env: str | None) -> tuple[str, Endpoint]:
    """A name and an endpoint for URL#MODEL, or URL alone. Raises InputError."""
    url, _, model = text.partition("#")
    named = {"url": url, "model": model, "key_env": key_env}
    endpoint = validated(
        Endpoint, {name: value for name, value in named.items() if value}, "--endpoint"
    )
    return model_name(model or url.partition("://")[2]), endpoint


def _earlier_names(run_dir: Path | None) -> dict[str, str]:
    """The names of a run's models by what was typed: a later call keeps them."""
    run = {} if run_dir is None else read_run(run_dir)
    models = mapping_at(run, "config", "models")
    return {value: name for name, value in models.items() if isinstance(value, str)}


def explained(error: TyperException) -> str:
    """An error's text; for what is missing, with the words of its help."""
    message = error.format_message()
    command = getattr(getattr(error, "ctx", None), "info_name", "")
    option = getattr(error, "option_name", "")
    if instead := REMOVED.get(f"{command} {option}"):
        return f"option {option} was removed: {instead}"
    meaning = getattr(getattr(error, "param", None), "help", None)
    if not meaning or not message.startswith("Missing"):
        return message
    return f"{message.rstrip('.')}: {meaning}"


def as_option(location: tuple[int | str, ...]) -> str:
    """The option of a field: tasks.0.items is --items. Empty for a whole task, which
    has no option."""
    inside = location[2:] if location[:1] == ("tasks",) else location
    name = next((part for part in reversed(inside) if isinstance(part, str)), None)
    name = _RENAMED.get(name or "", name)
    return "" if name is None else f"--{name.replace('_', '-')}"


def listed(field: str, value: str) -> list[str]:
    """Raises InputError naming the field's option."""
    parts = [part.strip() for part in value.split(",") if part.strip()]
    if not parts:
        raise InputError(f"{as_option((field,))}: {value!r} lists nothing")
    if ";" in value:
        raise InputError(
            f"{as_option((field,))}: {value!r}: write a comma between two names"
        )
    return parts


def each_known(what: str, values: list[str], allowed: Sequence[str]) -> list[str]:
    """The values. Raises InputError for the first that is not allowed."""
    for value in values:
        if value not in allowed:
            raise unknown(what, value, allowed)
    return values
