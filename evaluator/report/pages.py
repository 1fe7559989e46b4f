"""Which checkpoints share a page. A run of a few has one page for all; one of many has an index, and pages of some
checkpoints each beside their base, so that every page opens at once. Numbers are computed over the whole run: a page
shows a part of them, and tables/*.csv has all."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from evaluator.deciding.results import Results
from evaluator.metrics import Inputs

MOST = 24  # checkpoints on a page, beside their base
BYTES = 24 * 2**20  # of what checkpoints said to the items of a page, if it has several


@dataclass(frozen=True, slots=True)
class Page:
    """Some checkpoints of a run; `path` is relative to the report's folder."""

    path: str
    checkpoints: tuple[str, ...]


def pages_of(inputs: Inputs, sizes: Mapping[str, int]) -> list[Page]:
    """The pages beside the index; none where the index shows everything. `sizes`: bytes of each checkpoint's items."""
    bases: dict[str, str | None] = {}
    for subject in (*inputs.checkpoints, *inputs.readers):
        bases[subject.checkpoint] = bases.get(subject.checkpoint) or subject.base
    if len(bases) <= MOST + 1 and sum(sizes.values()) <= BYTES:
        return []
    groups: list[tuple[str, ...]] = []
    needed = {base for base in bases.values() if base is not None}
    for base in dict.fromkeys(bases.values()):
        beside = [name for name, its in bases.items() if its == base and not (its is None and name in needed)]
        first = () if base is None else (base,)
        groups += [(*first, *names) for names in _fitting(beside, sizes, BYTES - sizes.get(base or "", 0))]
    return [Page(f"pages/{number:03d}.html", names) for number, names in enumerate(groups, start=1)]


def _fitting(names: Sequence[str], sizes: Mapping[str, int], most: int) -> Iterator[list[str]]:
    """In turn, as many as a page takes, and at least one."""
    group: list[str] = []
    for name in names:
        if group and (len(group) == MOST or sum(sizes.get(each, 0) for each in (*group, name)) > most):
            yield group
            group = []
        group.append(name)
    if group:
        yield group


def part_of(results: Results, checkpoints: Collection[str]) -> Results:
    """What a page of some checkpoints shows."""
    return Results(
        tables={name: replace(each, frame=_rows_of(each.frame, checkpoints)) for name, each in results.tables.items()},
        headline=_rows_of(results.headline, checkpoints),
        left_out=_rows_of(results.left_out, checkpoints),
        paper=_rows_of(results.paper, checkpoints),
        verdicts=[each for each in results.verdicts if each.checkpoint in checkpoints],
        screened=results.screened,
    )


def without_tables(results: Results) -> Results:
    """What the index shows: the headline and the verdicts."""
    return replace(results, tables={}, left_out=results.left_out.iloc[:0], paper=results.paper.iloc[:0])


def _rows_of(frame: pd.DataFrame, checkpoints: Collection[str]) -> pd.DataFrame:
    """The rows of a frame that name no other checkpoints than these."""
    kept = pd.Series(True, index=frame.index)
    for name in ("checkpoint", "other"):
        if name in frame:
            kept &= frame[name].isna() | frame[name].isin(list(checkpoints))
    return frame[kept].reset_index(drop=True)
