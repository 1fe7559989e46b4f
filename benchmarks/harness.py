"""Two ways of doing the same work, timed in turn: what a benchmark here is.

    compare("score", ours=..., theirs=..., rounds=5, agree=...)

prints a table and, as its last line, JSON with a `ratio`. The sides run in turn (ours, theirs, ours, ...) after one
warm-up each, and the ratio is the median of the ratios of neighbours, so that a machine whose speed drifts does not
tilt it. If the results do not agree, no ratio is printed and the exit code is 1.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One way of doing the work. `run` does it once and returns what the two sides must agree on, with `seconds`: a
    side times itself, since what lies around its work (a process's start, a pipe) is not the work."""

    name: str
    run: Callable[[], Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Whether the sides computed the same, and how that was decided: "identical", or within which tolerance."""

    holds: bool
    how: str


def compare(
    name: str,
    *,
    ours: Side,
    theirs: Side,
    agree: Callable[[Any, Any], Agreement],
    rounds: int,
    facts: Callable[[], Mapping[str, Any]] = dict,
) -> None:
    """Time both sides, print the table and the JSON line; `facts` adds what the benchmark knows besides. Exits 1
    when the sides disagree."""
    agreement = agree(ours.run(), theirs.run())  # the warm-up
    if not agreement.holds:
        print(f"{name}: no ratio: the results do not agree ({agreement.how})", file=sys.stderr)
        raise SystemExit(1)
    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(rounds):
        for key, side in (("ours", ours), ("theirs", theirs)):
            seconds[key].append(side.run()["seconds"])
    ratios = [slow / fast for fast, slow in zip(seconds["ours"], seconds["theirs"], strict=True)]
    table = Table(title=f"bench {name}", title_justify="left")
    for column in ("side", "median s", "min s", "max s"):
        table.add_column(column, justify="left" if column == "side" else "right")
    for key, side in (("ours", ours), ("theirs", theirs)):
        values = seconds[key]
        table.add_row(side.name, *(f"{value:.3f}" for value in (statistics.median(values), min(values), max(values))))
    console = Console()
    console.print(table)
    ratio = statistics.median(ratios)
    console.print(f"{ratio:.2f} times faster ({min(ratios):.2f} to {max(ratios):.2f}); results: {agreement.how}")
    more = facts()
    for key, value in more.items():
        console.print(f"{key}: {value}", highlight=False)
    print(
        json.dumps(
            {
                "benchmark": name,
                "ratio": ratio,
                "ratio_min": min(ratios),
                "ratio_max": max(ratios),
                "ours_s": statistics.median(seconds["ours"]),
                "theirs_s": statistics.median(seconds["theirs"]),
                "rounds": rounds,
                "agreement": agreement.how,
                **more,
            }
        )
    )
