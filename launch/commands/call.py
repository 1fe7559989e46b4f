"""`resurface demo`, `sweep` and `eval`: check, run, write the report, print what
failed."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from evaluator.core.errors import InputError, one_line
from evaluator.core.lease import Lease
from evaluator.core.liveness import this_process
from evaluator.engine.config import AUTO_CACHE, ENGINES, engines_help
from evaluator.engine.processor import usable_cores
from evaluator.probes.config import EvalConfig
from evaluator.tasks import TASKS
from launch.commands.dry_run import print_estimate
from launch.commands.options import (
    DTYPES,
    Date,
    Notify,
    Out,
    Prompts,
    Track,
    eval_sweep,
    listed,
    models,
    question,
    running,
)
from launch.commands.report import finish
from launch.commands.terminal import console, errors, print_plain, warn
from launch.process import stop_in_order
from launch.provenance import count_gpus
from launch.run.decide.nodes import Node, place_engines
from launch.run.directory.event_log import EventLog
from launch.run.directory.lock import hold, need_place
from launch.run.events import (
    Advanced,
    Checked,
    End,
    Event,
    Phase,
    Refused,
    Started,
    TookOver,
)
from launch.run.state import Bus
from launch.sweep.config import RECIPES, SweepConfig, find_recipe, load_sweep
from launch.sweep.models import BUNDLED

if TYPE_CHECKING:
    from evaluator.store.run_json import Failure
    from launch.run.state import Listener, RunState
    from launch.trackers.tracking import Tracker

WITH_FAILURES = 3  # exit code
_NAMED = 3  # checkpoints


def run_and_report(
    config: SweepConfig,
    out: Path,
    track: str | None = None,
    listeners: Sequence[Listener] = (),
    notify: str | None = None,
) -> None:
    """Run what is missing, then report. Raises InputError, ResurfaceError if it
    failed, typer.Exit(3) if a part did."""
    tracker = notifying = None
    if notify is not None:
        from launch.trackers.notifying import Notifying, command_of

        notifying = Notifying(command_of(notify), out, warn)
    if track is not None:
        from launch.trackers.tracking import tracker_of

        tracker = tracker_of(track)
    stop_in_order()
    need_place(out)
    if not os.environ.get("RAY_ADDRESS"):  # a remote cluster has other machines
        ENGINES[config.engine.kind].check_here(config.engine)
        gpus = count_gpus()
        if gpus is not None:
            # the sizes of models and GPUs are not known yet
            sharing = config.sharing(weights=0, memory=1, gpus=gpus)
            node = Node(
                node_id="",
                name=platform.node(),
                cpus=usable_cores(),
                gpus=gpus,
                driver=True,
                sharing=sharing,
            )
            place_engines(
                [node], config.engine.tensor_parallel, config.resources.engines, spare=1
            )
    log, process = EventLog(out), str(this_process())
    bus = Bus(log.on, *listeners)
    # the run directory, until the report is written too
    with ExitStack() as notified, ExitStack() as held:
        try:
            lock = held.enter_context(hold(out, warn))
        except InputError:
            bus.report(Refused(process))
            raise
        if notifying is not None:
            notified.push(lambda _, error, __: notifying.end(_end_of(error)))
            bus.listeners.append(notifying.on)
        bus.report(Started(process))
        if lock.taken_from:
            bus.report(TookOver(lock.taken_from))
        held.push(lambda _, error, __: bus.report(_end_of(error)))
        _run(config, lock, log, bus, tracker)


def _run(
    config: SweepConfig, lock: Lease, log: EventLog, bus: Bus, tracker: Tracker | None
) -> None:
    from launch.run.work.progress import Progress

    out = lock.directory
    with ExitStack() as held:
        with Progress(console) as progress:
            bus.listeners += [progress.on, _import_report]
            bus.report(Phase("checking models, tasks and settings"))
            from launch.sweep.preflight import prepare

            prepared = prepare(config, out)
            for note in prepared.notes():
                bus.report(Checked(note, warning=True))
            for note in prepared.served:
                bus.report(Checked(note))
            # imports Ray: bad input is reported without it
            from launch.run.work.driver import open_run, run_sweep

            directory = open_run(prepared, out, lock)
            log.accepted = True
            tracking = None
            if tracker is not None:
                from launch.trackers.tracking import Tracking, flattened, tracked

                document = flattened(
                    config.model_dump(mode="json", exclude_defaults=True)
                )
                tracking = held.enter_context(
                    Tracking(tracker, out, tracked(prepared), document, warn)
                )
                bus.listeners.append(tracking.on)
            outcome = run_sweep(prepared, directory, bus, console)
            bus.report(Phase("writing tables and page"))
        finish(console, out, outcome)
        if tracking is not None and tracking.works:
            tracking.results = [
                *sorted((out / "tables").glob("*.csv")),
                out / "report" / "index.html",
            ]
            console.print(f"sending the report to {tracking.name}")
    if outcome.failures:
        where = out / "tables" / "failures.csv"
        line = (
            f"{summary(outcome.failures)}; see {where}; the same command repeats only"
            " these"
        )
        errors.print(f"[red]not done:[/red] {escape(line)}", highlight=False)
        raise typer.Exit(WITH_FAILURES)


def _end_of(error: BaseException | None) -> End:
    """The end of a call by this error."""
    if error is None:
        return End("finished")
    if isinstance(error, typer.Exit):
        named = "tables/failures.csv names what is missing"
        return End("finished_with_failures", named)
    if isinstance(error, KeyboardInterrupt | SystemExit):  # Ctrl-C, or SIGTERM
        return End("interrupted", "the same command resumes")
    return End("failed", one_line(error))


def _import_report(event: Event, _: RunState) -> None:
    """Once a shard is stored: the imports take seconds, in which the engines work
    on."""
    if isinstance(event, Advanced):
        with suppress(Exception):  # the report raises it again
            import evaluator.report  # noqa: F401


def summary(failures: Sequence[Failure]) -> str:
    """The failures in one line: the first few checkpoints, each with its first
    reason."""
    first: dict[str, Failure] = {}
    for failure in failures:
        first.setdefault(failure.checkpoint, failure)
    named = [
        f"{name} ({each.stage}: {one_line(each.reason)})"
        for name, each in first.items()
    ]
    count = "1 checkpoint" if len(named) == 1 else f"{len(named)} checkpoints"
    more = f", and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return f"{count}, wholly or in part: {', '.join(named[:_NAMED])}{more}"


PROBES_BY_DEFAULT = ",".join(EvalConfig.model_fields["probes"].default)


def evaluate(
    checkpoints: Annotated[
        list[str],
        typer.Argument(metavar="CHECKPOINT...", help=f"directory, hub id, {BUNDLED!r}"),
    ],
    *,
    task: Annotated[
        str,
        question(help="one of `resurface tasks`", autocompletion=lambda: TASKS.names),
    ],
    languages: Annotated[
        str | None, question(help="names or codes; all by default")
    ] = None,
    items: Annotated[int, question(help="per language; 0 = all")] = 200,
    formats: Annotated[str, question(help="see `resurface probes`")] = "open",
    probes: Annotated[
        str | None,
        question(help=f"see `resurface probes`; default: {PROBES_BY_DEFAULT}"),
    ] = None,
    options: Annotated[
        str | None, question(help="drawn distractors: alike (default) or any")
    ] = None,
    grading: Annotated[
        str, question(show_default=False, help="strict (default) or paper")
    ] = "strict",
    seed: Annotated[int, question(help="of distractors and samples")] = 0,
    max_new_tokens: Annotated[int, question(help="tokens of an answer")] = 32,
    context_tokens: Annotated[
        str, question(metavar="N,...", help="longer contexts")
    ] = "0",
    chat: Annotated[
        bool, question("--chat", help="prompt through the tokenizer's chat template")
    ] = False,
    thinking: Annotated[
        str,
        question(
            show_default=False,
            metavar="off|on|N",
            help="think before answers; default off",
        ),
    ] = "off",
    date: Date = None,
    prompts: Prompts = None,
    base: Annotated[
        str | None,
        models(help="the dense checkpoint that the others are compared with"),
    ] = None,
    dtype: Annotated[
        str,
        models(
            show_default=False,
            help=(
                f"{', '.join(DTYPES)}; default auto: float32 on a CPU, its own on a GPU"
            ),
        ),
    ] = "auto",
    kv_cache_dtype: Annotated[
        str,
        models(
            metavar="D[,D]",
            help="of cached keys and values: auto, fp8, fp8_e5m2, ...; a variant each",
        ),
    ] = AUTO_CACHE,
    mixed_dtypes: Annotated[
        bool,
        models(
            "--mixed-dtypes",
            help="permit another dtype than the base's; every table names it",
        ),
    ] = False,
    trust_remote_code: Annotated[
        bool, models("--trust-remote-code", help="run the checkpoint's own code")
    ] = False,
    engine: Annotated[str, running(help=engines_help())] = "vllm",
    scoring: Annotated[
        str, running(help="forced, or vLLM's slow prompt_logprobs")
    ] = "forced",
    engines: Annotated[
        int | None, running(help="engines to run; default one per GPU")
    ] = None,
    engines_per_gpu: Annotated[
        str, running(metavar="N", help="engines on one GPU; auto: 2 of small models")
    ] = "1",
    shard_items: Annotated[
        int, running(help="items per file, which a crash can lose")
    ] = 20,
    keep_references: Annotated[
        bool,
        running(
            "--keep-references",
            help="keep the distributions of probe fidelity after the run",
        ),
    ] = False,
    out: Out,
    track: Track = None,
    notify: Notify = None,
) -> None:
    """Pose questions to checkpoints, compare them with their base, and write tables
    and page.

    The same command resumes."""
    run_and_report(eval_sweep(checkpoints, locals()), out, track, notify=notify)


def sweep(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help=(
                "YAML file or bundled recipe: demo, main, ...; small/main: small models"
            ),
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="the run directory; required to start it"),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL,...",
            help="evaluate only these models and their compressed versions",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="estimate time and disk; start nothing")
    ] = False,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="print what a bundled recipe is for; start nothing"
        ),
    ] = False,
    track: Track = None,
    notify: Notify = None,
) -> None:
    """Prune, quantise, evaluate and report a whole grid. The same command resumes."""
    file = find_recipe(recipe)
    config = load_sweep(file)
    if explain:
        from launch.commands.explain import explanation

        for line in explanation(file, config):
            print_plain(line)
        return
    if only is not None:
        config = config.model_copy(update={"only": tuple(listed("only", only))})
    if dry_run:
        print_estimate(console, config)
    elif out is None:
        raise InputError(
            "Missing option '--out': the directory where everything is written"
        )
    else:
        run_and_report(config, out, track, notify=notify)


def demo(out: Out = Path("runs/demo")) -> None:
    """Prune the bundled model in five ways, pose the bundled questions, print the
    headline and write the report."""
    run_and_report(load_sweep(RECIPES / "demo.yaml"), out)
