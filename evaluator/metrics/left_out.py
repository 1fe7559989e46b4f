"""What was not measured, and why: items by checkpoint, task, format, probe, language, status and reason.

Every table counts its exclusions and failures; this one says what they are. The reason is the record's own text.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from evaluator.metrics.columns import COUNT, REASON, TEXT, Row, columns_of, typed_frame
from evaluator.metrics.counting import NO_REASON
from evaluator.metrics.inputs import Inputs, slices
from evaluator.probes import PROBES
from evaluator.probes.base import EVIDENCE

COLUMNS = (
    *columns_of(TEXT, "task", "checkpoint", "format", "probe", "language", "status"),
    *columns_of(COUNT, "n", "asked"),
    REASON,
)
_STATUSES = ("excluded", "engine_error")


def left_out(inputs: Inputs) -> pd.DataFrame:
    """The table, pooled rows before those of single languages; empty where every probe was measured on every item.

    `n` counts items, or windows of a text, out of those that were `asked`; of samples, those of the run's own seed.
    """
    return typed_frame(COLUMNS, _rows(inputs))


def _rows(inputs: Inputs) -> Iterator[Row]:
    probes = [probe.name for probe in sorted(PROBES, key=lambda probe: EVIDENCE.index(probe.evidence))]
    for subject in [*inputs.checkpoints, *inputs.readers]:
        for format in inputs.formats:
            answers = inputs.outcomes_of(subject.checkpoint, subject.task, format)
            for probe in probes:
                asked = answers[answers[f"{probe}_status"].notna()]
                if not asked[f"{probe}_status"].isin(_STATUSES).any():
                    continue
                row = {"task": subject.task, "checkpoint": subject.checkpoint, "format": format, "probe": probe}
                for language, items in slices(asked, inputs.languages(subject.task)):
                    here = row | {"language": language, "asked": len(items)}
                    yield from (here | each for each in _by_reason(items, probe))


def _by_reason(items: pd.DataFrame, probe: str) -> list[Row]:
    """One entry per status and reason, the most frequent first."""
    found: list[Row] = []
    for status in _STATUSES:
        reasons = items.loc[items[f"{probe}_status"] == status, f"{probe}_why"].fillna(NO_REASON).tolist()
        found += [{"status": status, "reason": why, "n": reasons.count(why)} for why in sorted(set(reasons))]
    return sorted(found, key=lambda each: -int(each["n"]))
