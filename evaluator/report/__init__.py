"""The report of a run directory: every table as CSV, and one self-contained page.

    report = write_report(Path("runs/demo"))
    report.page        # RUN/report/index.html

RUN/records is enough to rebuild the report. RUN/items adds questions, passages and
clusters. RUN/verdicts and RUN/controls add the judgements of matcher models, and
RUN/run.json adds provenance."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pandas as pd

from evaluator.core.files import csv_bytes, need_unfenced, write_atomically
from evaluator.metrics import Inputs, Outcomes, reduce_records
from evaluator.report.embed import ItemView
from evaluator.report.figures import draw_each
from evaluator.report.page import render_page, standalone
from evaluator.report.results import Results, compute, pages_of, part_of, without_tables
from evaluator.store.reading import (
    read_items,
    read_records,
    read_run,
    read_verdicts,
    record_parts,
)
from evaluator.store.run_json import failure_frame, failures_of
from evaluator.store.verdicts import read_controls, read_fit_only


@dataclass(frozen=True, eq=False)
class Report:
    """The written files, and the numbers in them."""

    page: Path
    tables: Mapping[str, Path]
    results: Results


def write_report(run_dir: Path) -> Report:
    """Rebuild RUN/tables and RUN/report from RUN/records. Raises InputError if there
    are no readable records.

    The function reads records one checkpoint and task at a time and writes their
    outcomes to RUN/outcomes, where the tables read them. Packed outputs and rows of
    tables stay in memory."""
    view = ItemView()
    inputs = read_inputs(run_dir, view, outcomes=run_dir / "outcomes")
    run = inputs.run
    results = compute(inputs, run)
    failures = failures_of(run)
    # An earlier call wrote these files from other records.
    for name in [*results.failures, *([] if failures else ["failures"])]:
        need_unfenced(run_dir)
        (run_dir / "tables" / f"{name}.csv").unlink(missing_ok=True)
    written = {}
    tables = results.files | ({"failures": failure_frame(failures)} if failures else {})
    for name, frame in tables.items():
        written[name] = run_dir / "tables" / f"{name}.csv"
        write_atomically(written[name], csv_bytes(frame))
    return Report(_write_pages(run_dir, inputs, results, view), written, results)


def _write_pages(
    run_dir: Path, inputs: Inputs, results: Results, view: ItemView
) -> Path:
    """Write one page, or an index and several pages of some checkpoints each;
    returns the file to open first."""
    name, run, folder = run_dir.resolve().name, inputs.run, run_dir / "report"
    pages = pages_of(inputs, view.sizes)
    if pages:
        # the index has the rest
        said = {key: value for key, value in run.items() if key == "provenance"}
        for done, page in enumerate(pages, start=1):
            names = page.checkpoints
            index, chunks = (
                view.index(inputs, inputs.items, names),
                view.chunks_of(names),
            )
            html = render_page(
                f"{name} {done}",
                said,
                part_of(results, names),
                index,
                chunks,
                home="../index.html",
            )
            write_atomically(folder / page.path, html.encode())
        html = render_page(name, run, without_tables(results), "", {}, pages=pages)
    else:
        html = render_page(
            name, run, results, view.index(inputs, inputs.items), view.chunks
        )
    write_atomically(folder / "index.html", html.encode())
    for stale in {*(folder / "pages").glob("*.html")} - {
        folder / page.path for page in pages
    }:
        need_unfenced(run_dir)
        stale.unlink(missing_ok=True)  # another report may be built at the same time
    return folder / "index.html"


def write_part(run_dir: Path, checkpoints: Collection[str], folder: Path) -> Results:
    """Write the tables and figures of some checkpoints into `folder`, outside the
    run. Raises InputError like `write_report`."""
    inputs = read_inputs(run_dir, only=checkpoints)
    results = compute(inputs, inputs.run)
    for name, frame in results.files.items():
        write_atomically(folder / "tables" / f"{name}.csv", csv_bytes(frame))
    for name, table in results.tables.items():
        for number, figure in enumerate(
            [] if table.note else draw_each(table.table, table.shown)
        ):
            file = f"{name}-{number}.svg" if number else f"{name}.svg"
            write_atomically(folder / "figures" / file, standalone(figure).encode())
    return results


def read_inputs(
    run_dir: Path,
    view: ItemView | None = None,
    *,
    only: Collection[str] | None = None,
    outcomes: Path | None = None,
) -> Inputs:
    """The inputs of a run's tables. Raises InputError like `write_report`.

    `view` collects the records that are read. `only`: the checkpoints to read.
    `outcomes`: a folder for one file of outcomes per checkpoint; without it,
    outcomes stay in memory."""
    parts, found = record_parts(run_dir), Outcomes()
    if only is not None:
        parts = [part for part in parts if part[0].parent.parent.name in only]
    written = set()
    for checkpoint, group in groupby(
        parts, key=lambda part: part[0].parent.parent.name
    ):
        reduced = []
        for paths in group:
            records = read_records(paths)
            reduced.append(reduce_records(records))
            if view is not None and len(records):
                view.add(records)
        path = None if outcomes is None else outcomes / f"{checkpoint}.parquet"
        found.add(pd.concat(reduced, ignore_index=True), path)
        written.add(path)
    for stale in (
        set(outcomes.glob("*.parquet")) - written if outcomes is not None else ()
    ):
        need_unfenced(run_dir)
        stale.unlink(missing_ok=True)
    items, verdicts = read_items(run_dir), read_verdicts(run_dir)
    controls, fit_only = read_controls(run_dir), read_fit_only(run_dir)
    return Inputs(found, items, verdicts, read_run(run_dir), controls, fit_only)
