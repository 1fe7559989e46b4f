"""The command line. Reads arguments, calls one function, prints one table; every rule lives elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from typer.exceptions import TyperException

from evaluator.errors import InputError, ResurfaceError
from evaluator.records import FORMATS, PROBES
from launch.commands.bench import bench
from launch.commands.match import match
from launch.commands.options import PruneOptions, eval_sweep
from launch.sweep.config import RECIPES, SweepConfig, find_recipe, load_sweep
from launch.sweep.models import BUNDLED

app = typer.Typer(
    name="resurface",
    help="What can a compressed language model still say, and not only recognise?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
console = Console()
errors = Console(stderr=True, soft_wrap=True)

Out = Annotated[Path, typer.Option("--out", help="Where everything is written; the same command resumes there.")]
Seed = Annotated[int, typer.Option(help="Run seed of distractors, samples and pruning.")]


@app.command(epilog="Example: resurface demo --out runs/demo")
def demo(out: Out = Path("runs/demo")) -> None:
    """Prune the bundled model five ways, ask the bundled questions, print the headline, write the report."""
    _run(load_sweep(RECIPES / "demo.yaml"), out)


@app.command(epilog="Example: resurface sweep main --dry-run")
def sweep(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="a YAML file, or a bundled recipe: main ... paper")],
    out: Annotated[Path | None, typer.Option("--out", help="as everywhere; not needed for a dry run")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what it would cost; start nothing")] = False,
) -> None:
    """Prune, evaluate and report a whole grid; the same command resumes."""
    config = load_sweep(find_recipe(recipe))
    if dry_run:
        from launch.sweep.estimate import print_estimate

        print_estimate(console, config)
    elif out is None:
        raise InputError("Missing option '--out': the directory where everything is written")
    else:
        _run(config, out)


@app.command(
    "eval",
    epilog="Example: resurface eval dense/ sparse/ --base dense/ --task xquad:data/xquad --out runs/x",
)
def evaluate(
    checkpoints: Annotated[list[str], typer.Argument(metavar="CHECKPOINT...", help=f"directory, hub id, {BUNDLED!r}")],
    task: Annotated[str, typer.Option(help="tydiqa, xquad, gazetteer, jsonl:FILE, text:FILE, tydiqa:DIR, xquad:DIR")],
    out: Out,
    languages: Annotated[str | None, typer.Option(help="comma-separated; all by default")] = None,
    items: Annotated[int, typer.Option(help="per language; 0 = all")] = 200,
    formats: Annotated[str, typer.Option(help=",".join(FORMATS))] = "open",
    probes: Annotated[str, typer.Option(help=",".join(PROBES))] = "greedy,beam,sample,choice,rank",
    base: Annotated[str | None, typer.Option(help="the dense checkpoint that the others are compared with")] = None,
    engine: Annotated[str, typer.Option(help="vllm, torch")] = "vllm",
    dtype: Annotated[str, typer.Option(help="auto (float32 on a CPU, its own on a GPU), float32, bfloat16")] = "auto",
    scoring: Annotated[str, typer.Option(help="forced; prompt_logprobs: vllm's own way, slow, to check")] = "forced",
    seed: Seed = 0,
    chat: Annotated[bool, typer.Option(help="prompt through the tokenizer's chat template")] = False,
    engines: Annotated[int | None, typer.Option(help="engines to run; default one per GPU")] = None,
    shard_items: Annotated[int, typer.Option(help="items per Parquet part: what a crash can lose")] = 20,
    trust_remote_code: Annotated[bool, typer.Option(help="run the checkpoint's own code; off by default")] = False,
) -> None:
    """Evaluate checkpoints: every question, every probe, one engine."""
    _run(
        eval_sweep(
            checkpoints,
            base=base,
            task={"task": task, "languages": languages, "items": items, "formats": formats, "probes": probes,
                  "seed": seed, "chat": chat},
            engine={"kind": engine, "dtype": dtype, "scoring": scoring, "trust_remote_code": trust_remote_code},
            resources={"engines": engines, "shard_items": shard_items},
        ),
        out,
    )  # fmt: skip


@app.command(epilog="Example: resurface prune models/qwen3-0.6b --method wanda --sparsity 0.5 --out pruned/wanda-0.5")
def prune(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help=f"dense: a directory, a hub id, or '{BUNDLED}'")
    ] = None,
    method: Annotated[str | None, typer.Option(help="magnitude, wanda, sparsegpt, ria")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="the sparse checkpoint's directory")] = None,
    sparsity: Annotated[float | None, typer.Option(help="share of zeros, e.g. 0.5")] = None,
    pattern: Annotated[str | None, typer.Option(help="N:M, e.g. 2:4 zeroes 2 of every 4")] = None,
    allocation: Annotated[str, typer.Option(help="of the ratio over layers: uniform, owl")] = "uniform",
    group: Annotated[str | None, typer.Option(help="scores compared within: row, matrix; default the method's")] = None,
    calibration: Annotated[
        str | None, typer.Option(help="c4, wikipedia:LANG, balanced:LANG,..., text:FILE, jsonl:FILE, gazetteer")
    ] = None,
    samples: Annotated[int, typer.Option(help="calibration passages")] = 128,
    sequence_length: Annotated[int, typer.Option(help="tokens per passage at most")] = 2048,
    seed: Seed = 0,
    verify: Annotated[Path | None, typer.Option(help="a pruned checkpoint to check against its manifest")] = None,
) -> None:
    """Prune a dense checkpoint into a sparse one that any server of safetensors loads; or --verify one."""
    from launch.commands.prune import run_prune, run_verify

    if verify is None:
        options = PruneOptions(
            method, sparsity, pattern, allocation, group, calibration, samples, sequence_length, seed
        )
        run_prune(console, model, out, options)
    elif model or method or out:
        raise InputError(f"--verify: {str(verify)!r} is all that it takes: no MODEL, --method or --out")
    else:
        raise typer.Exit(run_verify(console, errors, verify))


@app.command(epilog="Example: resurface report runs/demo")
def report(run: Annotated[Path, typer.Argument(metavar="RUN", help="a run directory")]) -> None:
    """Rebuild tables/ and report/ from the records alone."""
    from launch.commands.summary import finish

    if not (run / "records").is_dir():
        raise InputError(f"{run}: not a run directory: it has no records/")
    finish(console, run)


app.command(
    epilog="Example: resurface bench score --model bundled --rounds 5",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)(bench)


app.command(epilog="Example: resurface match runs/demo --matcher qwen3-4b --matcher llama-3.1-8b")(match)


def _run(config: SweepConfig, out: Path) -> None:
    from launch.commands.summary import finish
    from launch.run.driver import run_sweep
    from launch.run.progress import Progress

    with Progress(console) as progress:
        outcome = run_sweep(config, out, progress)
    finish(console, out, outcome)


def main() -> None:
    """The console command: one line and exit code 2 for what the user can mend, 1 for a failed run."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    code = 0
    try:
        code = app(args=arguments, standalone_mode=False) or 0  # 130: typer has seen Ctrl-C
    except KeyboardInterrupt:
        code = 130
    except BaseException as error:
        if debug:
            raise
        code = _explain(error)
    if code == 130:
        errors.print("interrupted; the same command resumes")
    sys.stdout.flush()
    sys.exit(code)


def _explain(error: BaseException) -> int:
    if isinstance(error, SystemExit):  # what Ray makes of a signal that ends this process
        errors.print("stopped; the same command resumes")
        return 128 + int(error.code or 0)
    expected = isinstance(error, ResurfaceError | TyperException)
    message = error.format_message() if isinstance(error, TyperException) else str(error)
    name = "" if expected else f"{type(error).__name__}: "
    hint = "" if expected else " (run again with --debug for the traceback)"
    errors.print(f"[red]error:[/red] {name}{escape(' '.join(message.split()))}{hint}", highlight=False)
    return 2 if isinstance(error, InputError | TyperException) else 1


if __name__ == "__main__":
    main()
