"""Two ways of doing the same work, timed in turn: what a benchmark here is.

    compare("score", ours=..., theirs=..., rounds=5, agree=...)

prints a table and, as its last line, JSON with a `ratio`. After one warm-up each, the sides run in turn (ours, theirs,
ours, ...). The ratio is the median of the ratios of neighbours: a machine whose speed drifts does not tilt it. If the
results do not agree, no ratio is printed and the exit code is 1.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One way of doing the work. `run` does it once and returns what the two sides must agree on, and `seconds`. A side
    times itself: the start of its process and the pipe to it are not part of the work."""

    name: str
    run: Callable[[], Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Whether the sides computed the same; `how` names the criterion, such as the tolerance."""

    holds: bool
    how: str


def lacking(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """Which keys one side has and the other lacks, in words; empty where both have the same."""
    parts = []
    for side, own, other in (("ours", ours, theirs), ("theirs", theirs, ours)):
        missing = [key for key in other if key not in own]
        if missing:
            parts.append(f"{side} lacks {len(missing)} of {len(other)} answers, the first of {missing[0]}")
    return "; ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another program beside the two sides. `agree` compares our result with its own; `facts` adds what it reports of
    itself after the rounds. Where it does less than the two sides do, `ours` is our side doing that much."""

    side: Side
    ours: Side | None = None
    agree: Callable[[Any, Any], Agreement]
    facts: Callable[[], Mapping[str, Any]]


def compare(
    name: str,
    *,
    ours: Side,
    theirs: Side,
    agree: Callable[[Any, Any], Agreement],
    rounds: int,
    facts: Callable[[], Mapping[str, Any]] = dict,
    peer: Peer | None = None,
) -> None:
    """Time both sides, and a peer if there is one; print the table and the JSON line. `facts` adds to the latter.

    Raises SystemExit with code 1 if any of them disagrees with ours.
    """
    sides = {"ours": ours, "theirs": theirs}
    if peer is not None:
        sides |= {"peer": peer.side} | ({} if peer.ours is None else {"ours_for_peer": peer.ours})
    results = {key: side.run() for key, side in sides.items()}  # the warm-up
    agreement = _held(name, agree(results["ours"], results["theirs"]))
    peer_key = "ours_for_peer" if "ours_for_peer" in sides else "ours"  # what the peer is compared with
    beside = None if peer is None else _held(name, peer.agree(results[peer_key], results["peer"]))
    seconds: dict[str, list[float]] = {key: [] for key in sides}
    for _ in range(rounds):
        for key, side in sides.items():
            seconds[key].append(side.run()["seconds"])
    ratios = _ratios(seconds["ours"], seconds["theirs"])
    table = Table(title=f"bench {name}", title_justify="left")
    for column in ("side", "median s", "min s", "max s"):
        table.add_column(column, justify="left" if column == "side" else "right")
    for key, side in sides.items():
        values = seconds[key]
        table.add_row(side.name, *(f"{value:.3f}" for value in (statistics.median(values), min(values), max(values))))
    console = Console()
    console.print(table)
    ratio = statistics.median(ratios)
    console.print(f"{ratio:.2f} times faster ({min(ratios):.2f} to {max(ratios):.2f}); results: {agreement.how}")
    more = dict(facts())
    if peer is not None and beside is not None:
        against = _ratios(seconds[peer_key], seconds["peer"])
        more["peer"] = {
            "name": peer.side.name,
            "ratio": statistics.median(against),
            "ratio_min": min(against),
            "ratio_max": max(against),
            "ours_s": statistics.median(seconds[peer_key]),
            "theirs_s": statistics.median(seconds["peer"]),
            "agreement": beside.how,
            **peer.facts(),
        }
        spread = f"({min(against):.2f} to {max(against):.2f})"
        console.print(
            f"{sides[peer_key].name}: {statistics.median(against):.2f} times faster than {peer.side.name} {spread}; "
            f"results: {beside.how}"
        )
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


def _held(name: str, agreement: Agreement) -> Agreement:
    """The agreement, if it holds. Raises SystemExit with code 1 otherwise."""
    if not agreement.holds:
        print(f"{name}: no ratio: the results do not agree ({agreement.how})", file=sys.stderr)
        raise SystemExit(1)
    return agreement


def _ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """How many times faster ours was, round by round."""
    return [slow / fast for fast, slow in zip(ours, theirs, strict=True)]
