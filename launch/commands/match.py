"""`resurface match`: matcher models judge a run's responses; then it rebuilds the
report."""

from typing import Annotated

import typer
from rich.markup import escape

from evaluator.probes import answering_probes
from evaluator.store.run_json import need_run
from launch.commands.options import (
    DTYPES,
    EngineName,
    RunDirectory,
    completing,
    dtype_names,
    match_request,
    models,
)
from launch.commands.report import finish
from launch.commands.terminal import AsJson, console, print_json, print_plain, warn

CONTROLS = 30


def match(
    run: RunDirectory,
    matcher: Annotated[list[str], typer.Option(help="a judge; several make a panel")],
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
    controls: Annotated[
        int, typer.Option(min=0, help="control pairs per language")
    ] = CONTROLS,
    fit_only: Annotated[
        bool, typer.Option("--fit-only", help="an unfit judge has no vote in the panel")
    ] = False,
    engine: EngineName = "vllm",
    dtype: Annotated[
        str, models(help=f"{', '.join(DTYPES)}; as in eval", autocompletion=dtype_names)
    ] = "auto",
    trust_remote_code: Annotated[
        bool, models("--trust-remote-code", help="run the matcher's own code")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Let other models judge whether a response means the same as the gold answer.
    The same command resumes.

    Runs one engine at a time: each matcher judges the whole run. Each first judges
    control pairs with a known result; a judge that fails them is named as unfit."""
    need_run(run)
    chosen, config = match_request(
        probes, {"kind": engine, "dtype": dtype, "trust_remote_code": trust_remote_code}
    )
    from launch.process import captured
    from launch.run.work.judging import MatchRequest, judge_run

    request = MatchRequest(
        probes=chosen, everything=everything, controls=controls, fit_only=fit_only
    )
    with (
        captured(console, run / "logs" / "match.log"),
        console.status("matching") as status,
    ):
        judged = judge_run(
            run,
            matcher,
            request,
            engine=config,
            tell=lambda now: status.update(escape(now)),
            warn=warn,
        )
    for name, verdicts in judged.items():
        print_plain(f"{name}: {verdicts.summary}")
    from evaluator.metrics.tables.judges import words
    from evaluator.store.verdicts import read_controls

    fitness = [*words(read_controls(run), list(judged), fit_only=fit_only)]
    for line in fitness:
        print_plain(line)
    finish(run, headline=False)
    if as_json:
        from launch.documents import Matched

        judges = {name: verdicts.summary for name, verdicts in judged.items()}
        print_json(Matched(run=str(run), judges=judges, fitness=fitness))
