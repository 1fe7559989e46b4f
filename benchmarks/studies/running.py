"""Runs the sweep of a study, and draws its figure."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import yaml

from evaluator import open_run
from evaluator.core.errors import InputError, Json
from evaluator.core.files import write_atomically
from evaluator.metrics.items import ALL
from evaluator.metrics.table import Dots
from evaluator.report.figures import draw_panels
from evaluator.report.notebook import OpenRun
from evaluator.report.page import standalone


def finished(sweep: Json, out: Path) -> OpenRun:
    """The run `out` of a sweep, which is written beside it. The same call resumes.

    Raises InputError if the run has not ended."""
    file = out.with_suffix(".yaml")
    write_atomically(file, yaml.safe_dump(sweep, sort_keys=False).encode())
    command = [sys.executable, "-m", "launch.commands.cli", "sweep", str(file)]
    # 3: a checkpoint failed, and the others are there
    if subprocess.run([*command, "--out", str(out)]).returncode not in (0, 3):
        raise InputError(f"{out}: the run is not finished: repeat the command")
    return open_run(out)


def drawn(panel: Dots, rows: pd.DataFrame, name: str) -> str:
    """A panel as SVG: a row for each `checkpoint` of the frame."""
    rows = rows.assign(task="", language=ALL)
    return standalone(draw_panels([panel], rows, name, panel.title) or "")
