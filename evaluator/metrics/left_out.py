"""The table of the items that were not measured, by checkpoint, task, format, probe,
language, status and reason.

Every other table counts its exclusions and failures; this one names them. The reason
is the record's own text.
"""

from collections.abc import Iterator

import pandas as pd

from evaluator.metrics.columns import COUNT, REASON, TEXT, Row, typed_frame
from evaluator.metrics.exclusions import NO_REASON, STATUSES
from evaluator.metrics.inputs import Inputs, Part
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
            answers = inputs.outcomes_of(subject.checkpoint, subject.task, format)
            for probe in probes:
                asked = answers[answers[f"{probe.name}_status"].notna()]
                if asked[f"{probe.name}_status"].isin(STATUSES).any():
                    for part in inputs.parts_of(subject, asked):
                        for row in _reasons(part, probe.name):
                            yield row | {"format": format, "probe": probe.name}


def _reasons(part: Part, probe: str) -> list[Row]:
    rows: list[Row] = []
    for status in STATUSES:
        out = part.items[part.items[f"{probe}_status"] == status]
        reasons = out[f"{probe}_why"].fillna(NO_REASON).value_counts()
        for reason in sorted(reasons.index):
            row = {name: part.row[name] for name in ("task", "checkpoint", "language")}
            row |= {"status": status, "n": reasons[reason], "reason": reason}
            rows.append(row | {"asked": len(part.items)})
    return sorted(rows, key=lambda row: -row["n"])
