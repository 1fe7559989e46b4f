"""`resurface prune`: make a sparse checkpoint, or check one against its manifest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer
from rich.console import Console
from rich.markup import escape

from evaluator.errors import InputError
from launch.commands.options import PruneOptions, Seed, described, prune_request
from launch.commands.terminal import console, errors
from launch.sweep.calibration import KINDS, SOURCES
from launch.sweep.models import BUNDLED, resolve_model
from pruning.calibration.sequences import check_named
from pruning.config import Allocation
from pruning.methods import METHODS
from pruning.patterns import Group

if TYPE_CHECKING:
    from pruning.output.manifest import PruneManifest


def prune(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help=f"dense: a directory, a hub id, or '{BUNDLED}'")
    ] = None,
    method: Annotated[str | None, typer.Option(help=described(METHODS))] = None,
    out: Annotated[Path | None, typer.Option("--out", help="the sparse checkpoint's directory")] = None,
    sparsity: Annotated[float | None, typer.Option(help="share of zeros, e.g. 0.5")] = None,
    pattern: Annotated[str | None, typer.Option(help="N:M, e.g. 2:4 zeroes 2 of every 4")] = None,
    allocation: Annotated[
        str, typer.Option(help=f"of the ratio over layers: {', '.join(get_args(Allocation))}")
    ] = "uniform",
    group: Annotated[
        str | None, typer.Option(help=f"scores compared within: {', '.join(get_args(Group))}; default the method's")
    ] = None,
    calibration: Annotated[str | None, typer.Option(help=", ".join(KINDS))] = None,
    samples: Annotated[int, typer.Option(help="calibration passages")] = 128,
    sequence_length: Annotated[int, typer.Option(help="tokens per passage at most")] = 2048,
    seed: Seed = 0,
    verify: Annotated[Path | None, typer.Option(help="a pruned checkpoint to check against its manifest")] = None,
) -> None:
    """Prune a dense checkpoint into a sparse one that any server of safetensors loads; or --verify one."""
    if verify is None:
        options = PruneOptions(
            method=method,
            sparsity=sparsity,
            pattern=pattern,
            allocation=allocation,
            group=group,
            calibration=calibration,
            samples=samples,
            sequence_length=sequence_length,
            seed=seed,
        )
        run_prune(console, model, out, options)
    elif model or method or out:
        raise InputError("--verify takes no MODEL, --method or --out")
    else:
        raise typer.Exit(run_verify(console, errors, verify))


def run_prune(console: Console, model: str | None, out: Path | None, options: PruneOptions) -> None:
    """Prune `model` into `out`; options are checked before a model is fetched. Raises InputError or PruneError."""
    if model is None:
        raise InputError("Missing argument 'MODEL': the dense checkpoint")
    if out is None:
        raise InputError("Missing option '--out': the sparse checkpoint's directory")
    config = prune_request(Path(model), options)
    source = resolve_model(model)
    if not source.is_dir():
        raise InputError(f"{source}: no such checkpoint directory")
    config = config.model_copy(update={"source": source})
    if config.calibration is not None:  # before torch is imported
        check_named(config.calibration, config.seed, SOURCES)
    from launch.run.provenance import provenance
    from pruning.run import check
    from pruning.run import prune as make

    check(config, out, sources=SOURCES)
    with console.status("pruning") as status:
        manifest = make(
            config,
            out,
            sources=SOURCES,
            provenance=provenance(),
            progress=lambda done, total: status.update(f"pruning: {done}/{total} layers"),
        )
    _print_manifest(console, manifest, out)


def run_verify(console: Console, errors: Console, directory: Path) -> int:
    """Check a pruned checkpoint against its manifest: one line and 0 if it is sound, else a line per problem and 1.

    Raises InputError for a directory without a manifest that can be read.
    """
    from pruning.output.manifest import MANIFEST_NAME, read_manifest
    from pruning.output.verify import verify

    manifest = read_manifest(directory)
    if manifest is None:
        raise InputError(f"--verify: {str(directory)!r} is no pruned checkpoint: there is no {MANIFEST_NAME}")
    problems = verify(directory)
    for problem in problems:
        errors.print(f"[red]error:[/red] {escape(problem)}", highlight=False)
    if problems:
        return 1
    console.print(
        f"{escape(str(directory))}: sound: {len(manifest.files)} files, {len(manifest.matrices)} matrices, "
        f"{manifest.method}, {manifest.pattern}, measured sparsity {manifest.measured_sparsity:.6f}",
        highlight=False,
        soft_wrap=True,
    )
    return 0


def _print_manifest(console: Console, manifest: PruneManifest, out: Path) -> None:
    console.print(
        f"{manifest.method}, {manifest.pattern}: measured sparsity {manifest.measured_sparsity:.6f} over the pruned "
        f"matrices, {manifest.seconds:.1f} s",
        highlight=False,
    )
    console.print(f"checkpoint: {escape(str(out))}", highlight=False, soft_wrap=True)
