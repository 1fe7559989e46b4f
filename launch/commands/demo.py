"""`resurface demo`: the bundled model and the bundled questions, from pruning to report."""

from __future__ import annotations

from pathlib import Path

from launch.commands.options import Out
from launch.commands.running import run_and_report
from launch.sweep.config import RECIPES, load_sweep


def demo(out: Out = Path("runs/demo")) -> None:
    """Prune the bundled model five ways, ask the bundled questions, print the headline, write the report."""
    run_and_report(load_sweep(RECIPES / "demo.yaml"), out)
