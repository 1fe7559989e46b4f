"""`resurface prune`: make a sparse checkpoint, or hold one against its manifest."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape

from evaluator.errors import InputError
from launch.commands.options import PruneOptions, prune_request
from launch.commands.summary import print_manifest
from launch.run.provenance import provenance
from launch.sweep.calibration import SOURCES
from launch.sweep.models import resolve_model
from pruning.output.manifest import MANIFEST_NAME, read_manifest
from pruning.output.verify import verify
from pruning.run import check, prune


def run_prune(console: Console, model: str | None, out: Path | None, options: PruneOptions) -> None:
    """Prune `model` into `out`. Raises InputError or PruneError; options are checked before a model is fetched."""
    if model is None:
        raise InputError("Missing argument 'MODEL': the dense checkpoint")
    if out is None:
        raise InputError("Missing option '--out': the sparse checkpoint's directory")
    config = prune_request(Path(model), options)
    config = config.model_copy(update={"source": resolve_model(model)})
    check(config, out, sources=SOURCES)
    with console.status("pruning") as status:
        manifest = prune(
            config,
            out,
            sources=SOURCES,
            provenance=provenance(),
            progress=lambda done, total: status.update(f"pruning: {done}/{total} layers"),
        )
    print_manifest(console, manifest, out)


def run_verify(console: Console, errors: Console, directory: Path) -> int:
    """Hold a pruned checkpoint against its manifest: one line and 0 if it is sound, else a line per problem and 1.

    Raises InputError for a directory that has no manifest that can be read.
    """
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
