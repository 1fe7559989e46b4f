"""What a night has found: a card of each step, and the summary of all."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from benchmarks.gpu.steps import VARIANTS
from launch.doctor.machine import Machine


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """How one step ended; `reason`: why it did not pass; `result`: the line of JSON that it printed."""

    step: str
    state: Literal["passed", "failed", "timed out", "skipped"]
    reason: str | None = None
    seconds: float = 0.0
    return_code: int | None = None
    command: Sequence[str] = ()
    last_lines: Sequence[str] = ()
    result: Mapping[str, Any] | None = None


def read(out: Path, names: Sequence[str]) -> dict[str, Card]:
    """The cards that lie in `out`, by step; a file that is no card counts as none."""
    found = {}
    for name in names:
        with contextlib.suppress(OSError, ValueError, TypeError):
            found[name] = Card(**json.loads((out / f"{name}.json").read_bytes()))
    return found


def markdown(machine: Machine, names: Sequence[str], cards: Mapping[str, Card]) -> str:
    """The summary: the machine, then a row of each step."""
    lines = [f"# {machine.gpus[0].name if machine.gpus else 'No GPU'}: a night", "", "| machine | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in machine.lines()]
    lines += ["", "| step | state | seconds | result |", "|---|---|---|---|"]
    for name in names:
        card = cards.get(name)
        row = ("not run", "", "") if card is None else (card.state, f"{card.seconds:.0f}", said(card, cards))
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in (name, *row)) + " |")
    return "\n".join([*lines, ""])


def said(card: Card, cards: Mapping[str, Card]) -> str:
    """What a step measured, or why it did not pass."""
    found = card.result or {}
    if card.state != "passed":
        return card.reason or ""
    if "ours_s" in found:
        ratio = "ratio {ratio:.2f} ({ratio_min:.2f}-{ratio_max:.2f})".format(**found)
        times = "ours {ours_s:.2f} s, theirs {theirs_s:.2f} s".format(**found)
        return f"{times}, {ratio}{_beside_default(card, cards)}; {found['agreement']}"
    if found.get("benchmark") == "prune":
        return "; ".join("{method} {seconds:.1f} s, peak {peak_gib:.1f} GiB".format(**row) for row in found["rows"])
    if "waited_share" in found:
        return "{waited_share:.1%} of the steps waited; {handling_ms:.2f} ms of processor time a step".format(**found)
    return str(found.get("verdict") or (card.last_lines[-1] if card.last_lines else ""))


def _beside_default(card: Card, cards: Mapping[str, Card]) -> str:
    """How long a pass took, beside the one with default settings."""
    default = cards.get(next(iter(VARIANTS)))
    if default is None or default.step == card.step or card.step not in VARIANTS or default.state != "passed":
        return ""
    assert card.result is not None
    assert default.result is not None
    return f", {card.result['ours_s'] / default.result['ours_s']:.2f} times as long as {default.step}"
