"""`resurface demo`, `sweep` and `eval`: check, run, write the report, print what failed."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from evaluator.core.errors import InputError, one_line
from evaluator.core.records import FORMATS
from evaluator.engine.config import ENGINES, engines_help
from evaluator.engine.processor import usable_cores
from evaluator.probes import PROBES
from evaluator.probes.config import EvalConfig
from evaluator.tasks import tasks_help
from launch.commands.options import DTYPES, Out, Prompts, Seed, Track, described, eval_sweep, listed
from launch.commands.terminal import console, errors
from launch.process import stop_in_order
from launch.provenance import count_gpus
from launch.run.decide.nodes import Node, place_engines
from launch.run.directory.location import need_place
from launch.sweep.config import RECIPES, SweepConfig, bundled_recipes, find_recipe, load_sweep
from launch.sweep.models import BUNDLED

if TYPE_CHECKING:
    from evaluator.store.failures import Failure
    from launch.sweep.preflight import Prepared
    from launch.trackers.tracking import Tracker, Tracking


WITH_FAILURES = 3  # exit code
_NAMED = 3  # checkpoints


def run_and_report(config: SweepConfig, out: Path, track: str | None = None) -> None:
    """Run the missing part of `config` in `out`, then rebuild the report there.

    `track`: the experiment tracker that receives each finished checkpoint.

    Raises InputError for bad input, ResurfaceError if the run failed, typer.Exit with code 3 if a part failed.
    """
    tracker = None
    if track is not None:
        from launch.trackers.services import tracker_of

        tracker = tracker_of(track)
    stop_in_order()
    need_place(out)
    check_this_machine(config)
    from launch.run.work.progress import Progress
    from launch.sweep.preflight import prepare

    with ExitStack() as held:  # the run directory, until the report is written too
        with Progress(console) as progress:
            progress.stage("checking models, tasks and settings")
            prepared = prepare(config, out)
            for note in prepared.short_languages():
                progress.warned(note)
            for note in prepared.served:
                progress.noted(note)
            from launch.run.work.driver import open_run, run_sweep  # imports Ray: bad input is reported without it

            directory = held.enter_context(open_run(prepared, out, progress))
            tracking = None if tracker is None else held.enter_context(_tracking(tracker, prepared, out))
            outcome = run_sweep(prepared, directory, progress, () if tracking is None else (tracking.on,))
        from launch.commands.summary import finish

        finish(console, out, outcome)
        if tracking is not None:
            tracking.finish([*sorted((out / "tables").glob("*.csv")), out / "report" / "index.html"])
            console.print(f"sent the report to {tracking.name}")
    if outcome.failures:
        where = out / "tables" / "failures.csv"
        line = f"{summary(outcome.failures)}; see {where}; the same command repeats only these"
        errors.print(f"[red]not done:[/red] {escape(line)}", highlight=False)
        raise typer.Exit(WITH_FAILURES)


def _tracking(tracker: Tracker, prepared: Prepared, out: Path) -> Tracking:
    from launch.trackers.tracking import Tracking, flattened, tracked

    document = prepared.config.model_dump(mode="json", exclude_defaults=True)

    def warn(text: str) -> None:
        console.print(f"[yellow]warning:[/yellow] {escape(text)}", highlight=False, soft_wrap=True)

    return Tracking(tracker, out, tracked(prepared), flattened(document), warn)


def summary(failures: Sequence[Failure]) -> str:
    """The failures in one line: the first few checkpoints, each with its first reason."""
    first: dict[str, Failure] = {}
    for failure in failures:
        first.setdefault(failure.checkpoint, failure)
    named = [f"{name} ({each.stage}: {one_line(each.reason)})" for name, each in first.items()]
    count = "1 checkpoint" if len(named) == 1 else f"{len(named)} checkpoints"
    more = f", and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return f"{count}, wholly or in part: {', '.join(named[:_NAMED])}{more}"


PROBES_BY_DEFAULT = ",".join(EvalConfig.model_fields["probes"].default)


def evaluate(
    checkpoints: Annotated[list[str], typer.Argument(metavar="CHECKPOINT...", help=f"directory, hub id, {BUNDLED!r}")],
    task: Annotated[str, typer.Option(help=tasks_help())],
    out: Out,
    languages: Annotated[str | None, typer.Option(help="comma-separated, names or codes; all by default")] = None,
    items: Annotated[int, typer.Option(help="per language; 0 = all")] = 200,
    formats: Annotated[str, typer.Option(help=", ".join(FORMATS))] = "open",
    probes: Annotated[str, typer.Option(help=described(PROBES))] = PROBES_BY_DEFAULT,
    base: Annotated[str | None, typer.Option(help="the dense checkpoint that the others are compared with")] = None,
    engine: Annotated[str, typer.Option(help=engines_help())] = "vllm",
    dtype: Annotated[str, typer.Option(help=f"{', '.join(DTYPES)}; auto: float32 on a CPU, its own on a GPU")] = "auto",
    mixed_dtypes: Annotated[
        bool, typer.Option(help="permit another dtype than the base's; every table names it")
    ] = False,
    scoring: Annotated[str, typer.Option(help="forced; prompt_logprobs: vLLM's own way, slow, as a check")] = "forced",
    seed: Seed = 0,
    options: Annotated[
        str | None, typer.Option(help="how distractors are drawn: alike (default), any (the paper's way)")
    ] = None,
    chat: Annotated[bool, typer.Option(help="prompt through the tokenizer's chat template")] = False,
    prompts: Prompts = None,
    engines: Annotated[int | None, typer.Option(help="engines to run; default one per GPU")] = None,
    shard_items: Annotated[int, typer.Option(help="items per Parquet part: what a crash can lose")] = 20,
    trust_remote_code: Annotated[bool, typer.Option(help="run the checkpoint's own code; off by default")] = False,
    track: Track = None,
) -> None:
    """Evaluate checkpoints with every question and every probe. The same command resumes."""
    config = eval_sweep(
        checkpoints,
        base=base,
        task={"task": task, "languages": languages, "items": items, "formats": formats, "probes": probes,
              "seed": seed, "chat": chat, "options": options},
        engine={"kind": engine, "dtype": dtype, "mixed_dtypes": mixed_dtypes, "scoring": scoring,
                "trust_remote_code": trust_remote_code},
        resources={"engines": engines, "shard_items": shard_items},
        prompts=prompts,
    )  # fmt: skip
    run_and_report(config, out, track)


def sweep(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help=f"a YAML file, or a bundled recipe: {', '.join(bundled_recipes())}")
    ],
    out: Annotated[Path | None, typer.Option("--out", help="the run directory; not needed for a dry run")] = None,
    only: Annotated[
        str | None, typer.Option(metavar="MODEL,...", help="only these models and their compressed versions")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="estimate time and disk; start nothing")] = False,
    track: Track = None,
) -> None:
    """Prune, quantise, evaluate and report a whole grid. The same command resumes."""
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


def demo(out: Out = Path("runs/demo")) -> None:
    """Prune the bundled model in five ways, pose the bundled questions, print the headline and write the report."""
    run_and_report(load_sweep(RECIPES / "demo.yaml"), out)


def check_this_machine(config: SweepConfig) -> None:
    """Raises InputError if this machine cannot run the engines. A remote cluster needs no check here."""
    if os.environ.get("RAY_ADDRESS"):
        return
    ENGINES[config.engine.kind].check_here(config.engine)
    gpus = count_gpus()
    if gpus is not None:
        node = Node(node_id="", name=platform.node(), cpus=usable_cores(), gpus=gpus, driver=True)
        place_engines([node], config.engine.tensor_parallel, config.resources.engines, spare=1)
