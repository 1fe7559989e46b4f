"""The error rates of the gate, measured: `resurface bench gate`.

    resurface bench gate                               # every part, about two hours of
                                                       one core
    resurface bench gate --only false_pass,power       # some parts
    resurface bench gate --run runs/demo --only recorded

Each part prints a table. The JSON line has a key a part. A part is one function in
PARTS: it takes the options, prints, and returns what the JSON line says of it. The exit
code is 1 where a rate is surely above its bound.
"""

import argparse
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.gate import errors, sequential
from benchmarks.gate.errors import Rate, rate
from benchmarks.harness import Options, count, print_table, run_main
from evaluator.core.errors import InputError, ResurfaceError, json_text
from evaluator.metrics.sequential_looks import BLOCK_LEVEL, PASS_LEVEL

Part = Callable[[argparse.Namespace], dict[str, Any]]


def main() -> None:
    options = _options()
    found = {name: PARTS[name](options) for name in options.only}
    print(
        json_text(
            {"benchmark": "gate", "runs": options.runs, "again": options.again, **found}
        )
    )
    above = [name for name, each in found.items() if each.get("above_bound")]
    if above:
        raise ResurfaceError(f"above the bound: {', '.join(above)}")


def _options() -> argparse.Namespace:
    parser = Options(__doc__)
    parser.add_argument(
        "--runs", type=count, default=400, help="of each cell (default: 400)"
    )
    parser.add_argument(
        "--again",
        type=count,
        default=10_000,
        help="new runs of the worst cells (default: 10000)",
    )
    parser.add_argument(
        "--redraws",
        type=count,
        default=2000,
        help="of a recorded run, and for each cost (default: 2000)",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--run", type=Path, help="a recorded run, for the part `recorded`"
    )
    parser.add_argument(
        "--only",
        default=",".join(PARTS),
        help=f"parts: {', '.join(PARTS)} (default: all)",
    )
    options = parser.parse_args()
    options.only = options.only.split(",")
    options.drawn = {"runs": options.runs, "again": options.again, "seed": options.seed}
    for name in options.only:
        if name not in PARTS:
            raise InputError(
                f"--only: {name!r} is no part; parts are {', '.join(PARTS)}"
            )
    return options


def _false_pass(options: argparse.Namespace) -> dict[str, Any]:
    rows = [
        row
        for kind in errors.KINDS
        for row in errors.worst(errors.at_tolerance((kind,)), rate, **options.drawn)
    ]
    return _errors("PASS at the tolerance", rows, PASS_LEVEL)


def _false_block(options: argparse.Namespace) -> dict[str, Any]:
    rows = errors.worst(errors.without_loss(), rate, **options.drawn)
    return _errors("BLOCK without a loss", rows, BLOCK_LEVEL)


def _errors(
    what: str, rows: Sequence[tuple[object, Rate]], bound: float
) -> dict[str, Any]:
    print_table(
        f"{what}: the worst cells, and their rates in new runs",
        ("cell", "rate (99 % interval)"),
        rows,
    )
    cell, highest = max(rows, key=lambda each: each[1].share)
    above = any(each.ends[0] > bound for _, each in rows)
    return {
        "bound": bound,
        "worst": str(cell),
        **_figures(highest),
        "above_bound": above,
    }


def _power(options: argparse.Namespace) -> dict[str, Any]:
    """Of a base of 80 %, with 1 % flips."""
    rows, found = [], []
    names = [f"3 x {kind}" for kind in errors.KINDS]
    for items, languages, (cluster, correlation) in product(
        errors.SIZES, errors.LANGUAGES, ((1, 0.0), (5, 0.3))
    ):
        world = errors.World(
            items=items, languages=languages, cluster=cluster, correlation=correlation
        )
        plans = {"no loss": errors.harmless(world, 0.01 / world.accuracy, 0.0)} | {
            f"3 x {kind}": errors.planted(
                kind, world, 3 * errors.JUDGED[kind].tolerance, 0.01
            )
            for kind in errors.KINDS
            if kind != "language" or languages > 1
        }
        shares = {
            name: errors.outcomes(
                world, plan, options.runs, (options.seed, items, languages, cluster)
            )
            for name, plan in plans.items()
            if plan is not None
        }
        passed = shares["no loss"]["PASS"]
        blocked = {
            name: each["BLOCK"] for name, each in shares.items() if name != "no loss"
        }
        percents = [
            f"{100 * blocked[name]:.0f}" if name in blocked else "" for name in names
        ]
        rows.append((items, languages, cluster, f"{100 * passed:.0f}", *percents))
        place = {"items": items, "languages": languages, "cluster": cluster}
        found.append({**place, "pass_at_no_loss": passed, "block_at": blocked})
    columns = ("items", "languages", "a context", "no loss", *names)
    print_table(
        "power, %: PASS without a loss, BLOCK at three times the tolerance",
        columns,
        rows,
    )
    return {"cells": found}


def _screened(options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for verdict, bound in (("PASS", PASS_LEVEL), ("BLOCK", BLOCK_LEVEL)):
        cases = [case for case in sequential.wrong() if case.verdict == verdict]
        rows = errors.worst(cases, sequential.rate, **options.drawn)
        found[verdict] = _errors(
            f"wrong {verdict} of screened runs of {sequential.ITEMS:,} items",
            rows,
            bound,
        )
    return {**found, "above_bound": any(each["above_bound"] for each in found.values())}


def _costs(options: argparse.Namespace) -> dict[str, Any]:
    rows = []
    for case in sequential.clear():
        tried, fixed = (
            sequential.tried(case, options.redraws, options.seed),
            sequential.fixed(case, options.seed),
        )
        rows.append(
            (
                case,
                case.verdict,
                f"{100 * tried.share(case.verdict):.1f} %",
                round(tried.median),
                fixed,
            )
        )
    columns = ("case", "verdict", "reached", "median items", "fixed sample")
    print_table(
        "cost of a screened run beside the smallest fixed sample with 90 % power",
        columns,
        rows,
    )
    return {
        "cases": [
            dict(zip(columns, (str(row[0]), *row[1:]), strict=True)) for row in rows
        ]
    }


def _recorded(options: argparse.Namespace) -> dict[str, Any]:
    if options.run is None:
        print("recorded: no run (--run DIR)")
        return {}
    found = list(
        sequential.recorded(options.run, repeats=options.redraws, seed=options.seed)
    )
    rows = [
        (checkpoint, what, f"{100 * loss:.1f} %", items, passed)
        for checkpoint, what, loss, items, passed in found
    ]
    columns = ("checkpoint", "criterion", "loss = tolerance", "items", "rate")
    print_table("wrong PASS of a recorded run, redrawn", columns, rows)
    cases = [
        {"checkpoint": each[0], "criterion": each[1], **_figures(each[-1])}
        for each in found
    ]
    return {
        "cases": cases,
        "above_bound": any(each["low"] > PASS_LEVEL for each in cases),
    }


def _figures(found: Rate) -> dict[str, Any]:
    low, high = found.ends
    return {"rate": found.share, "low": low, "high": high, "runs": found.runs}


PARTS: dict[str, Part] = {
    "false_pass": _false_pass,
    "false_block": _false_block,
    "power": _power,
    "screened": _screened,
    "costs": _costs,
    "recorded": _recorded,
}

if __name__ == "__main__":
    run_main(main)
