"""`resurface doctor`: describes this machine, and evaluates the bundled model on it three
times: as always, in a fresh engine, and in transformers. Table `noise` of that run says
how far these are apart."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evaluator.core.config import validated
from evaluator.core.controls import name_of
from evaluator.core.errors import InputError, ResurfaceError, one_line
from evaluator.core.files import write_atomically
from evaluator.engine.tolerances import (
    APART,
    DRAWS,
    NATS,
    RANKS,
    Precision,
    Tolerance,
    precision,
)
from launch.commands.call import Output, run_and_report
from launch.commands.terminal import AsJson, only_json, print_json, print_plain
from launch.documents import Checked, Doctor, Number
from launch.provenance import this_machine
from launch.sweep.config import SweepConfig
from launch.sweep.models import BUNDLED

if TYPE_CHECKING:
    import pandas as pd

PROBES = ("greedy", "beam", "choice", "rank")
# What is compared with the engine, and how far it may be from it, in nats.
CONTROLS = {"repeat": NATS, "engine:torch": APART}
_RUN = {
    "models": {BUNDLED: BUNDLED},
    "tasks": [{"task": "gazetteer", "items": 4, "probes": PROBES}],
    "controls": list(CONTROLS),
}
_COLUMNS = ["n", "engine_error", "unpaired", "changed_rate", "distance", "distance_max"]
_IN_A_CELL = str.maketrans({"|": r"\|", "\n": " "})


def doctor(
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="CARD.md",
            help="write a result card, and the engines' logs into CARD.logs/",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare the engine with a fresh one and with transformers on this machine. Exit
    code 1 if they are too far apart.

    Takes one to three minutes on a CPU with two cores, and needs no network."""
    result = Doctor(
        passed=False, verdict="not ended", machine=this_machine(), checks=[]
    )
    if out is not None:  # it is refused before the run, which takes minutes
        write_atomically(out, card(result).encode(), named=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        run = Path(folder) / "run"
        only_json(True)  # what the run prints is progress here
        result.checks = examine(run)
        only_json(as_json)
        if out is not None and (run / "logs").is_dir():
            shutil.copytree(run / "logs", out.with_suffix(".logs"), dirs_exist_ok=True)
    failed = [check for check in result.checks if not check.passed]
    result.passed = not failed
    result.verdict = f"{len(failed)} of {len(result.checks)} checks failed"
    if out is not None:
        write_atomically(out, card(result).encode(), named=True)
    if as_json:
        print_json(result)
    else:
        print_plain(card(result))
    if failed:
        raise typer.Exit(1)


def examine(run: Path) -> Sequence[Checked]:
    """The checks of a new run; of one that fails as a whole, only that."""
    try:
        with suppress(typer.Exit):  # a part failed: its rows are missing
            run_and_report(validated(SweepConfig, _RUN, "doctor"), Output(run))
    except InputError:
        raise
    except ResurfaceError as error:
        failed = Tolerance(math.nan, math.nan)
        return [check_of(one_line(error), {"n": 0}, failed, "float32")]
    from evaluator.report.notebook import OpenRun
    from evaluator.store.run_json import read_run

    found = read_run(run)
    setup = found["engine_stats"][0]["setup"]
    on_gpu = found["provenance"]["device"] != "cpu"
    computed = precision(setup["dtype"], setup["logits"], on_gpu=on_gpu)
    opened = OpenRun(run)
    return [*checks_of(opened.table("noise"), opened.records(), computed)]


def checks_of(
    noise: pd.DataFrame, records: pd.DataFrame, computed: Precision
) -> Iterator[Checked]:
    """Limits on table `noise` of a run. It has no ranks: they are from the records."""
    by_probe = noise.set_index(["control", "probe"])[_COLUMNS].astype(float)
    rows = by_probe.to_dict("index")
    ranks = records[records["probe"] == "rank"].pivot(
        index=["language", "item_id"], columns="checkpoint", values="rank"
    )
    for control, nats in CONTROLS.items():
        for probe in PROBES:
            row = rows.get((control, probe), {"n": 0})
            yield check_of(f"{control}: {probe}", row, nats[computed], computed)
        pairs = ranks.reindex(columns=[BUNDLED, name_of(BUNDLED, control)])
        logs = pairs.astype(float).dropna().map(math.log)
        ratios = (logs[BUNDLED] - logs.iloc[:, 1]).abs()
        row = {"n": len(ratios), "distance": ratios.mean()}
        row["distance_max"] = ratios.max()
        yield check_of(f"{control}: ranks", row, RANKS[computed], computed)


def check_of(
    name: str, row: Mapping[Any, float], allowed: Tolerance, computed: Precision
) -> Checked:
    """Whether scores moved too far, too many answers are others, or some failed."""
    measured = Tolerance(
        row.get("distance_max", math.nan), row.get("distance", math.nan)
    )
    changed = row.get("changed_rate", math.nan)  # of beams and ranks it has none
    lost = row.get("engine_error", 0.0) + row.get("unpaired", 0.0)
    near = allowed.allows(measured) and not changed > DRAWS[computed].mean
    return Checked(
        check=name,
        passed=near and not lost,
        n=int(row["n"]),
        failed=int(lost),
        changed=changed,
        measured=asdict(measured),
        allowed=asdict(allowed),
    )


def card(result: Doctor) -> str:
    """The result in Markdown."""
    lines = [f"# doctor: {result.verdict}", "", "| machine | |", "|---|---|"]
    for name, fact in result.machine.items():
        lines.append(f"| {name} | {fact.translate(_IN_A_CELL)} |")
    lines += [
        "",
        "| check | | items | failed | other answers | largest, mean | allowed |",
    ]
    lines += ["|---|---|---|---|---|---|---|"]
    for each in result.checks:
        state = "pass" if each.passed else "fail"
        changed = "" if math.isnan(each.changed) else f"{each.changed:.1%}"
        numbers = f"{each.n} | {each.failed} | {changed}"
        lines.append(
            f"| {each.check} | {state} | {numbers} | {_pair(each.measured)} |"
            f" {_pair(each.allowed)} |"
        )
    lines += ["", "Distances are in nats; those of ranks between their logarithms.", ""]
    return "\n".join(lines)


def _pair(distances: Mapping[str, Number]) -> str:
    return ", ".join(f"{value:.2g}" for value in distances.values())
