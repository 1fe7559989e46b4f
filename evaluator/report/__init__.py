"""The report of a run directory: every table with rows as CSV, and one self-contained
page.

    report = write_report(Path("runs/demo"))
    report.page        # RUN/report/index.html

RUN/records is enough to rebuild the report. RUN/items adds questions, passages and
clusters. RUN/verdicts adds the judgements of matcher models, and RUN/run.json adds
provenance."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa

from evaluator.core.errors import PLUGIN, Json, json_text, mapping_at
from evaluator.core.files import (
    csv_bytes,
    need_unfenced,
    write_atomically,
    write_parquet,
)
from evaluator.deciding.policy import policy_for
from evaluator.deciding.verdict_text import document
from evaluator.metrics import Inputs, Outcomes
from evaluator.metrics.tables import Tell, untold
from evaluator.probes import PROBES
from evaluator.report.item_view import ItemView
from evaluator.report.page import render_page
from evaluator.report.results import Results, compute, pages_of, part_of, without_tables
from evaluator.store.outcomes import reduce_parts
from evaluator.store.reading import (
    Asked,
    cell_parts,
    read_controls,
    read_items,
    read_records,
    read_verdicts,
)
from evaluator.store.run_json import (
    failure_frame,
    failures_of,
    need_own_folders,
    read_run,
)
from evaluator.store.schema import NUMBERS


@dataclass(frozen=True, eq=False)
class Report:
    """The written files, and the numbers in them."""

    page: Path
    tables: Mapping[str, Path]
    results: Results
    notes: Sequence[str] = ()  # on what it does not count or write


def write_report(
    run_dir: Path,
    tell: Tell = untold,
    inputs: Inputs | None = None,
    view: ItemView | None = None,
) -> Report:
    """Rebuild RUN/tables and RUN/report from RUN/records. Raises InputError if there
    are no readable records, or a folder is a link to one outside the run.

    `tell` gets the name of each step before it begins. `inputs` and `view`: of this
    run, if both were read before.

    The function reads records some checkpoints and tasks at a time and writes their
    outcomes to RUN/outcomes, where the tables read them. Packed outputs and rows of
    tables stay in memory."""
    need_own_folders(run_dir)
    if inputs is None or view is None:
        view = ItemView()
        inputs = read_inputs(run_dir, view, outcomes=run_dir / "outcomes", tell=tell)
    run = inputs.run
    results = compute(inputs, policy_for(run_dir, run), tell)
    tables, failures = results.files, failures_of(run)
    if failures:
        tables["failures"] = failure_frame(failures)
    # an earlier call wrote these files from other records
    known = {*results.tables, "headline", "failures", "left_out", "reference"}
    for name in known.difference(tables):
        need_unfenced(run_dir)
        (run_dir / "tables" / f"{name}.csv").unlink(missing_ok=True)
    written = {}
    for name, frame in tables.items():
        written[name] = run_dir / "tables" / f"{name}.csv"
        write_atomically(written[name], csv_bytes(frame))
    numbers = pa.Table.from_pandas(results.numbers, NUMBERS, preserve_index=False)
    write_parquet(numbers, run_dir / "tables" / "numbers.parquet")
    if results.verdicts or (run_dir / "gate.json").is_file():
        judged = results.verdicts, results.policy, results.not_judged
        write_verdicts(run_dir, document(*judged, results.lacking))
    notes = [*inputs.notes]
    for file in sorted(
        {*(run_dir / "tables").glob("*.csv")}.difference(written.values())
    ):
        notes.append(f"{file}: is stale: no table {file.stem!r} is installed")
    tell("page")
    page = _write_pages(run_dir, inputs, results, view)
    return Report(page, written, results, notes)


def write_verdicts(run_dir: Path, told: Json) -> None:
    """Write RUN/gate.json, of `verdict_text.document`."""
    write_atomically(run_dir / "gate.json", json_text(told, indent=2).encode())


def _write_pages(
    run_dir: Path, inputs: Inputs, results: Results, view: ItemView
) -> Path:
    """Write one page, or an index and several pages of some checkpoints each;
    returns the file to open first."""
    name, run, folder = run_dir.resolve().name, inputs.run, run_dir / "report"
    pages = pages_of(inputs, view.sizes)
    if pages:
        # the index has the rest
        provenance = {key: run[key] for key in ("provenance",) if key in run}
        for done, page in enumerate(pages, start=1):
            names = page.checkpoints
            html = render_page(
                f"{name} {done}",
                provenance,
                part_of(results, names),
                view.index(inputs, inputs.items, names),
                view.chunks_of(names),
                home="../index.html",
            )
            write_atomically(folder / page.path, html.encode())
        html = render_page(name, run, without_tables(results), "", {}, pages=pages)
    else:
        index = view.index(inputs, inputs.items)
        html = render_page(name, run, results, index, view.chunks)
    write_atomically(folder / "index.html", html.encode())
    _remove_others(folder / "pages", "*.html", {folder / page.path for page in pages})
    return folder / "index.html"


def _remove_others(
    folder: Path, pattern: str, written: Collection[Path | None]
) -> None:
    """Remove the files of an earlier report."""
    for stale in set(folder.glob(pattern)).difference(written):
        need_unfenced(folder)
        stale.unlink(missing_ok=True)  # another report may be built at the same time


def read_inputs(
    run_dir: Path,
    view: ItemView | None = None,
    *,
    outcomes: Path | None = None,
    tell: Tell = untold,
) -> Inputs:
    """The inputs of a run's tables. Raises InputError like `write_report`.

    `view` collects the records that are read. `outcomes`: a folder for one file of outcomes per checkpoint; without it,
    outcomes stay in memory."""
    written: set[Path | None] = set()
    all_outcomes, strange, notes = Outcomes(), set[str](), list[str]()
    items, run = read_items(run_dir), read_run(run_dir)
    ended = run.get("state") == "finished"

    def records() -> Iterator[tuple[str, pd.DataFrame]]:
        asked = Asked(items, run)
        for cell, paths in cell_parts(run_dir).items():
            tell(f"records of {cell.checkpoint}")
            part = read_records(cell, paths)
            if part.attrs["repeated"]:
                notes.append(
                    f"{paths[0].parent}: parts repeat records: the last counts"
                )
            part = asked.only(part)
            due = mapping_at(run, "planned", cell.checkpoint).get(cell.task)
            found = len(part[["language", "item_id"]].drop_duplicates())
            if ended and isinstance(due, int) and found < due:
                rest = "the run's command evaluates the rest"
                if cell.left_out:
                    rest = "the last sweep does not name it"
                notes.append(
                    f"{paths[0].parent}: {cell.checkpoint} on {cell.task} has records of"
                    f" {found:,} of {due:,} items: {rest}"
                )
            strange.update({*map(str, part["probe"].unique())}.difference(PROBES.names))
            if view is not None and len(part):
                view.add(part)
            yield cell.checkpoint, part

    for checkpoint, reduced in reduce_parts(records()):
        path = None if outcomes is None else outcomes / f"{checkpoint}.parquet"
        all_outcomes.add(reduced, path)
        written.add(path)
    if outcomes is not None:
        _remove_others(outcomes, "*.parquet", written)
    inputs = Inputs(
        all_outcomes, items, read_verdicts(run_dir), run, read_controls(run_dir)
    )
    kept = set() if items is None else {*items["task"]}
    for task in (
        sorted({each.task for each in inputs.checkpoints} - kept) if ended else ()
    ):
        notes.append(
            f"{run_dir / 'items'}: has no {task}.parquet: each of its items counts as a"
            " context of its own, and belongs to no group"
        )
    if strange:
        names = ", ".join(sorted(strange))
        notes.append(
            f"{run_dir}: no number counts the records of {names}: no such probe is"
            f" installed; {PLUGIN}"
        )
    inputs.notes = tuple(notes)
    return inputs
