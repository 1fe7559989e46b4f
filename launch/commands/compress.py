"""`resurface compress`: one checkpoint by any registered method, pruned or quantised."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from evaluator.core.config import validated
from evaluator.core.errors import InputError, Json, lasting, unknown
from launch.commands.dry_run import print_job
from launch.commands.options import (
    Calibration,
    CalibrationSeed,
    DryRun,
    Samples,
    SequenceLength,
    as_option,
    completing,
    grouped,
    listed,
    output,
)
from launch.commands.prune import PRUNE_DEFAULTS, print_made, run_prune, with_source
from launch.commands.terminal import AsJson, console
from launch.sweep.compress import SOURCES, read_recipe, spelled_source
from launch.sweep.models import BUNDLED
from pruning.config import CalibrationConfig
from pruning.methods import METHODS as PRUNING
from quantising.config import QuantiseConfig
from quantising.methods import METHODS as QUANTISING
from quantising.methods.base import IGNORED
from quantising.schemes import SCHEMES

removal, rounding = grouped("Pruning"), grouped("Quantising")


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
    scheme: Annotated[
        str | None,
        rounding(
            help="W4A16, W8A16, W8A8, FP8_DYNAMIC, ...",
            autocompletion=completing(SCHEMES),
        ),
    ] = None,
    group_size: Annotated[
        int | None, rounding(help="weights that share a scale; default: the scheme's")
    ] = None,
    ignore: Annotated[
        str | None,
        rounding(
            help=(
                "modules that stay as they are, or re:PATTERN; commas; default:"
                f" {', '.join(IGNORED)}"
            )
        ),
    ] = None,
    recipe: Annotated[
        Path | None, rounding(help="llm-compressor's YAML, for method recipe")
    ] = None,
    sparsity: Annotated[float | None, removal(help="share of zeros, as 0.5")] = None,
    experts: Annotated[
        float | None, removal(help="share of experts that go, for method reap")
    ] = None,
    pattern: Annotated[str | None, removal(help="N:M, as 2:4")] = None,
    calibration: Calibration = None,
    samples: Samples = 128,
    sequence_length: SequenceLength = 2048,
    seed: CalibrationSeed = 0,
    out: Annotated[
        Path | None, output("--out", help="the compressed checkpoint's directory")
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Prune or quantise a checkpoint by any method. vLLM loads the result.

    `resurface prune` has more options for pruning."""
    given = dict(locals())
    if out is None:
        raise InputError(
            "Missing option '--out': the compressed checkpoint's directory"
        )
    if method in PRUNING.names:
        _refuse(given, ("scheme", "group_size", "recipe", "ignore", "experts"))
        names = PRUNE_DEFAULTS.keys() & given.keys()
        options = {**PRUNE_DEFAULTS, **{name: given[name] for name in names}}
        run_prune(model, out, options, dry_run=dry_run, as_json=as_json)
    elif method in QUANTISING.names:
        _refuse(given, ("sparsity", "pattern"))
        _quantise(model, out, given)
    else:
        raise unknown("method", method, (*PRUNING.names, *QUANTISING.names))


def _refuse(given: Json, names: tuple[str, ...]) -> None:
    for name in names:
        if given[name] is not None:
            option = f"--{name.replace('_', '-')}"
            raise InputError(
                f"{option} {given[name]}: method {given['method']} takes none"
            )


def quantise_request(source: Path, given: Json) -> QuantiseConfig:
    """A quantisation by the options of `resurface compress`. Raises InputError naming
    the option and the value."""
    method = QUANTISING[given["method"]]
    recipe, schemes = given["recipe"], list(method.schemes)
    wanted: Json = {"source": source}
    if given["ignore"] is not None:
        wanted["ignore"] = listed("ignore", given["ignore"])
    for pattern in wanted.get("ignore", ()):
        try:
            re.compile(pattern.removeprefix("re:"))
        except re.error as error:
            raise InputError(f"--ignore {pattern}: no pattern: {error}") from error
    for name in ("method", "scheme", "experts", "group_size", "seed"):
        wanted[name] = given[name]
    if recipe is not None:
        wanted["recipe"], schemes = read_recipe(recipe, "--recipe")
    if method.takes_experts:
        wanted["scheme"] = given["scheme"] or ""
    elif wanted["scheme"] is None:
        if len(schemes) != 1:
            raise InputError(f"Missing option '--scheme': one of {', '.join(schemes)}")
        wanted["scheme"] = schemes[0]
    if method.needs_calibration:
        settings = {name: given[name] for name in ("samples", "sequence_length")}
        settings["source"] = given["calibration"] or "c4"
        calibration = validated(
            CalibrationConfig, settings, "resurface compress", as_option
        )
        wanted["calibration"] = spelled_source(calibration)
    elif given["calibration"] is not None:
        raise InputError(f"--calibration: method {method.name} needs no text")
    return validated(QuantiseConfig, wanted, "resurface compress", as_option)


def _quantise(model: str, out: Path, given: Json) -> None:
    dry_run, as_json = given["dry_run"], given["as_json"]
    request = quantise_request(Path(model), given)
    config = with_source(request, model, fetch=not dry_run)
    from launch.provenance import provenance
    from quantising.run import check, quantise

    if config.source.is_dir():
        check(config, out, sources=SOURCES)
    if dry_run:
        print_job(model, config, as_json=as_json)
        return
    QUANTISING[config.method].check_here()
    with console.status("quantising"):
        manifest = quantise(config, out, sources=SOURCES, provenance=provenance())
    amount = config.scheme or f"{config.experts:g} of the experts"
    lines = [f"{config.method}, {amount}: {lasting(manifest.seconds)}"]
    print_made(lines, manifest.calibration, out, as_json=as_json)
