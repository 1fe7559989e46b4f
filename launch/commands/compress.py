"""`resurface compress`: one checkpoint by any registered method, pruned or quantised."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from evaluator.core.errors import InputError, Json, lasting, unknown
from launch.commands.dry_run import print_job
from launch.commands.options import (
    DryRun,
    as_option,
    completing,
    listed,
    output,
    with_fields,
)
from launch.commands.prune import TEXT, print_made, request, run_prune
from launch.commands.terminal import AsJson, console
from launch.sweep.compress import SOURCES, read_recipe
from launch.sweep.config import CompressSetting
from launch.sweep.models import BUNDLED
from pruning.config import CalibrationConfig, PruneConfig
from pruning.methods import METHODS as PRUNING
from quantising.config import QuantiseConfig
from quantising.methods import METHODS as QUANTISING


@with_fields("Quantising", QuantiseConfig, "scheme", "group_size", "ignore")
@with_fields("Quantising", CompressSetting, "recipe")
@with_fields("Pruning", PruneConfig, "sparsity", "pattern")
@with_fields("Pruning", QuantiseConfig, "experts")
@with_fields(TEXT, PruneConfig, "calibration", "seed")
@with_fields(TEXT, CalibrationConfig, "samples", "sequence_length")
def compress(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help=f"a directory, a hub id, or '{BUNDLED}'"),
    ],
    method: Annotated[
        str,
        typer.Option(
            help="see `resurface list methods`",
            autocompletion=completing((*PRUNING, *QUANTISING)),
        ),
    ],
    *,
    out: Annotated[Path, output("--out", help="the compressed checkpoint's directory")],
    dry_run: DryRun = False,
    as_json: AsJson = False,
    **typed: Any,
) -> None:
    """Prune or quantise a checkpoint by any method. vLLM loads the result.

    `resurface prune` has more options for pruning."""
    kind = PruneConfig if method in PRUNING else QuantiseConfig
    if method not in PRUNING and method not in QUANTISING:
        raise unknown("method", method, (*PRUNING.names, *QUANTISING.names))
    for name, value in typed.items():
        if name not in kind.model_fields | CalibrationConfig.model_fields:
            raise InputError(
                f"{as_option((name,))} {value}: method {method} takes none"
            )
    typed["method"] = method
    if method in PRUNING:
        run_prune(model, out, typed, dry_run=dry_run, as_json=as_json)
        return
    config = quantise_request(model, typed, fetch=not dry_run)
    from launch.provenance import provenance
    from quantising.run import check, quantise

    if config.source.is_dir():
        check(config, out, sources=SOURCES)
    if dry_run:
        print_job(model, config, as_json=as_json)
        return
    QUANTISING[method].check_here()
    with console.status("quantising"):
        manifest = quantise(config, out, sources=SOURCES, provenance=provenance())
    amount = config.scheme or f"{config.experts:g} of the experts"
    lines = [f"{method}, {amount}: {lasting(manifest.seconds)}"]
    print_made(lines, manifest.calibration, out, as_json=as_json)


def quantise_request(model: str, typed: Json, *, fetch: bool) -> QuantiseConfig:
    """A quantisation by what was typed. Raises as `request`."""
    method = QUANTISING[typed["method"]]
    schemes = list(method.schemes)
    if "ignore" in typed:
        typed["ignore"] = listed("ignore", typed["ignore"])
    if "recipe" in typed:
        typed["recipe"], schemes = read_recipe(typed["recipe"], "--recipe")
    elif method.takes_recipe:
        raise InputError("Missing option '--recipe': llm-compressor's recipe, a file")
    if "scheme" not in typed and not method.takes_experts:
        if len(schemes) != 1:
            known = ", ".join(schemes or method.schemes)
            raise InputError(f"Missing option '--scheme': one of {known}")
        (typed["scheme"],) = schemes
    looks = method.needs_calibration
    return request(QuantiseConfig, model, typed, looks=looks, fetch=fetch)
