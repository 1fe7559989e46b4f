"""A figure of a run as a file for the README: `python -m benchmarks.readme_figure RUN TABLE OUT.svg`.

The report's figures take their colours from the page's style sheet; in the file they are written in.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from evaluator.metrics import TABLES
from evaluator.report.figures import draw
from evaluator.report.page import standalone


def main() -> None:
    run, table, out = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    svg = draw(TABLES[table], pd.read_csv(run / "tables" / f"{table}.csv"))
    if svg is None:
        raise SystemExit(f"{run}: the table {table!r} has nothing to draw")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(standalone(svg), encoding="utf-8")


if __name__ == "__main__":
    main()
