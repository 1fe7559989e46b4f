"""The report of a run directory: every table as CSV, and one self-contained page.

    paths = write_report(Path("runs/demo"))
    paths.page        # RUN/report/index.html

Everything is rebuilt from RUN/records alone; RUN/items adds questions, passages and clusters, RUN/verdicts
the judgements of matcher models, RUN/run.json provenance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from evaluator.metrics import Inputs, compute_tables, headline_of, left_out, reduce_records, reference
from evaluator.report.embed import ItemView
from evaluator.report.page import render_page
from evaluator.store.files import write_atomically
from evaluator.store.reading import frames, read_items, read_run, read_verdicts, record_parts

Progress = Callable[[str, int, int], None]  # what, done, of how many


@dataclass(frozen=True, eq=False)
class ReportPaths:
    """What was written, and the headline that the command line prints."""

    page: Path
    tables: Mapping[str, Path]
    headline: pd.DataFrame


def write_report(run_dir: Path, *, progress: Progress | None = None) -> ReportPaths:
    """Rebuild RUN/tables and RUN/report from RUN/records. Raises InputError when there are no readable records.

    Records are read one checkpoint and task at a time; only item-level outcomes and packed outputs stay in memory.
    """
    tell = progress or (lambda what, done, total: None)
    parts = record_parts(run_dir)
    view, outcomes = ItemView(), []
    for done, frame in enumerate(frames(parts), start=1):
        outcomes.append(reduce_records(frame))
        view.add(frame)
        tell("reading records", done, len(parts))
    inputs = Inputs(pd.concat(outcomes, ignore_index=True), read_items(run_dir), read_verdicts(run_dir))
    tables = compute_tables(inputs.outcomes, inputs.items, inputs.verdicts)
    run = read_run(run_dir)
    computed = {name: table.frame for name, table in tables.items()}
    headline, paper = headline_of(computed), reference(computed, run)
    missing = left_out(inputs)
    files = {"headline": headline, **computed}
    files |= {name: frame for name, frame in (("left_out", missing), ("reference", paper)) if not frame.empty}
    written = {}
    for done, (name, frame) in enumerate(files.items(), start=1):
        written[name] = run_dir / "tables" / f"{name}.csv"
        write_atomically(written[name], frame.to_csv(index=False).encode())
        tell("writing tables", done, len(files))
    page = run_dir / "report" / "index.html"
    html = render_page(
        name=run_dir.resolve().name,
        run=run,
        tables=tables,
        headline=headline,
        paper=paper,
        left_out=missing,
        index=view.index(inputs, inputs.items),
        chunks=view.chunks,
    )
    write_atomically(page, html.encode())
    tell("writing the page", 1, 1)
    return ReportPaths(page, written, headline)
