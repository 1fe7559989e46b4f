"""`resurface prune`: make a sparse checkpoint, or check one against its manifest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from evaluator.checkpoints.info import little_text
from evaluator.core.config import validated
from evaluator.core.errors import Document, InputError, Json, lasting
from launch.commands.dry_run import print_job
from launch.commands.options import DryRun, as_option, output, with_fields
from launch.commands.terminal import (
    AsJson,
    console,
    print_error,
    print_json,
    print_plain,
    warn,
)
from launch.documents import Made
from launch.sweep.compress import SOURCES, spelled_source
from launch.sweep.models import BUNDLED, local_directory, no_directory, resolve_model
from pruning.calibration import check_named, wrapped
from pruning.config import (
    USUAL,
    CalibrationConfig,
    JobConfig,
    PruneConfig,
    needs_calibration,
)
from pruning.methods import METHODS
from quantising.methods import METHODS as QUANTISING

if TYPE_CHECKING:
    from evaluator.checkpoints.manifests import CalibrationManifest, PruneManifest

Config = TypeVar("Config", bound=JobConfig)
_LINES = 10  # of progress, about, where there is no terminal


TEXT = "The calibration text"


@with_fields(
    *("What is removed", PruneConfig, "method", "sparsity", "pattern", "allocation"),
    "group",
)
@with_fields(TEXT, PruneConfig, "calibration", "seed")
@with_fields(TEXT, CalibrationConfig, "samples", "sequence_length")
def prune(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help=f"required to prune: a directory, a hub id, or '{BUNDLED}'",
        ),
    ] = None,
    *,
    out: Annotated[
        Path | None,
        output("--out", help="the pruned checkpoint's directory; not with --verify"),
    ] = None,
    verify: Annotated[
        Path | None, output(help="compare a pruned checkpoint with its manifest")
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    **typed: Any,
) -> None:
    """Prune a checkpoint. vLLM, transformers and others load the result. --verify
    checks one."""
    if verify is not None:
        more = {"MODEL": model, "--out": out, "--dry-run": dry_run}
        ignored = [name for name, value in more.items() if value not in (None, False)]
        ignored += [as_option((name,)) for name in typed]
        if ignored:
            raise InputError(
                f"--verify takes no {', '.join(ignored)}: it only checks an existing"
                " checkpoint"
            )
        raise typer.Exit(run_verify(verify, as_json=as_json))
    if model is None:
        raise InputError("Missing argument 'MODEL': the dense checkpoint")
    if out is None:
        raise InputError("Missing option '--out': the sparse checkpoint's directory")
    run_prune(model, out, typed, dry_run=dry_run, as_json=as_json)


def run_prune(
    model: str, out: Path, typed: Document, *, dry_run: bool, as_json: bool
) -> None:
    """Prune `model` into `out`. Raises InputError or JobError."""
    config = prune_request(model, typed, fetch=not dry_run)
    from launch.provenance import provenance
    from pruning.run import check
    from pruning.run import prune as make

    if config.source.is_dir():
        check(config, out, sources=SOURCES)
    if dry_run:
        print_job(model, config, as_json=as_json)
        return
    with console.status("pruning") as status:

        def progress(done: int, total: int) -> None:
            status.update(f"pruning: {done}/{total} layers")
            due = done == total or done % max(1, total // _LINES) == 0
            if due and not console.is_terminal:
                print_plain(f"pruning: {done}/{total} layers")

        manifest = make(
            config, out, sources=SOURCES, provenance=provenance(), progress=progress
        )
    removed, of = manifest.removed, "of the pruned matrices"
    if removed is not None:
        of = "of the weights in the layers' matrices"
    lines = [
        f"{_method_of(manifest)}: measured sparsity"
        f" {manifest.measured_sparsity:.6f} {of}, {lasting(manifest.seconds)}"
    ]
    if removed is not None and removed.unit == "layers":
        lines.append(f"removed layers: {removed.gone[0]} of {removed.of}")
    print_made(lines, manifest.calibration, out, as_json=as_json)


def prune_request(model: str, typed: Document, *, fetch: bool) -> PruneConfig:
    """A pruning by what was typed. Raises as `request`."""
    method = typed.get("method")
    if method is None:
        raise InputError(
            f"Missing option '--method': one of {', '.join(METHODS.names)}"
        )
    if method in QUANTISING:
        amount = "--experts 0.25"
        if schemes := QUANTISING[method].schemes:
            amount = f"--scheme {schemes[0]}"
        raise InputError(
            f"--method {method}: `resurface compress MODEL --method {method} {amount}"
            " --out DIR`"
        )
    looks = needs_calibration(method, typed.get("allocation"))
    if looks and "calibration" not in typed and not METHODS[method].needs_calibration:
        raise InputError(
            "Missing option '--calibration': --allocation owl looks at text (c4,"
            " gazetteer, text:FILE)"
        )
    return request(PruneConfig, model, typed, looks=looks, fetch=fetch)


def request(
    kind: type[Config], model: str, typed: Document, *, looks: bool, fetch: bool
) -> Config:
    """A job by what was typed. Its source is missing if it was to be fetched and `fetch`
    is false. Raises InputError naming the option and the value, also for a source or a
    text that does not exist."""
    where = f"resurface {'prune' if kind is PruneConfig else 'compress'}"
    text: Json = {"source": typed.get("calibration", USUAL.source)}
    wanted: Json = {"source": Path(model)}
    for name, value in typed.items():
        of_text = name in CalibrationConfig.model_fields
        if not looks and (of_text or name == "calibration"):
            option = as_option((name,))
            raise InputError(f"{option}: method {typed['method']} needs no text")
        (text if of_text else wanted)[name] = value
    wanted["calibration"] = None
    if looks:
        calibration = validated(CalibrationConfig, text, where, as_option)
        wanted["calibration"] = spelled_source(calibration)
    config = validated(kind, wanted, where, as_option)
    source = local_directory(model)
    if source is None:
        source = resolve_model(model) if fetch else Path(model)
    elif not source.is_dir():
        raise no_directory(model)
    config = config.model_copy(update={"source": source})
    if config.calibration is not None:  # before torch is imported
        check_named(config.calibration, config.seed, SOURCES)
        for note in wrapped(config.calibration):
            warn(note)
    return config


def print_made(
    lines: Sequence[str],
    calibration: CalibrationManifest | None,
    out: Path,
    *,
    as_json: bool,
) -> None:
    """Print what a job made, and warn of little text."""
    for line in lines:
        print_plain(line)
    if calibration is not None:
        print_plain(f"calibration: {calibration.tokens:,} tokens")
        if remark := little_text(calibration):
            warn(remark)
    print_plain(f"checkpoint: {out}")
    if as_json:
        print_json(Made(checkpoint=str(out)))


def run_verify(directory: Path, *, as_json: bool = False) -> int:
    """Print one line and return 0, or a line per problem and 1. Raises InputError
    without a readable manifest."""
    from evaluator.checkpoints.manifests import PruneManifest, read_manifest
    from pruning.verify import examine

    manifest = read_manifest(directory, PruneManifest)
    if manifest is None:
        raise InputError(
            f"--verify: {str(directory)!r} is no pruned checkpoint: there is no"
            f" {PruneManifest.FILE}"
        )
    result = examine(directory)
    for problem in result.problems:
        print_error(problem)
    if as_json:
        print_json(Made(checkpoint=str(directory), problems=result.problems))
    if result.problems:
        return 1
    what = f"{len(manifest.matrices)} matrices"
    if manifest.removed is not None:
        what = f"the rest equals {result.source}"
        if result.source is None:
            what = "source not found here"
    print_plain(
        f"{directory}: sound: {len(manifest.files)} files, {what},"
        f" {_method_of(manifest)}, measured sparsity {manifest.measured_sparsity:.6f}"
    )
    return 0


def _method_of(manifest: PruneManifest) -> str:
    return f"{manifest.method}, {manifest.pattern}"
