"""`resurface eval`: a sweep without pruning."""

from __future__ import annotations

from typing import Annotated

import typer

from evaluator.core.records import FORMATS
from evaluator.engine.config import engines_help
from evaluator.probes import PROBES
from evaluator.probes.config import EvalConfig
from evaluator.tasks import tasks_help
from launch.commands.options import DTYPES, Out, Prompts, Seed, Track, described, eval_sweep
from launch.commands.running import run_and_report
from launch.sweep.models import BUNDLED

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
        bool, typer.Option(help="compare checkpoints of another dtype than their base too, and say so in every table")
    ] = False,
    scoring: Annotated[str, typer.Option(help="forced; prompt_logprobs: vllm's own way, slow, to check")] = "forced",
    seed: Seed = 0,
    options: Annotated[
        str | None, typer.Option(help="distractors that are drawn: any (the paper's way), alike (default of a new run)")
    ] = None,
    chat: Annotated[bool, typer.Option(help="prompt through the tokenizer's chat template")] = False,
    prompts: Prompts = None,
    engines: Annotated[int | None, typer.Option(help="engines to run; default one per GPU")] = None,
    shard_items: Annotated[int, typer.Option(help="items per Parquet part: what a crash can lose")] = 20,
    trust_remote_code: Annotated[bool, typer.Option(help="run the checkpoint's own code; off by default")] = False,
    track: Track = None,
) -> None:
    """Evaluate checkpoints: every question, every probe, one engine."""
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
