"""The table of the items that were not measured, by checkpoint, task, format, probe,
language, status and reason.

Every other table counts its exclusions and failures; this one names them. The reason
is the record's own text.
"""

from collections import Counter
from collections.abc import Iterator

import pandas as pd

from evaluator.metrics.columns import COUNT, REASON, TEXT, Row, typed_frame
from evaluator.metrics.inputs import Inputs, Part
from evaluator.metrics.items import NO_REASON, STATUSES
from evaluator.probes import PROBES
from evaluator.probes.base import EVIDENCE

COLUMNS = (
    *TEXT("task", "checkpoint", "format", "probe", "language", "status"),
    *COUNT("n", "asked"),
    REASON,
)


def left_out(inputs: Inputs) -> pd.DataFrame:
    """The table: pooled rows first, for each status the most frequent reason first;
    empty if nothing is left out.

    `n` counts items, or windows of a text, out of those `asked`; of samples, with
    all of their seeds.
    """
    return typed_frame(COLUMNS, _rows(inputs))


def _rows(inputs: Inputs) -> Iterator[Row]:
    probes = sorted(PROBES, key=lambda probe: EVIDENCE.index(probe.evidence))
    for subject in (*inputs.checkpoints, *inputs.readers):
        for format in inputs.formats:
            items = inputs.of(subject, format)
            for probe in probes:
                if any(items.left_out(f"{probe.name}_status").values()):
                    for part in inputs.parts(subject, format):
                        for row in _reasons(part, probe.name):
                            yield row | {"format": format, "probe": probe.name}


def _reasons(part: Part, probe: str) -> list[Row]:
    rows: list[Row] = []
    asked = int(part.items.has(f"{probe}_status").sum())
    for status in STATUSES:
        whys = part.items[f"{probe}_why"][part.items[f"{probe}_status"] == status]
        reasons = Counter(why or NO_REASON for why in whys)
        for reason in sorted(reasons):
            row = {name: part.row[name] for name in ("task", "checkpoint", "language")}
            row |= {"status": status, "n": reasons[reason], "reason": reason}
            rows.append(row | {"asked": asked})
    return sorted(rows, key=lambda row: -row["n"])
