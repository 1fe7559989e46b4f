"""`resurface prune`: make a sparse checkpoint, or check one against its manifest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer
from rich.console import Console
from rich.markup import escape

from evaluator.core.errors import InputError
from launch.commands.options import PruneOptions, Seed, described, prune_request
from launch.commands.terminal import console, errors
from launch.sweep.compress import KINDS, SOURCES
from launch.sweep.models import BUNDLED, is_hub_id, resolve_model
from pruning.calibration import check_named
from pruning.config import Allocation, Repair
from pruning.methods import METHODS
from pruning.methods.patterns import Group

if TYPE_CHECKING:
    from launch.trackers.hub import Row
    from pruning.output.manifest import PruneManifest

_LINES = 10  # of progress, about, where there is no terminal
_UNASKED = PruneOptions()


def prune(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help=f"dense: a directory, a hub id, or '{BUNDLED}'")
    ] = None,
    method: Annotated[str | None, typer.Option(help=described(METHODS))] = None,
    out: Annotated[Path | None, typer.Option("--out", help="the pruned checkpoint's directory")] = None,
    sparsity: Annotated[
        float | None, typer.Option(help="share of zeros, or of removed layers, heads or channels, e.g. 0.5")
    ] = None,
    pattern: Annotated[
        str | None, typer.Option(help="N:M, e.g. 2:4 zeroes 2 of every 4; for drop the layers, e.g. 20-25,28")
    ] = None,
    allocation: Annotated[
        str, typer.Option(help=f"how the sparsity varies over layers: {', '.join(get_args(Allocation))}")
    ] = _UNASKED.allocation,
    group: Annotated[
        str | None, typer.Option(help=f"where scores are compared: {', '.join(get_args(Group))}; default the method's")
    ] = None,
    repair: Annotated[
        str, typer.Option(help=f"fit the remaining weights to the calibration text: {', '.join(get_args(Repair))}")
    ] = _UNASKED.repair,
    calibration: Annotated[str | None, typer.Option(help=", ".join(KINDS))] = None,
    samples: Annotated[int, typer.Option(help="calibration passages")] = _UNASKED.samples,
    sequence_length: Annotated[int, typer.Option(help="tokens per passage at most")] = _UNASKED.sequence_length,
    seed: Seed = _UNASKED.seed,
    push: Annotated[
        str | None, typer.Option(metavar="ORG/NAME", help="upload to the hub; without MODEL, the checkpoint in --out")
    ] = None,
    run: Annotated[
        Path | None, typer.Option("--run", help="with --push: a run that evaluated it; the card shows its fates")
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="with --push: make a new repository public")] = False,
    verify: Annotated[Path | None, typer.Option(help="compare a pruned checkpoint with its manifest")] = None,
) -> None:
    """Prune a checkpoint; any server of safetensors loads the result. --verify checks one, --push uploads one."""
    if push is None and (run is not None or public):
        raise InputError("--run and --public go with --push")
    options = PruneOptions(
        method=method,
        sparsity=sparsity,
        pattern=pattern,
        allocation=allocation,
        group=group,
        repair=repair,
        calibration=calibration,
        samples=samples,
        sequence_length=sequence_length,
        seed=seed,
    )
    if verify is not None:
        more = {"MODEL": model, "--out": out, "--push": push}
        if ignored := [name for name, value in more.items() if value is not None] + options.changed:
            raise InputError(f"--verify takes no {', '.join(ignored)}: it only checks an existing checkpoint")
        raise typer.Exit(run_verify(console, errors, verify))
    if push is None:
        run_prune(console, model, out, options)
    elif model is not None:
        run_prune_and_push(console, push, model, out, options, run, public=public)
    elif options.changed:
        raise InputError(
            f"Missing argument 'MODEL': the dense checkpoint; without one, --push takes no {', '.join(options.changed)}"
        )
    else:
        run_push(console, push, out, run, public=public)


def run_prune(
    console: Console,
    model: str | None,
    out: Path | None,
    options: PruneOptions,
    checked: Callable[[Path], None] | None = None,
) -> None:
    """Prune `model` into `out`. Checks options before it fetches a model. Raises InputError or JobError.

    Calls `checked` with the model's directory after all other checks.
    """
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
    from launch.provenance import provenance
    from pruning.run import check
    from pruning.run import prune as make

    check(config, out, sources=SOURCES)
    if checked is not None:
        checked(source)
    with console.status("pruning") as status:

        def progress(done: int, total: int) -> None:
            status.update(f"pruning: {done}/{total} layers")
            if not console.is_terminal and (done == total or done % max(1, total // _LINES) == 0):
                console.print(f"pruning: {done}/{total} layers", highlight=False)

        manifest = make(config, out, sources=SOURCES, provenance=provenance(), progress=progress)
    _print_manifest(console, manifest, out)


def run_prune_and_push(
    console: Console, name: str, model: str, out: Path | None, options: PruneOptions, run: Path | None, *, public: bool
) -> None:
    """Prune a model and upload it. First makes sure that the hub accepts it. Raises InputError or JobError."""
    from launch.trackers.hub import check_repository, need_own_files, open_repository, whole

    check_repository(name)
    if run is not None:
        raise InputError("--run: this checkpoint is not pruned yet, so it has no run: push it later, without MODEL")

    def ready(source: Path) -> None:
        need_own_files(source)
        open_repository(name, public=public)

    run_prune(console, model, out, options, ready)
    assert out is not None
    _upload(console, name, out, whole(out), model if is_hub_id(model) else None, [])


def run_push(console: Console, name: str, out: Path | None, run: Path | None, *, public: bool) -> None:
    """Upload an existing pruned checkpoint. Raises InputError."""
    from launch.trackers.hub import check_repository, fates_of, open_repository, whole

    check_repository(name)
    if out is None:
        raise InputError("Missing option '--out': the sparse checkpoint's directory")
    manifest = whole(out)
    fates = [] if run is None else fates_of(out, run)
    open_repository(name, public=public)
    _upload(console, name, out, manifest, None, fates)


def run_verify(console: Console, errors: Console, directory: Path) -> int:
    """Check a pruned checkpoint against its manifest. Prints one line and returns 0, or a line per problem and 1.

    Raises InputError for a directory without a readable manifest.
    """
    from pruning.output.manifest import MANIFEST_NAME, read_manifest
    from pruning.verify import examine

    manifest = read_manifest(directory)
    if manifest is None:
        raise InputError(f"--verify: {str(directory)!r} is no pruned checkpoint: there is no {MANIFEST_NAME}")
    verdict = examine(directory)
    for problem in verdict.problems:
        errors.print(f"[red]error:[/red] {escape(problem)}", highlight=False)
    if verdict.problems:
        return 1
    what = f"{len(manifest.matrices)} matrices"
    if manifest.removed is not None:
        source = verdict.source
        what = "source not found here" if source is None else f"the rest equals {escape(str(source))}"
    console.print(
        f"{escape(str(directory))}: sound: {len(manifest.files)} files, {what}, "
        f"{_told_method(manifest)}, {manifest.pattern}, measured sparsity {manifest.measured_sparsity:.6f}",
        highlight=False,
        soft_wrap=True,
    )
    return 0


def _upload(
    console: Console, name: str, directory: Path, manifest: PruneManifest, base: str | None, fates: Sequence[Row]
) -> None:
    from huggingface_hub.utils.tqdm import disable_progress_bars

    from launch.trackers.hub import base_of, push

    if not errors.is_terminal:  # the hub's library draws them into files too
        disable_progress_bars()
    address = push(name, directory, manifest, base=base or base_of(manifest), fates=fates)
    console.print(f"pushed: {escape(address)}", highlight=False, soft_wrap=True)


def _told_method(manifest: PruneManifest) -> str:
    return manifest.method if manifest.repair is None else f"{manifest.method} + {manifest.repair}"


def _print_manifest(console: Console, manifest: PruneManifest, out: Path) -> None:
    of = "of the pruned matrices" if manifest.removed is None else "of the weights in the layers' matrices"
    console.print(
        f"{_told_method(manifest)}, {manifest.pattern}: measured sparsity {manifest.measured_sparsity:.6f} {of}, "
        f"{manifest.seconds:.1f} s",
        highlight=False,
        soft_wrap=True,
    )
    if manifest.removed is not None and manifest.removed.unit == "layers":
        console.print(f"removed layers: {manifest.removed.gone[0]} of {manifest.removed.of}", highlight=False)
    console.print(f"checkpoint: {escape(str(out))}", highlight=False, soft_wrap=True)
