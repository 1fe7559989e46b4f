"""How many items were measured, how many were not, and why.

The table counts the items that were not measured, by checkpoint, task, format, probe, language, status and reason.
Every other table counts its exclusions and failures; this one names them. The reason is the record's own text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from evaluator.metrics.columns import COUNT, REASON, TEXT, Row, columns_of, typed_frame
from evaluator.metrics.inputs import Inputs, slices
from evaluator.probes import PROBES
from evaluator.probes.base import EVIDENCE
from evaluator.store.outcomes import MEASURED

NO_REASON = "the records do not say why"
LEAST = 5  # of an outcome on either side, for agreement beyond chance: with fewer, one item decides it


def measured(items: pd.DataFrame, *probes: str, nothing: str = "no item was measured") -> tuple[pd.DataFrame, Row]:
    """The items on which all these probes were measured; and n, excluded and engine_error with the reasons.

    An item is excluded if any of the probes is, and failed if none is excluded and any failed. `nothing` is the reason
    for an n of 0. `probes` are as in `why_left_out`.
    """
    status = [items[_column(probe, "status")] for probe in probes]
    keep = np.logical_and.reduce([each.isin(MEASURED).to_numpy() for each in status])
    done = items if keep.all() else items[keep]
    excluded, failed = (_any_is(status, name) for name in ("excluded", "engine_error"))
    failed &= ~excluded
    counts = {"n": len(done), "excluded": int(excluded.sum()), "engine_error": int(failed.sum())}
    return done, counts | {"reason": joined_reasons(None if len(done) else nothing, why_left_out(items, *probes))}


def left_out_of(status: pd.Series) -> Row:
    """How many items were excluded, and on how many the engine failed, by one probe's status column."""
    return {name: int((status == name).sum()) for name in ("excluded", "engine_error")}


def why_left_out(items: pd.DataFrame, *probes: str) -> str | None:
    """Why items were not measured, the most frequent reason first: `3 excluded (reason); 1 failed (message)`.

    `probes` are names of probes, or of one side of a pair: `greedy:_dense`. An item counts once.
    """
    reasons_given: list[str] = []
    counted = np.zeros(len(items), dtype=bool)
    statuses = [items[_column(probe, "status")] for probe in probes]
    for status, word in (("excluded", "excluded"), ("engine_error", "failed")):
        left_out = _any_is(statuses, status)
        if not left_out.any():
            continue
        why = pd.Series(None, index=items.index, dtype=object)
        for probe, each in zip(probes, statuses, strict=True):
            here = (each == status).to_numpy()
            why = why.where(why.notna() | ~here, items[_column(probe, "why")])
        reasons = why[left_out & ~counted].fillna(NO_REASON).value_counts(sort=False)
        counted |= left_out
        for reason, count in sorted(reasons.items(), key=lambda each: (-each[1], str(each[0]))):
            reasons_given.append(f"{count} {word} ({reason})")
    return "; ".join(reasons_given) or None


def _any_is(statuses: Sequence[pd.Series], status: str) -> npt.NDArray[np.bool_]:
    """The items on which any of several probes has this status."""
    return np.asarray(np.logical_or.reduce([(each == status).to_numpy(bool) for each in statuses]))


def joined_reasons(*reasons: str | None) -> str | None:
    """Several reasons as one text, each once; None without any."""
    return "; ".join(dict.fromkeys(reason for reason in reasons if reason)) or None


def _column(probe: str, what: str) -> str:
    name, _, side = probe.partition(":")
    return f"{name}_{what}{side}"


COLUMNS = (
    *columns_of(TEXT, "task", "checkpoint", "format", "probe", "language", "status"),
    *columns_of(COUNT, "n", "asked"),
    REASON,
)
_STATUSES = ("excluded", "engine_error")


def left_out(inputs: Inputs) -> pd.DataFrame:
    """The table, pooled rows before those of single languages; empty if every probe was measured on every item.

    `n` counts items, or windows of a text, out of those `asked`. For samples, these are the items of the run's own
    seed.
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
