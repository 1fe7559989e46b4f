"""Which checkpoints share a page. A run of a few has one page for all; one of many has an index, and pages of some
checkpoints each beside their base, so that every page opens at once. Numbers are computed over the whole run: a page
shows a part of them, and tables/*.csv has all."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import pandas as pd

from evaluator.metrics import Inputs, Results

MOST = 24  # checkpoints on a page, beside their base
_NAMING = ("checkpoint", "other")  # columns that name a checkpoint of which a row says something


@dataclass(frozen=True, slots=True)
class Page:
    """Some checkpoints of a run; `path` is relative to the report's folder."""

    path: str
    checkpoints: tuple[str, ...]


def pages_of(inputs: Inputs) -> list[Page]:
    """The pages beside the index; none where the index shows everything."""
    bases: dict[str, str | None] = {}
    for subject in (*inputs.checkpoints, *inputs.readers):
        bases[subject.checkpoint] = bases.get(subject.checkpoint) or subject.base
    if len(bases) <= MOST + 1:
        return []
    groups: list[tuple[str, ...]] = []
    needed = {base for base in bases.values() if base is not None}
    for base in dict.fromkeys(bases.values()):
        beside = [name for name, its in bases.items() if its == base and not (its is None and name in needed)]
        first = () if base is None else (base,)
        groups += [(*first, *beside[start : start + MOST]) for start in range(0, len(beside), MOST)]
    return [Page(f"pages/{number:03d}.html", names) for number, names in enumerate(groups, start=1)]


def part_of(results: Results, checkpoints: Collection[str]) -> Results:
    """What a page of some checkpoints shows."""
    return Results(
        tables={name: replace(table, frame=_rows(table.frame, checkpoints)) for name, table in results.tables.items()},
        headline=_rows(results.headline, checkpoints),
        left_out=_rows(results.left_out, checkpoints),
        paper=_rows(results.paper, checkpoints),
        verdicts=[each for each in results.verdicts if each.checkpoint in checkpoints],
    )


def without_tables(results: Results) -> Results:
    """What the index shows: the headline and the verdicts."""
    return replace(results, tables={}, left_out=results.left_out.iloc[:0], paper=results.paper.iloc[:0])


def _rows(frame: pd.DataFrame, checkpoints: Collection[str]) -> pd.DataFrame:
    kept = pd.Series(True, index=frame.index)
    for name in _NAMING:
        if name in frame:
            kept &= frame[name].isna() | frame[name].isin(list(checkpoints))
    return frame[kept].reset_index(drop=True)
