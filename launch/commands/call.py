"""`resurface demo`, `sweep` and `eval`: check, run, write the report, print what
failed."""

from __future__ import annotations

import os
import platform
from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from evaluator.core.errors import InputError, ResurfaceError, counted, one_line
from evaluator.core.files import write_atomically
from evaluator.core.lease import Lease
from evaluator.core.liveness import this_process
from evaluator.engine.config import ENGINES, EngineConfig
from evaluator.engine.processor import usable_cores
from evaluator.probes.config import EvalConfig
from evaluator.store.run_json import need_run, read_run
from launch.commands.dry_run import explanation, lines_of, print_estimate
from launch.commands.options import (
    Detach,
    DryRun,
    EngineName,
    Notify,
    Out,
    Prompts,
    Strict,
    TakeOver,
    TaskName,
    Track,
    eval_sweep,
    listed,
    models,
    recipe_names,
    with_fields,
)
from launch.commands.report import finish
from launch.commands.terminal import (
    AsJson,
    closing,
    console,
    errors,
    print_json,
    print_plain,
    warn,
)
from launch.documents import Detached, Ended, line_of
from launch.process import leave, stop_in_order
from launch.provenance import count_gpus
from launch.run.decide.nodes import Node, place_engines
from launch.run.directory.event_log import EventLog, clock, read_state
from launch.run.directory.lock import STOP, hold, need_place
from launch.run.events import (
    Advanced,
    Checked,
    End,
    Event,
    GaveUp,
    Judged,
    Phase,
    Planned,
    Refused,
    Started,
    Tell,
    TookOver,
)
from launch.run.state import Bus
from launch.sweep.config import (
    RECIPES,
    Resources,
    SweepConfig,
    find_recipe,
    load_sweep,
    rechecking,
)
from launch.sweep.models import BUNDLED, is_served, local_directory, no_directory

if TYPE_CHECKING:
    from evaluator.deciding.decision import Verdict
    from evaluator.report.results import Results
    from evaluator.store.run_json import Failure
    from launch.run.state import RunState
    from launch.sweep.estimate import Left
    from launch.sweep.preflight import Prepared
    from launch.sweep.watching import Watch
    from launch.trackers.notifying import Notifying
    from launch.trackers.tracking import Tracker

WITH_FAILURES = 3  # exit code
DETACHED = Path("logs") / "detached.log"
_NAMED = 3  # checkpoints


def run_and_report(
    config: SweepConfig, output: Output, watched: Watched | None = None
) -> None:
    """Run what is missing, then report, also for each sweep that `watched` gives.
    Raises InputError, ResurfaceError if it failed, typer.Exit(3) if a part did."""
    out = output.out
    if out is None:
        raise InputError(
            "Missing option '--out': the directory where everything is written"
        )
    left = leave(out / DETACHED) if output.detach else None
    ending = Ending(out, printed=output.detach or output.as_json, left=left)
    tracker, notifying = output.told(out)
    stop_in_order()
    check_here(config, out)
    process = str(this_process())
    bus = Bus(EventLog(out).on, ending.on, clock=clock())
    # the run directory, until the report is written too
    with ExitStack() as notified, ExitStack() as held:
        try:
            lock = held.enter_context(hold(out, warn, take_over=output.take_over))
        except InputError:
            bus.state = read_state(out)
            bus.report(Refused(process))
            raise
        bus.state = read_state(out)  # of earlier calls
        if notifying is not None:
            notified.push(lambda _, error, __: notifying.end(_end_of(error)))
            bus.listeners.append(notifying.on)
        bus.report(Started(process))
        if lock.taken_from:
            bus.report(TookOver(lock.taken_from))
        held.push(lambda _, error, __: bus.report(_end_of(error)))

        call = Call(lock, bus, tracker, output)
        if watched is None:
            call.run(config)
        else:
            watched.run(call)


@dataclass(frozen=True)
class Watched:
    """A sweep that grows, and the hours without a new checkpoint that end it."""

    watch: Watch
    idle_hours: float | None

    def run(self, call: Call) -> None:
        """Run each sweep as it grows. What was given up is tried again only if its
        files change. Raises as `Call.run`, and typer.Exit(3) at the end; InputError only
        of what is there from the start: later checkpoints are left out."""
        from launch.sweep.watching import rounds

        def note(event: Event, _: object) -> None:
            if isinstance(event, GaveUp):
                call.given_up.add(event.failure.checkpoint)

        stop, bus = call.lock.directory / STOP, call.bus
        sweeps = rounds(self.watch, stop.exists, self.idle_hours)
        print_plain(f"watching for checkpoints; a file {stop} ends it")
        bus.listeners.append(note)
        failed, listeners = False, [*bus.listeners]
        for sweep in sweeps:
            try:
                call.run(sweep, self.watch.fresh)
                failed = False
            except typer.Exit:
                failed = True
            except InputError as error:
                if self.watch.at_start:
                    raise
                self.watch.refuse(str(error))
                failed = True
            bus.listeners[:] = listeners
        if failed:
            raise typer.Exit(WITH_FAILURES)


def need_reusable(runs: Sequence[Path], out: Path | None) -> None:
    """Raises InputError for what is no other run of this layout."""
    for run in runs:
        from launch.run.directory.rundir import need_version  # pandas

        need_run(run)
        need_version(run)
        if out is not None and run.resolve() == out.resolve():
            raise InputError(f"--reuse {run}: is the run itself (--out)")


def check_here(config: SweepConfig, out: Path) -> None:
    """Raises InputError for a path that cannot be a run directory, and for engines that
    this machine has no place for."""
    need_place(out)
    if os.environ.get("RAY_ADDRESS"):  # a remote cluster has other machines
        return
    ENGINES[config.engine.kind].check_here(config.engine)
    gpus = count_gpus()
    if gpus is None:
        return
    shared = config.resources.engines_per_gpu
    if not gpus and shared not in (1, "auto"):
        raise InputError(
            f"resources.engines_per_gpu: {shared}: there is no GPU to share; on a CPU"
            " --engines N (resources.engines) starts several"
        )
    node = Node(
        node_id="", name=platform.node(), cpus=usable_cores(), gpus=gpus, driver=True
    )
    wanted = config.resources.engines
    place_engines([node], config.engine.tensor_parallel, wanted)


@dataclass(frozen=True)
class Call:
    """A call of the command, which holds a run directory."""

    lock: Lease
    bus: Bus
    tracker: Tracker | None
    output: Output
    given_up: set[str] = field(default_factory=set)  # not tried again by this call

    def run(self, config: SweepConfig, fresh: Collection[str] = ()) -> None:
        """Run a sweep, then report. What is made of the `fresh` models is tried again.
        Raises InputError, ResurfaceError if it failed, typer.Exit(3) if a part did."""
        from launch.run.work.progress import Progress, Steps

        out, bus = self.lock.directory, self.bus
        with Progress(console) as progress:
            bus.listeners += [progress.on, _import_report]
            bus.report(Phase("checking models, tasks and settings"))
            with Steps(lambda text: bus.report(Checked(text))) as step:
                from launch.sweep.preflight import prepare

                strict = self.output.strict
                prepared = prepare(config, out, strict=strict, step=step)
            made = [job.name for job in prepared.jobs if job.model in fresh]
            self.given_up.difference_update(fresh, made)
            for note, doubtful in prepared.notes():
                bus.report(Checked(note, warning=doubtful))
            # imports Ray: bad input is reported without it
            from launch.run.directory.rundir import open_run
            from launch.run.work.driver import run_sweep

            directory = open_run(prepared, out, self.lock)
            reuse = self.output.reuse
            outcome = run_sweep(prepared, directory, bus, console, reuse, self.given_up)
            bus.report(Phase("writing tables and page"))
        results = finish(out, outcome)
        bus.report(Judged(results.verdicts))
        self._track(config, results)
        if outcome.failures:
            where = out / "tables" / "failures.csv"
            line = (
                f"{summary(outcome.failures)}; see {where}; the same command repeats"
                " only these"
            )
            errors.print(f"[red]not done:[/red] {escape(line)}", highlight=False)
            raise typer.Exit(WITH_FAILURES)

    def _track(self, config: SweepConfig, results: Results) -> None:
        """Send the ended run. A tracker is foreign code, and its server may be
        unreachable: a failure is a warning."""
        if self.tracker is None:
            return
        settings = config.model_dump(mode="json", exclude_defaults=True)
        try:
            self.tracker(self.lock.directory, settings, results.headline)
        except Exception as error:
            warn(f"--track: {type(error).__name__}: {one_line(error)}")


def _end_of(error: BaseException | None) -> End:
    """The end of a call by this error."""
    if error is None:
        return End("finished")
    if isinstance(error, typer.Exit):
        named = "tables/failures.csv names what is missing"
        return End("finished_with_failures", named, error.exit_code)
    if isinstance(error, KeyboardInterrupt | SystemExit):  # Ctrl-C, or SIGTERM
        code = 130 if isinstance(error, KeyboardInterrupt) else 143
        return End("interrupted", "the same command resumes", code)
    code = 2 if isinstance(error, InputError) else 1
    return End("failed", one_line(error, 500), code)


class Ending:
    """Writes RUN/end.json and RUN/metrics.prom, and the last line of stdout for
    `printed`. A refused call leaves none."""

    def __init__(self, out: Path, *, printed: bool, left: Tell | None = None) -> None:
        """`left`: takes a line once it is safe to leave this process alone."""
        self._out, self._printed, self._left = out, printed, left
        self._accepted = False
        self._verdicts: Sequence[Verdict] = ()

    def on(self, event: Event, state: RunState) -> None:
        match event:
            case Planned():
                self._accepted = True
                (self._out / "end.json").unlink(missing_ok=True)
                if self._left is not None:
                    log = str(self._out / DETACHED)
                    ready = Detached(run=str(self._out), process=os.getpid(), log=log)
                    self._left(line_of(ready))
                    self._left = None  # a watched sweep plans again
            case Judged():
                self._verdicts = event.verdicts
            case End() if self._accepted:
                self._end(event, state)

    def _end(self, event: End, state: RunState) -> None:
        from evaluator.deciding.verdict_text import in_short
        from launch.run.directory.metrics import write_metrics

        ended = Ended(
            run=str(self._out),
            state=event.state,
            why=event.text,
            exit_code=event.code,
            verdicts=[*map(in_short, self._verdicts)],
        )
        line = line_of(ended)
        if self._printed:
            closing.append(line)
        with suppress(OSError, ResurfaceError):  # a full disk, or another's run by now
            write_atomically(self._out / "end.json", line.encode())
            write_metrics(self._out, state)


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
        f"{name} ({each.stage}: {one_line(each.reason, 500)})"
        for name, each in first.items()
    ]
    count = counted(len(named), "checkpoint")
    more = f", and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return f"{count}, wholly or in part: {', '.join(named[:_NAMED])}{more}"


@with_fields(
    *("The questions", EvalConfig, "languages", "items", "formats", "probes"),
    *("options", "grading", "grader", "seed", "seeds", "max_new_tokens"),
    *("prompt_tokens", "context_tokens", "few_shot", "chat", "system", "thinking"),
    *("date", "suite", "recheck_cut"),
)
@with_fields("The models", SweepConfig, "kv_cache", "controls")
@with_fields("The models", EngineConfig, "dtype", "mixed_dtypes", "trust_remote_code")
@with_fields(
    *("How it runs", Resources, "engines", "engines_per_gpu", "shard_items"),
    "keep_references",
)
@with_fields("How it runs", EngineConfig, "scoring")
def evaluate(
    checkpoints: Annotated[
        list[str],
        typer.Argument(
            metavar="CHECKPOINT...", help=f"directory, hub id, GGUF file, {BUNDLED!r}"
        ),
    ],
    task: TaskName = "",
    prompts: Prompts = None,
    base: Annotated[
        str | None, models(help="the dense one to compare others with")
    ] = None,
    endpoint: Annotated[
        list[str] | None,
        models(metavar="URL#MODEL", help="a served model, as another checkpoint"),
    ] = None,
    key_env: Annotated[
        str | None,
        models(metavar="VARIABLE", help="the environment variable with its key"),
    ] = None,
    engine: EngineName = "vllm",
    out: Out = None,
    dry_run: DryRun = False,
    strict: Strict = False,
    take_over: TakeOver = False,
    track: Track = None,
    notify: Notify = None,
    detach: Detach = False,
    as_json: AsJson = False,
    **typed: Any,
) -> None:
    """Pose questions to checkpoints, compare them with their base, and write tables
    and page.

    The same command resumes."""
    typed |= {"task": task or None, "prompts": prompts, "base": base, "out": out}
    typed |= {"endpoint": endpoint, "key_env": key_env, "engine": engine}
    config = eval_sweep(checkpoints, typed)
    for value in config.models.values():
        directory = None if is_served(value) else local_directory(str(value))
        if directory is not None and not directory.exists():  # mistyped
            raise no_directory(str(value))
    output = Output(
        out,
        track,
        notify,
        strict=strict,
        take_over=take_over,
        detach=detach,
        as_json=as_json,
    )
    start(config, output, dry_run=dry_run)


@with_fields("Options", EvalConfig, "recheck_cut")
def sweep(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            autocompletion=recipe_names,
            help=(
                "YAML file or bundled recipe: demo, main, ...; small/main: small models"
            ),
        ),
    ],
    out: Out = None,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL,...",
            help="evaluate only these models and their compressed versions",
        ),
    ] = None,
    *,
    dry_run: DryRun = False,
    strict: Strict = False,
    take_over: TakeOver = False,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="print what a bundled recipe is for; start nothing"
        ),
    ] = False,
    show: Annotated[
        bool, typer.Option("--show", help="print the file; start nothing")
    ] = False,
    track: Track = None,
    notify: Notify = None,
    reuse: Annotated[
        str | None,
        typer.Option(
            metavar="RUN,...",
            help="take records of equal weights, task and settings from these runs",
        ),
    ] = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="evaluate checkpoints as they appear under a pattern"
        ),
    ] = False,
    newest_first: Annotated[
        bool, typer.Option("--newest-first", help="with --watch: one at a time")
    ] = False,
    idle_hours: Annotated[
        float | None,
        typer.Option(
            min=0.0, metavar="N", help="with --watch: end after N hours without one"
        ),
    ] = None,
    detach: Detach = False,
    as_json: AsJson = False,
    **typed: Any,
) -> None:
    """Prune, quantise, evaluate and report a whole grid. The same command resumes,
    and evaluates what a larger file adds.

    --watch ends with Ctrl-C, or at a file RUN/STOP."""
    file = find_recipe(recipe)
    config = load_sweep(file)
    if show:
        print_plain(f"# {file}\n{file.read_text(encoding='utf-8')}")
        return
    if explain:
        about = explanation(file, config)
        for line in lines_of(about):
            print_plain(line)
        if as_json:
            print_json(about)
        return
    if "recheck_cut" in typed:
        config = rechecking(config)
    if only is not None:
        config = config.model_copy(update={"only": tuple(listed("only", only))})
    runs = [] if reuse is None else [Path(each) for each in listed("reuse", reuse)]
    need_reusable(runs, out)
    output = Output(
        out,
        track,
        notify,
        runs,
        strict=strict,
        take_over=take_over,
        detach=detach,
        as_json=as_json,
    )
    if not watch and (newest_first or idle_hours is not None):
        raise InputError("--newest-first, --idle-hours: they go with --watch")
    from launch.sweep.watching import Watch, patterns_of

    if not watch:
        for name, pattern in patterns_of(config).items():
            raise InputError(f"models: {name}: {pattern!r} is a pattern: use --watch")
        start(config, output, dry_run=dry_run)
        return
    if dry_run:
        raise InputError("--dry-run: it goes without --watch")
    watching = Watch(config, file.parent, warn, newest_first=newest_first)
    watched = Watched(watching, idle_hours)
    run_and_report(config, output, watched=watched)


@dataclass(frozen=True)
class Output:
    """The options of a run's output."""

    out: Path | None
    track: str | None = None
    notify: str | None = None
    reuse: Sequence[Path] = ()
    strict: bool = False
    take_over: bool = False
    detach: bool = False
    as_json: bool = False

    def told(self, out: Path) -> tuple[Tracker | None, Notifying | None]:
        """Who is told of a run in `out`. Raises InputError for what cannot be."""
        tracker = notifying = None
        if self.notify is not None:
            from launch.trackers.notifying import Notifying, command_of

            notifying = Notifying(command_of(self.notify), out, warn)
        if self.track is not None:
            from launch.trackers.tracking import tracker_of

            tracker = tracker_of(self.track)
        return tracker, notifying


def start(config: SweepConfig, output: Output, *, dry_run: bool) -> None:
    """Run and report, or check what a start would check, as far as it is here, and
    estimate. Raises as `run_and_report` does."""
    if not dry_run:
        run_and_report(config, output)
        return
    if output.detach:
        raise InputError("--detach: with --dry-run, nothing is started")
    from launch.run.work.progress import Steps

    place = output.out
    out = place or Path("RUN")
    output.told(out)
    check_here(config, out)
    notes, refused = list[str](), dict[str, str]()
    left: Left = {}
    with Steps(print_plain) as step:
        from launch.sweep.preflight import jobs_here, prepare

        jobs, absent = jobs_here(config, out, refused)
        if jobs:  # imports pandas and torch
            prepared = prepare(config, out, jobs, strict=output.strict, step=step)
            refused |= {each.checkpoint: each.reason for each in prepared.unusable}
    for name, reason in refused.items():
        if output.strict:
            raise InputError(f"{name}: {reason}")
        notes.append(f"would be set aside: {name}: {reason}")
    if jobs:
        if (place or output.reuse) and not absent:
            left, told = _left(prepared, out, output.reuse)
            notes += told
        notes += [note for note, _ in prepared.notes()]
    if absent:
        notes.append(
            f"not checked, as a start fetches or serves it: {', '.join(absent)}"
        )
    run = read_run(out)
    if left:
        runs = ", ".join(map(str, (out, *output.reuse)))
        notes.append(f"counted: what {runs} lack")
    elif run:
        notes.append(f"what {out} has already is counted too")
    print_estimate(config, run, notes, left, as_json=output.as_json)
    if refused:  # as the run would end
        raise typer.Exit(WITH_FAILURES)


def _left(
    prepared: Prepared, out: Path, reuse: Sequence[Path]
) -> tuple[Left, list[str]]:
    """What the cells of a run lack, and notes about them."""
    from evaluator.store.records import RecordStore
    from launch.run.directory.keys import Keys
    from launch.run.directory.rundir import open_run

    cells, keys = open_run(prepared, out).cells, Keys(prepared)
    notes = [*keys.changes(prepared.jobs, cells)]
    jobs = [job for job in prepared.jobs if job.name not in keys.infos]
    if later := ", ".join(job.name for job in jobs if not job.change and reuse):
        what = "counted whole, as only a start finds what --reuse has of them"
        notes.append(f"{what}: {later}")
    return keys.left(cells, [*map(RecordStore, reuse)]), notes


def demo(out: Out = Path("runs/demo"), as_json: AsJson = False) -> None:
    """Prune the bundled model in five ways, pose the bundled questions, print the
    headline and write the report."""
    output = Output(out, as_json=as_json)
    run_and_report(load_sweep(RECIPES / "demo.yaml"), output)
