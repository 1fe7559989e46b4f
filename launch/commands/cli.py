"""The command line: assembles the commands of this folder, and turns errors into exit
codes.

Modules of this folder import nothing heavy, so that a typing mistake is reported at
once. Functions import torch, Ray and pandas. The program loads plugins before it
evaluates help texts with registered names.
"""

import sys
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Annotated

import typer
from pydantic import ValidationError
from typer.exceptions import TyperException

from evaluator.core.errors import InputError, ResurfaceError, one_line, unknown
from evaluator.core.memory import collect_rarely
from launch.commands.bench import bench
from launch.commands.call import demo, evaluate, sweep
from launch.commands.compare import compare
from launch.commands.compress import compress
from launch.commands.doctor import doctor
from launch.commands.gate import gate
from launch.commands.match import match
from launch.commands.options import Command, explained
from launch.commands.prune import prune
from launch.commands.render import render_files
from launch.commands.report import export, report
from launch.commands.status import clean, status, stop
from launch.commands.tasks import list_names, show_prompt, tasks
from launch.commands.terminal import closing, errors, only_json, print_error
from launch.process import (
    any_output,
    end,
    end_by_sigterm,
    is_stop,
    output_failed,
    use_utf8,
)
from launch.sweep.models import BUNDLED, BUNDLED_MODEL
from launch.sweep.plugins import load_plugins

app = typer.Typer(
    name="resurface",
    help=(
        "Shows whether a compressed language model has lost an answer, or only stopped"
        " saying it."
    ),
    epilog=(
        "With any command, --debug shows the traceback of an error. Exit codes: 0 done;"
        " 1 failed; 2 bad input; 3 finished without some checkpoints"
        " (RUN/tables/failures.csv names them); 4 the gate blocks; 130 interrupted; 143"
        " SIGTERM."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from launch.provenance import version_line

        print(version_line())
        raise typer.Exit


@app.callback(help=app.info.help)
def _begin(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="print the version and exit",
        ),
    ] = False,
) -> None:
    """Options without a command."""
    only_json(False)


# Each command with the options of its example.
COMMANDS: Mapping[str, tuple[Callable[..., None], str]] = {
    "demo": (demo, "--out runs/demo"),
    "sweep": (sweep, "main --dry-run"),
    "eval": (
        evaluate,
        "dense/ sparse/ --base dense/ --task xquad:data/xquad --out runs/x",
    ),
    "prune": (
        prune,
        "models/qwen3-0.6b --method wanda --sparsity 0.5 --out pruned/wanda-0.5",
    ),
    "compress": (
        compress,
        "models/qwen3-0.6b --method gptq --scheme W4A16 --out compressed/w4a16",
    ),
    "report": (report, "runs/demo"),
    "status": (status, "runs/demo --watch"),
    "stop": (stop, "runs/demo"),
    "clean": (clean, "runs/demo"),
    "render": (
        render_files,
        "slurm sweep.yaml --out /shared/runs/grid --nodes 2 --gpus 8",
    ),
    "bench": (bench, "score --model bundled --rounds 5"),
    "doctor": (doctor, "--out card.md"),
    "gate": (gate, "runs/int4 --max-drop 1 --min-recovery 99"),
    "compare": (compare, "runs/vllm-0.31 runs/vllm-0.32 --csv moved.csv"),
    "export": (export, "runs/int4 --to card --out card.md"),
    "list": (list_names, "probes"),
    "tasks": (tasks, "arc_challenge"),
    "show-prompt": (
        show_prompt,
        "--task gazetteer --model bundled --item swahili-0017",
    ),
    "match": (match, "runs/demo --matcher qwen3-4b --matcher llama-3.1-8b"),
}
for name, (command, example) in COMMANDS.items():
    others = (
        {"allow_extra_args": True, "ignore_unknown_options": True}
        if command is bench
        else {}
    )
    # typer keeps the line breaks of all paragraphs but the first.
    paragraphs = [
        " ".join(each.split()) for each in (command.__doc__ or "").split("\n\n")
    ]
    epilog = f"Example: resurface {name} {example}".rstrip()
    app.command(
        name,
        cls=Command,
        help="\n\n".join(paragraphs),
        epilog=epilog,
        context_settings=others,
    )(command)


_QUANTISE = "compress MODEL --method gptq --scheme W4A16 --out DIR"
# what others may call a command
_OTHERS = {
    "diff": "compare",
    "help": "--help",
    "judge": "match",
    "quantise": _QUANTISE,
    "quantize": _QUANTISE,
    "run": "eval",
    "version": "--version",
}


_SIGTERM = 143


def main() -> None:
    """The console command. Exit codes: 2 for bad input, with one line; 1 for a failed
    run; 3 if a part failed.

    Output that cannot be written turns 0 into 1, and changes no other code. A pipe that
    closed early changes none.
    """
    use_utf8()
    with any_output():
        code = _run()
        if code == 130:
            errors.print("interrupted; the same command resumes")
        while closing:
            print(closing.pop(0))
        sys.stdout.flush()
        if failed := output_failed():
            print_error(f"the output is incomplete: {one_line(failed)}")
            code = code or 1
    if code == _SIGTERM:
        end_by_sigterm()
    end(code)


def _run() -> int:
    """Run the command that was typed. Returns the exit code."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    collect_rarely()
    try:
        for name, value in pairwise(["an argument", *arguments]):
            if not value:  # an unset variable of a shell; as a path, this directory
                raise InputError(f"{name}: the value is empty")
        load_plugins()
        if (
            arguments
            and not arguments[0].startswith("-")
            and arguments[0] not in COMMANDS
        ):
            if arguments[0] in _OTHERS:
                raise InputError(
                    f"unknown command {arguments[0]!r}; did you mean `resurface"
                    f" {_OTHERS[arguments[0]]}`?"
                )
            raise unknown("command", arguments[0], COMMANDS)
        # 130: typer has seen Ctrl-C
        return app(args=arguments, standalone_mode=False) or 0
    except KeyboardInterrupt:
        return 130
    except BaseException as error:
        if is_stop(error):
            errors.print("stopped; the same command resumes")
            return _SIGTERM
        if debug or isinstance(error, SystemExit):  # the end of a shell's completion
            raise
        return _explain(error)


def _explain(error: BaseException) -> int:
    """Print an error as one line. Returns the exit code."""
    expected = isinstance(error, ResurfaceError | TyperException)
    message = explained(error) if isinstance(error, TyperException) else str(error)
    cause = error.__cause__
    # typer names the option, and not what was typed
    if isinstance(error, TyperException) and isinstance(cause, ValidationError):
        message += f": {cause.errors()[0]['input']!r}"
    # without arguments, typer has printed the help
    if message or not isinstance(error, TyperException):
        name = "" if expected else f"{type(error).__name__}: "
        hint = "" if expected else " (run again with --debug for the traceback)"
        message = message.replace(str(BUNDLED_MODEL), BUNDLED)  # as the user typed it
        print_error(f"{name}{one_line(message, len(message))}{hint}")
    return 2 if isinstance(error, InputError | TyperException) else 1


if __name__ == "__main__":
    main()
