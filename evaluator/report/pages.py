"""Which checkpoints share a page.

A run with few checkpoints has one page. A larger run has an index and several pages, so that each page opens quickly.
Each of these shows some checkpoints and their base. All numbers are computed over the whole run: a page shows a part of
them, and tables/*.csv has all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from evaluator.deciding.results import Results
from evaluator.metrics import Inputs

MOST = 24  # checkpoints on a page, without their base
BYTES = 24 * 2**20  # of answers on a page; a single checkpoint may have more


@dataclass(frozen=True, slots=True)
class Page:
    """Some checkpoints of a run; `path` is relative to the report's folder."""

    path: str
    checkpoints: tuple[str, ...]


def pages_of(inputs: Inputs, sizes: Mapping[str, int]) -> list[Page]:
    """The pages of an index; none if one page shows everything. `sizes`: bytes of each checkpoint's answers."""
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
    """Groups of names that each fit on a page. A group has at least one name."""
    group: list[str] = []
    for name in names:
        if group and (len(group) == MOST or sum(sizes.get(each, 0) for each in (*group, name)) > most):
            yield group
            group = []
        group.append(name)
    if group:
        yield group


def part_of(results: Results, checkpoints: Collection[str]) -> Results:
    """The results on a page of some checkpoints."""
    return Results(
        tables={name: replace(each, frame=_rows_of(each.frame, checkpoints)) for name, each in results.tables.items()},
        headline=_rows_of(results.headline, checkpoints),
        left_out=_rows_of(results.left_out, checkpoints),
        paper=_rows_of(results.paper, checkpoints),
        verdicts=[each for each in results.verdicts if each.checkpoint in checkpoints],
        screened=results.screened,
    )


def without_tables(results: Results) -> Results:
    """The results on the index: the headline and the verdicts."""
    return replace(results, tables={}, left_out=results.left_out.iloc[:0], paper=results.paper.iloc[:0])


def _rows_of(frame: pd.DataFrame, checkpoints: Collection[str]) -> pd.DataFrame:
    """The rows of a frame that name only these checkpoints."""
    kept = pd.Series(True, index=frame.index)
    for name in ("checkpoint", "other"):
        if name in frame:
            kept &= frame[name].isna() | frame[name].isin(list(checkpoints))
    return frame[kept].reset_index(drop=True)
