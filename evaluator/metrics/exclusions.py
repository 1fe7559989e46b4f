"""How many items were measured, how many were not, and why.

The table counts the items that were not measured, by checkpoint, task, format, probe,
language, status and reason. Every other table counts its exclusions and failures; this
one names them. The reason is the record's own text.
"""

import numpy as np
import pandas as pd

import evaluator.metrics.columns as col
from evaluator.metrics.columns import Row, typed_frame
from evaluator.metrics.inputs import Inputs, slices
from evaluator.probes import PROBES
from evaluator.probes.base import EVIDENCE
from evaluator.store.outcomes import MEASURED

NO_REASON = "the records do not say why"
# of an outcome on either side, for agreement beyond chance: with fewer, one item
# decides it
LEAST = 5
STATUSES = ("excluded", "engine_error")


def measured(
    items: pd.DataFrame, *probes: str, nothing: str = "no item was measured"
) -> tuple[pd.DataFrame, Row]:
    """The items that all these probes measured; n, excluded (by any) and
    engine_error; `nothing`: why n is 0."""
    names = [f"{probe}_status" for probe in probes]
    status = [items[name] for name in names]
    keep = np.logical_and.reduce([each.isin(MEASURED).to_numpy() for each in status])
    done = items if keep.all() else items[keep]
    excluded, failed = (
        np.logical_or.reduce([(each == name).to_numpy() for each in status])
        for name in STATUSES
    )
    counts = {
        "n": len(done),
        "excluded": int(excluded.sum()),
        "engine_error": int((failed & ~excluded).sum()),
    }
    return done, counts | {
        "reason": joined_reasons(
            None if len(done) else nothing, why_left_out(items, *names)
        )
    }


def left_out_of(status: pd.Series) -> Row:
    """How many items were excluded, and on how many the engine failed, by one
    probe's status column."""
    return {name: int((status == name).sum()) for name in STATUSES}


def why_left_out(items: pd.DataFrame, *columns: str) -> str | None:
    """`3 excluded (reason); 1 failed (message)`, most frequent first, of the
    statuses in `columns`; an item once."""
    reasons_given: list[str] = []
    counted = np.zeros(len(items), dtype=bool)
    for status, word in zip(STATUSES, ("excluded", "failed"), strict=True):
        left_out = np.zeros(len(items), dtype=bool)
        why = pd.Series(None, index=items.index, dtype=object)
        for column in columns:
            here = (items[column] == status).to_numpy(bool)
            if here.any():
                why = why.where(
                    why.notna() | ~here, items[column.replace("_status", "_why")]
                )
                left_out |= here
        reasons = why[left_out & ~counted].fillna(NO_REASON).value_counts(sort=False)
        counted |= left_out
        for reason, count in sorted(
            reasons.items(), key=lambda each: (-each[1], str(each[0]))
        ):
            reasons_given.append(f"{count} {word} ({reason})")
    return "; ".join(reasons_given) or None


def joined_reasons(*reasons: str | None) -> str | None:
    return "; ".join(dict.fromkeys(reason for reason in reasons if reason)) or None


COLUMNS = (
    *col.TEXT("task", "checkpoint", "format", "probe", "language", "status"),
    *col.COUNT("n", "asked"),
    col.REASON,
)


def left_out(inputs: Inputs) -> pd.DataFrame:
    """The table: pooled rows first, for each status the most frequent reason first;
    empty if nothing is left out.

    `n` counts items, or windows of a text, out of those `asked`; of samples, under the
    run's own seed.
    """
    rows: list[Row] = []
    for subject in [*inputs.checkpoints, *inputs.readers]:
        for format in inputs.formats:
            answers = inputs.outcomes_of(subject.checkpoint, subject.task, format)
            for probe in sorted(
                PROBES, key=lambda probe: EVIDENCE.index(probe.evidence)
            ):
                name = f"{probe.name}_status"
                asked = answers[answers[name].notna()]
                if not asked[name].isin(STATUSES).any():
                    continue
                row = {
                    "task": subject.task,
                    "checkpoint": subject.checkpoint,
                    "format": format,
                    "probe": probe.name,
                }
                for language, items in slices(asked, inputs.languages(subject.task)):
                    found: list[Row] = []
                    for status in STATUSES:
                        given = (
                            items.loc[items[name] == status, f"{probe.name}_why"]
                            .fillna(NO_REASON)
                            .value_counts()
                        )
                        found += [
                            {"status": status, "reason": why, "n": given[why]}
                            for why in sorted(given.index)
                        ]
                    found.sort(key=lambda each: -int(each["n"]))
                    rows += [
                        row | {"language": language, "asked": len(items)} | each
                        for each in found
                    ]
    return typed_frame(COLUMNS, rows)
