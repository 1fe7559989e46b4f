"""Table `overlap`: do two checkpoints miss the same items, beyond the overlap that
their accuracies alone explain?

Every pair of checkpoints of a task has kappa = (observed - expected) / (1 - expected):
0 is what chance gives at these accuracies; below 0, they miss different items. There
are two measures of agreement:

error consistency    of open answers and of choices: right and wrong alone (Geirhos et
                     al., NeurIPS 2020, arXiv 2006.16736). With the accuracies a and b:
                     observed = share of items that are right in both or wrong in both
                     expected = a b + (1 - a)(1 - b)
CAPA                 of choices: chance adjusted probabilistic agreement (Goel et al.,
                     "Great Models Think Alike and this Undermines AI Oversight", 2025,
                     arXiv 2502.04313). The softmax of an item's K options gives
                     probabilities p and q. With a and b, the mean probabilities of the
                     gold option: observed = mean over items of sum_k p_k q_k expected =
                     a b + (1 - a)(1 - b) mean(1 / (K - 1))

Complete agreement is 1 in error consistency; CAPA is 1 only if both are certain of
every option. Error consistency is CAPA with the two options right and wrong, one with
probability 1. So one computation serves both. From one shared wrong item, kappa would
be 1: each of the two needs `LEAST` wrong items, and in error consistency `LEAST` right
ones.

In a task with more than `ALL_PAIRS` checkpoints, each is compared with its base and
with its nearest neighbours of the same base, by two orders: method first, then pattern,
sparsity and calibration; and these three first, then method. Every row then has a note
that some pairs are missing.

`among` names the set of items. `all`: the items that both measured. `right in the
base`, for two checkpoints of one base: do both lose the same of these items? Items that
are hard for every model do not count there. If accuracies differ between languages,
pooled items agree by more than chance. Intervals: `evaluator.metrics.bootstrap`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

import evaluator.metrics.columns as col
from evaluator.metrics.bootstrap import intervals
from evaluator.metrics.columns import Column, Row
from evaluator.metrics.exclusions import LEAST, STATUSES, joined_reasons
from evaluator.metrics.fates import CORRECT
from evaluator.metrics.inputs import ALL, Inputs, Subject
from evaluator.metrics.intervals import Floats
from evaluator.metrics.measures import as_floats, bounds
from evaluator.metrics.table import Dots, Series, Table
from evaluator.probes.reducing import unpack_shares
from evaluator.store.outcomes import MEASURED

Flags = npt.NDArray[np.bool_]
# items x options, the gold one first; zeros for unmeasured items
Shares = npt.NDArray[np.float32]

ERRORS, CAPA = "error consistency", "CAPA"
# probe, measure of its agreement
_WAYS = (("greedy", ERRORS), ("choice", ERRORS), ("choice", CAPA))
LOST = "right in the base"
ALL_PAIRS = 100  # the most checkpoints of a task whose pairs are all compared
# with more checkpoints, each is compared with this many next ones in either order
NEAR = 5
_AT_ONCE = 100  # checkpoints to compare with one in one product
_SHOWN = 5  # pairs at either end of a page's table


def beyond_chance(
    observed: Floats, first: Floats, second: Floats, other_options: Floats
) -> Floats:
    """Kappa of two checkpoints with these accuracies; NaN if chance alone explains
    full agreement."""
    expected = expected_agreement(first, second, other_options)
    with np.errstate(invalid="ignore", divide="ignore"):
        kappa = np.where(expected < 1, (observed - expected) / (1 - expected), np.nan)
    # Weighted means in single precision are rounded differently on different
    # processors.
    return np.clip(kappa, -1.0, 1.0)


def expected_agreement(first: Floats, second: Floats, other_options: Floats) -> Floats:
    """The chance agreement of two checkpoints with these accuracies; `other_options`
    is the mean of 1 / (K - 1)."""
    return np.asarray(first * second + (1 - first) * (1 - second) * other_options)


@dataclass(frozen=True, eq=False)
class _Sheet:
    """One checkpoint's answers to one probe, by the items' numbers within the task."""

    subject: Subject
    shares_IK: Shares
    options: npt.NDArray[np.intp]  # how many an item has; 0 if it was not measured
    right: Flags
    measured: Flags
    asked: Flags
    excluded: Flags
    failed: Flags


def _sheet(
    inputs: Inputs, subject: Subject, way: tuple[str, str], items: int
) -> _Sheet:
    probe, measure = way
    answers = inputs.outcomes_of(subject.checkpoint, subject.task)
    answers = answers[answers[f"{probe}_status"].notna()]
    numbers, status = answers["item"].to_numpy(np.intp), answers[f"{probe}_status"]
    measured = status.isin(MEASURED).to_numpy()
    done = answers[measured]
    right = as_floats(done[CORRECT[probe]]) == 1
    if measure == ERRORS:
        found, counts = (
            np.stack([right, ~right], axis=1).astype(np.float32),
            np.full(len(done), 2),
        )
    else:
        found, counts = (
            unpack_shares(done["option_shares"].tolist()),
            as_floats(done["options"]).astype(np.intp),
        )
    shares, options = (
        np.zeros((items, found.shape[1]), dtype=np.float32),
        np.zeros(items, dtype=np.intp),
    )
    shares[numbers[measured]], options[numbers[measured]] = found, counts
    left = [numbers[(status == name).to_numpy()] for name in STATUSES]
    marked = (numbers[measured][right], numbers[measured], numbers, *left)
    return _Sheet(
        subject, shares, options, *(np.isin(np.arange(items), each) for each in marked)
    )


def partners(subjects: Sequence[Subject]) -> list[list[int]]:
    """For each checkpoint of a task, the later ones to compare it with, as places in
    `subjects`."""
    many = len(subjects)
    if many <= ALL_PAIRS:
        return [list(range(at + 1, many)) for at in range(many)]
    place = {subject.checkpoint: at for at, subject in enumerate(subjects)}
    pairs = {
        (place[each.base], at) for at, each in enumerate(subjects) if each.base in place
    }
    of_base: dict[str | None, list[int]] = {}
    for at, subject in enumerate(subjects):
        of_base.setdefault(subject.base, []).append(at)
    keys = [
        (
            each.pattern or "",
            each.requested or 0.0,
            each.calibration or "",
            each.method or "",
        )
        for each in subjects
    ]
    for members in of_base.values():
        by_method = sorted(
            members, key=lambda at: (subjects[at].method or "", keys[at], at)
        )
        for ordered in (by_method, sorted(members, key=lambda at: (keys[at], at))):
            pairs |= {
                (one, other)
                for at, one in enumerate(ordered)
                for other in ordered[at + 1 : at + 1 + NEAR]
            }
    found: list[list[int]] = [[] for _ in subjects]
    for one, other in sorted({(min(pair), max(pair)) for pair in pairs}):
        found[one].append(other)
    return found


def _rows(inputs: Inputs) -> Iterator[Row]:
    for task in dict.fromkeys(subject.task for subject in inputs.checkpoints):
        subjects = [subject for subject in inputs.checkpoints if subject.task == task]
        numbers = [
            inputs.outcomes_of(each.checkpoint, task)["item"] for each in subjects
        ]
        items = 1 + max((int(each.max()) for each in numbers if len(each)), default=-1)
        for way in _WAYS if len(subjects) > 1 else ():
            sheets = [_sheet(inputs, subject, way, items) for subject in subjects]
            sheets = [sheet for sheet in sheets if sheet.asked.any()]
            beside = [
                [sheets[at] for at in found]
                for found in partners([sheet.subject for sheet in sheets])
            ]
            fewer = (
                f"of {len(sheets)} checkpoints, not every pair is compared"
                if len(sheets) > ALL_PAIRS
                else None
            )
            for sheet, others in zip(sheets, beside, strict=True):
                for row in _pairs(inputs, way, sheet, others):
                    yield row | {"reason": joined_reasons(fewer, row["reason"])}
            by_name = {sheet.subject.checkpoint: sheet for sheet in sheets}
            for sheet, others in zip(sheets, beside, strict=True):
                base = by_name.get(sheet.subject.base or "")
                if base is not None:
                    same = [
                        each
                        for each in others
                        if each.subject.base == base.subject.checkpoint
                    ]
                    for row in _pairs(inputs, way, sheet, same, base):
                        yield row | {"reason": joined_reasons(fewer, row["reason"])}


def _pairs(
    inputs: Inputs,
    way: tuple[str, str],
    sheet: _Sheet,
    others: Sequence[_Sheet],
    base: _Sheet | None = None,
) -> Iterator[Row]:
    """A checkpoint and each of others; with `base`, on what that has right. One
    product serves all of equal items."""
    among = base.right if base is not None else np.ones_like(sheet.right)
    together: dict[bytes, list[_Sheet]] = {}
    for other in others:
        together.setdefault(other.measured.tobytes(), []).append(other)
    found: dict[str, Row] = {}
    for same in together.values():
        for start in range(0, len(same), _AT_ONCE):
            group = same[start : start + _AT_ONCE]
            rows = _compared(inputs, sheet, group, among, way[1])
            found |= zip(
                (other.subject.checkpoint for other in group), rows, strict=True
            )
    own = {
        "task": sheet.subject.task,
        "checkpoint": sheet.subject.checkpoint,
        "probe": way[0],
        "measure": way[1],
    }
    own["among"] = ALL if base is None else LOST
    why = inputs.incomparable.get(sheet.subject.key)
    for other in others:
        name, key = other.subject.checkpoint, other.subject.key
        # A row's own checkpoint has the note on few items in every table.
        notes = [
            (name, inputs.decided_early.get(key)),
            (own["checkpoint"], why),
            (name, inputs.incomparable.get(key)),
        ]
        reasons = [f"{who}: {note}" for who, note in notes if note]
        yield {
            **own,
            "other": name,
            **found[name],
            "reason": joined_reasons(*reasons, found[name].get("reason")),
        }


def _compared(
    inputs: Inputs, sheet: _Sheet, others: Sequence[_Sheet], among: Flags, measure: str
) -> Iterator[Row]:
    """A checkpoint and each of `others`, which measured the same items: counts,
    agreement, and kappa."""
    numbers = np.flatnonzero(among & sheet.measured & others[0].measured)
    excluded = sheet.excluded | np.stack([other.excluded for other in others])
    failed = sheet.failed | np.stack([other.failed for other in others])
    here, there = (
        sheet.right[numbers],
        np.stack([other.right[numbers] for other in others]),
    )
    counted = {
        "excluded": excluded & among,
        "engine_error": failed & ~excluded & among,
        "unpaired": (sheet.asked ^ np.stack([other.asked for other in others])) & among,
        "both_wrong": ~here & ~there,
        "wrong_here": ~here & there,
        "wrong_there": here & ~there,
    }
    counts = {
        name: np.count_nonzero(flags_OI, axis=1).tolist()
        for name, flags_OI in counted.items()
    }
    rows: list[Row] = [
        {"n": len(numbers), **{name: each[at] for name, each in counts.items()}}
        for at in range(len(others))
    ]
    if not len(numbers):
        yield from (row | {"reason": "no item was measured in both"} for row in rows)
        return
    mine = sheet.shares_IK[numbers]
    theirs = [other.shares_IK[numbers][:, : mine.shape[1]] for other in others]
    observed_PI = np.stack(
        [
            np.einsum("ik,ik->i", mine[:, : each.shape[1]], each, dtype=np.float64)
            for each in theirs
        ]
    )
    second_PI = np.stack([each[:, 0].astype(np.float64) for each in theirs])
    values = [
        observed_PI,
        mine[:, 0].astype(np.float64),
        second_PI,
        1.0 / (sheet.options[numbers] - 1),
    ]
    observed, first, second, options = (
        np.atleast_2d(each).mean(axis=1) for each in values
    )
    expected = expected_agreement(first, second, options)
    value = beyond_chance(observed, first, second, options)
    # Agreement and each side's share of the gold option, for items that both, one or
    # neither have right.
    kinds = [
        (1, 1, 1),
        (1, 0, 0),
        (0, 1, 0),
        (0, 0, 1),
        *([(0, 0, 0)] if options[0] < 1 else []),
    ]
    contexts = inputs.contexts(sheet.subject.task, numbers)
    found = intervals(
        beyond_chance, values, contexts, [(*kind, options[0]) for kind in kinds]
    )
    for at, row in enumerate(rows):
        wrong = [
            row["both_wrong"] + row[name] for name in ("wrong_here", "wrong_there")
        ]
        rarest = {"wrong": min(wrong)} | (
            {"right": row["n"] - max(wrong)} if measure == ERRORS else {}
        )
        few = " or ".join(what for what, many in rarest.items() if many < LEAST)
        row |= {"observed": float(observed[at]), "expected": float(expected[at])}
        if few:
            row["reason"] = (
                f"no kappa: fewer than {LEAST} items {few} in one of the two"
            )
        elif np.isnan(value[at]):
            row["reason"] = (
                "both are sure of the same wrong option everywhere: kappa is undefined"
            )
        else:
            row |= {"kappa": float(value[at]), **bounds("kappa", found[at])}
        yield row


def _ends(frame: pd.DataFrame) -> pd.DataFrame:
    """The most and least similar pairs of each task, probe, measure and set of
    items."""
    parts = []
    for _, group in frame.groupby(["task", "probe", "measure", "among"], sort=False):
        ordered = group.sort_values(
            "kappa", ascending=False, kind="stable", na_position="last"
        )
        known = ordered[ordered["kappa"].notna()]
        if len(known) > 2 * _SHOWN:
            ordered = pd.concat([known.head(_SHOWN), known.tail(_SHOWN)])
        parts.append(ordered.head(2 * _SHOWN))
    return pd.concat(parts, ignore_index=True)


TABLE = Table(
    name="overlap",
    title="Do they miss the same items?",
    reading=(
        "Kappa is the agreement of two checkpoints beyond chance: 0 is what their"
        " accuracies give by chance; below 0 they miss different items. Error"
        " consistency compares right and wrong; 1 is complete agreement. CAPA compares"
        " the probabilities of a choice's options: the same wrong option is agreement,"
        " another one is not, and only certainty reaches 1. Items that are right in"
        " the base show what was lost: near 1, two methods lose the same answers; near"
        " 0, each loses its own. There is no kappa if one of the two has fewer than"
        f" {LEAST} items wrong. The page shows the most and the least alike. In a task"
        f" with more than {ALL_PAIRS} checkpoints, each is compared with its base and"
        " with those whose settings are nearest."
    ),
    needs="the probe greedy or choice on two checkpoints of a task",
    columns=(
        *col.TEXT("task", "checkpoint", "other", "probe", "measure", "among"),
        *col.COUNT("n", "excluded", "engine_error", "unpaired", "both_wrong"),
        Column("wrong_here", col.COUNT, "wrong in the first alone"),
        Column("wrong_there", col.COUNT, "wrong in the other alone"),
        *col.SCORE("observed", "expected"),
        Column("kappa", col.RATIO, interval=True),
    ),
    compute=_rows,
    figure=tuple(
        Dots(
            title,
            tuple(
                Series("kappa", probe, label, {"probe": probe, "among": among})
                for probe, label in (("greedy", "open"), ("choice", "choice"))
            ),
            "changes",
        )
        for among, title in (
            (ALL, "Kappa, all items"),
            (LOST, "Kappa, items that are right in the base"),
        )
    ),
    # A row per pair, by error consistency; a kappa without an interval is not drawn.
    plotted=lambda frame: frame.assign(
        checkpoint=frame["checkpoint"] + " and " + frame["other"], language=ALL
    )[frame["kappa_low"].notna() & (frame["measure"] == ERRORS)],
    silent=True,
    page=_ends,
)
