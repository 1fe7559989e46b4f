"""`resurface match`: matcher models judge a run's responses; then it rebuilds the
report."""

from typing import Annotated, Any

import typer
from rich.markup import escape

from evaluator.core.config import validated
from evaluator.engine.config import EngineConfig
from evaluator.probes import answering_probes
from evaluator.store.run_json import need_run
from launch.commands.options import (
    EngineName,
    RunDirectory,
    TakeOver,
    as_option,
    completing,
    each_known,
    listed,
    with_fields,
)
from launch.commands.report import finish
from launch.commands.terminal import AsJson, console, print_json, print_plain, warn


@with_fields("The models", EngineConfig, "dtype", "trust_remote_code")
def match(
    run: RunDirectory,
    matcher: Annotated[
        list[str], typer.Option(help="a judge; of several, the majority decides")
    ],
    everything: Annotated[
        bool,
        typer.Option("--all", help="judge right responses too: how far graders agree"),
    ] = False,
    probes: Annotated[
        str,
        typer.Option(
            help=f"responses of {', '.join(answering_probes())}",
            autocompletion=completing(answering_probes()),
        ),
    ] = "greedy",
    engine: EngineName = "vllm",
    take_over: TakeOver = False,
    as_json: AsJson = False,
    **typed: Any,
) -> None:
    """Let other models judge whether a response means the same as the gold answer.
    The same command resumes.

    Runs one engine at a time: each matcher judges the whole run, and claims whose
    verdict is known."""
    need_run(run)
    answering = answering_probes()
    chosen = each_known("probe with responses", listed("probes", probes), answering)
    typed["kind"] = engine
    config = validated(EngineConfig, typed, "resurface match", as_option)
    from launch.process import captured
    from launch.run.directory.lock import hold
    from launch.run.work.judging import judge_run

    with (
        hold(run, warn, take_over=take_over),
        captured(console, run / "logs" / "match.log"),
        console.status("matching") as status,
    ):
        judged = judge_run(
            run,
            matcher,
            chosen,
            everything=everything,
            engine=config,
            tell=lambda now: status.update(escape(now)),
            warn=warn,
        )
    from evaluator.judging.controls import told
    from evaluator.store.reading import read_controls

    verdicts = read_controls(run)
    controls = {}
    for name, judge in judged.items():
        print_plain(f"{name}: {judge.summary}")
        if verdicts is not None:
            controls[name] = told(verdicts[verdicts["matcher"] == name])
            print_plain(f"{name}: control pairs: {controls[name]}")
    finish(run, headline=False)
    if as_json:
        from launch.documents import Matched

        judges = {name: judge.summary for name, judge in judged.items()}
        print_json(Matched(run=str(run), judges=judges, controls=controls))
