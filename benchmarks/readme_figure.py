"""A figure of a run as a file of its own, for the README: `python -m benchmarks.readme_figure RUN TABLE OUT.svg`.

The report's figures take their colours from the page's style sheet; here the light theme's values are written in.
"""

from __future__ import annotations

import re
import sys
from importlib.resources import files
from pathlib import Path

import pandas as pd

from evaluator.report.figures import draw


def standalone(svg: str, css: str) -> str:
    """`svg` with the first value that `css` gives each property written in, on white."""
    values: dict[str, str] = {}
    for name, value in re.findall(r"(--[a-z0-9-]+):\s*([^;]+);", css):
        values.setdefault(name, value)  # the light theme comes first
    painted = re.sub(r"var\((--[a-z0-9-]+)\)", lambda match: values[match[1]].replace('"', "'"), svg)
    return re.sub(r"<svg ", '<svg style="background: white" ', painted, count=1)


def main() -> None:
    run, table, out = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    svg = draw(table, pd.read_csv(run / "tables" / f"{table}.csv"))
    if svg is None:
        raise SystemExit(f"{run}: the table {table!r} has nothing to draw")
    css = (files("evaluator.report") / "page.css").read_text(encoding="utf-8")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(standalone(svg, css), encoding="utf-8")


if __name__ == "__main__":
    main()
