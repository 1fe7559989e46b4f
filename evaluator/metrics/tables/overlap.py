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
from evaluator.core.reducing import unpack_shares
from evaluator.metrics.bootstrap import intervals
from evaluator.metrics.columns import Column, Row
from evaluator.metrics.exclusions import LEAST, STATUSES, joined_reasons
from evaluator.metrics.fates import CORRECT
from evaluator.metrics.inputs import ALL, Inputs, Subject
from evaluator.metrics.intervals import Floats, ItemNumbers
from evaluator.metrics.measures import as_floats, bounds
from evaluator.metrics.table import Dots, Series, Table
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

    @property
    def name(self) -> str:
        return self.subject.checkpoint


def _sheet(inputs: Inputs, subject: Subject, probe: str, measure: str) -> _Sheet:
    answers = inputs.outcomes_of(subject.checkpoint, subject.task)
    status = answers[f"{probe}_status"]
    done = answers[status.isin(MEASURED)]
    right = as_floats(done[CORRECT[probe]]) == 1
    if measure == ERRORS:
        shares = np.stack([right, ~right], axis=1).astype(np.float32)
        options = np.full(len(done), 2)
    else:
        shares = unpack_shares(done["option_shares"].tolist())
        options = as_floats(done["options"]).astype(np.intp)
    items = len(inputs.asked(subject.task))
    numbers = done["item"].to_numpy(np.intp)
    shares_IK = np.zeros((items, shares.shape[1]), dtype=np.float32)
    options_I = np.zeros(items, dtype=np.intp)
    shares_IK[numbers], options_I[numbers] = shares, options

    def flags(marked: pd.DataFrame) -> Flags:
        return np.isin(np.arange(items), marked["item"])

    excluded, failed = (flags(answers[status == name]) for name in STATUSES)
    return _Sheet(
        subject,
        shares_IK,
        options_I,
        right=flags(done[right]),
        measured=flags(done),
        asked=flags(answers[status.notna()]),
        excluded=excluded,
        failed=failed,
    )


def partners(subjects: Sequence[Subject]) -> list[list[int]]:
    """For each checkpoint of a task, the later ones to compare it with, as places in
    `subjects`."""
    many = len(subjects)
    if many <= ALL_PAIRS:
        return [list(range(at + 1, many)) for at in range(many)]
    places = {subject.checkpoint: at for at, subject in enumerate(subjects)}
    later: list[set[int]] = [set() for _ in subjects]

    def pair(one: int, other: int) -> None:
        later[min(one, other)].add(max(one, other))

    of_base: dict[str | None, list[int]] = {}
    for at, subject in enumerate(subjects):
        of_base.setdefault(subject.base, []).append(at)
        if subject.base in places:
            pair(places[subject.base], at)
    by_setting = [(*_setting(each), each.method or "") for each in subjects]
    by_method = [(each.method or "", *_setting(each)) for each in subjects]
    for members in of_base.values():
        for keys in (by_method, by_setting):
            ordered = sorted(members, key=lambda at: (keys[at], at))
            for at, one in enumerate(ordered):
                for other in ordered[at + 1 : at + 1 + NEAR]:
                    pair(one, other)
    return [sorted(places) for places in later]


def _setting(subject: Subject) -> tuple[str, float, str]:
    sparsity = subject.requested or 0.0
    return subject.pattern or "", sparsity, subject.calibration or ""


def _rows(inputs: Inputs) -> Iterator[Row]:
    by_task: dict[str, list[Subject]] = {}
    for subject in inputs.checkpoints:
        by_task.setdefault(subject.task, []).append(subject)
    for subjects in by_task.values():
        for probe, measure in _WAYS if len(subjects) > 1 else ():
            sheets = [_sheet(inputs, each, probe, measure) for each in subjects]
            sheets = [sheet for sheet in sheets if sheet.asked.any()]
            for row in _of_sheets(inputs, sheets, measure):
                yield row | {"probe": probe, "measure": measure}


def _of_sheets(inputs: Inputs, sheets: Sequence[_Sheet], measure: str) -> Iterator[Row]:
    """Every pair on all items, then every pair of one base on what that has right."""
    places = partners([sheet.subject for sheet in sheets])
    by_name = {sheet.name: sheet for sheet in sheets}
    fewer = None
    if len(sheets) > ALL_PAIRS:
        fewer = f"of {len(sheets)} checkpoints, not every pair is compared"
    for bases in ({}, by_name):
        for sheet, later in zip(sheets, places, strict=True):
            base = bases.get(sheet.subject.base or "")
            others = [sheets[at] for at in later]
            if base is not None:
                others = [each for each in others if each.subject.base == base.name]
            if base is not None or not bases:
                for row in _pairs(inputs, sheet, others, base, measure):
                    yield row | {"reason": joined_reasons(fewer, row["reason"])}


def _pairs(
    inputs: Inputs,
    sheet: _Sheet,
    others: Sequence[_Sheet],
    base: _Sheet | None,
    measure: str,
) -> Iterator[Row]:
    """A checkpoint and each of others; with `base`, on what that has right. One
    product serves all of equal items."""
    among = base.right if base is not None else np.ones_like(sheet.right)
    together: dict[bytes, list[_Sheet]] = {}
    for other in others:
        together.setdefault(other.measured.tobytes(), []).append(other)
    compared: dict[str, Row] = {}
    for same in together.values():
        for start in range(0, len(same), _AT_ONCE):
            group = same[start : start + _AT_ONCE]
            rows = _compared(inputs, sheet, group, among, measure)
            for other, row in zip(group, rows, strict=True):
                compared[other.name] = row
    for other in others:
        # A row's own checkpoint has the note on few items in every table.
        notes = (
            (other.name, inputs.decided_early.get(other.subject.key)),
            (sheet.name, inputs.incomparable.get(sheet.subject.key)),
            (other.name, inputs.incomparable.get(other.subject.key)),
        )
        row = compared[other.name]
        reasons = []
        for name, note in notes:
            if note:
                reasons.append(f"{name}: {note}")
        yield {
            "task": sheet.subject.task,
            "checkpoint": sheet.name,
            "other": other.name,
            "among": ALL if base is None else LOST,
            **row,
            "reason": joined_reasons(*reasons, row.get("reason")),
        }


def _compared(
    inputs: Inputs, sheet: _Sheet, others: Sequence[_Sheet], among: Flags, measure: str
) -> list[Row]:
    """A checkpoint and each of `others`, which measured the same items: counts,
    agreement, and kappa."""
    numbers = np.flatnonzero(among & sheet.measured & others[0].measured)
    rows = _counts(sheet, others, among, numbers)
    if not len(numbers):
        return [row | {"reason": "no item was measured in both"} for row in rows]
    for row, agreement in zip(
        rows, _agreements(inputs, sheet, others, numbers), strict=True
    ):
        kappa = agreement.pop("kappa")
        row |= agreement
        if few := _too_few(row, measure):
            reason = f"no kappa: fewer than {LEAST} items {few} in one of the two"
            row["reason"] = reason
        elif not kappa:
            row["reason"] = (
                "both are sure of the same wrong option everywhere: kappa is undefined"
            )
        else:
            row |= kappa
    return rows


def _counts(
    sheet: _Sheet, others: Sequence[_Sheet], among: Flags, numbers: ItemNumbers
) -> list[Row]:
    def theirs(name: str) -> Flags:
        return np.stack([getattr(other, name) for other in others])

    excluded_OI = sheet.excluded | theirs("excluded")
    failed_OI = sheet.failed | theirs("failed")
    here, there_OI = sheet.right[numbers], theirs("right")[:, numbers]
    flags = {
        "excluded": excluded_OI & among,
        "engine_error": failed_OI & ~excluded_OI & among,
        "unpaired": (sheet.asked ^ theirs("asked")) & among,
        "both_wrong": ~here & ~there_OI,
        "wrong_here": ~here & there_OI,
        "wrong_there": here & ~there_OI,
    }
    rows: list[Row] = [{"n": len(numbers)} for _ in others]
    for name, flags_OI in flags.items():
        for row, count in zip(rows, flags_OI.sum(axis=1).tolist(), strict=True):
            row[name] = count
    return rows


def _too_few(row: Row, measure: str) -> str:
    """The answers of which one of the two has too few; empty if neither has."""
    wrong = [row["both_wrong"] + row[name] for name in ("wrong_here", "wrong_there")]
    few = []
    if min(wrong) < LEAST:
        few.append("wrong")
    if measure == ERRORS and row["n"] - max(wrong) < LEAST:
        few.append("right")
    return " or ".join(few)


def _agreements(
    inputs: Inputs, sheet: _Sheet, others: Sequence[_Sheet], numbers: ItemNumbers
) -> Iterator[Row]:
    """Observed and expected agreement, and under `kappa` its columns; none if it is
    undefined."""
    mine_IK = sheet.shares_IK[numbers]
    agreed, gold = [], []
    for other in others:
        shares_IK = other.shares_IK[numbers]
        width = min(mine_IK.shape[1], shares_IK.shape[1])
        both = mine_IK[:, :width], shares_IK[:, :width]
        agreed.append(np.einsum("ik,ik->i", *both, dtype=np.float64))
        gold.append(shares_IK[:, 0].astype(np.float64))
    values = [
        np.stack(agreed),
        mine_IK[:, 0].astype(np.float64),
        np.stack(gold),
        1.0 / (sheet.options[numbers] - 1),
    ]
    means = [np.atleast_2d(each).mean(axis=1) for each in values]
    observed, options = means[0], float(means[3][0])
    expected, kappas = expected_agreement(*means[1:]), beyond_chance(*means)
    # Agreement and each side's share of the gold option, for items that both, one or
    # neither have right.
    kinds = [(1, 1, 1, options), (1, 0, 0, options)]
    kinds += [(0, 1, 0, options), (0, 0, 1, options)]
    if options < 1:
        kinds.append((0, 0, 0, options))
    contexts = inputs.contexts(sheet.subject.task, numbers)
    found = intervals(beyond_chance, values, contexts, kinds)
    for at, kappa in enumerate(kappas.tolist()):
        row: Row = {"observed": float(observed[at]), "expected": float(expected[at])}
        row["kappa"] = {}
        if not np.isnan(kappa):
            row["kappa"] = {"kappa": kappa, **bounds("kappa", found[at])}
        yield row


def _kappas(among: str) -> tuple[Series, ...]:
    where = {"among": among}
    return (
        Series("kappa", "greedy", "open", where | {"probe": "greedy"}),
        Series("kappa", "choice", "choice", where | {"probe": "choice"}),
    )


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
    figure=(
        Dots("Kappa, all items", _kappas(ALL), "changes"),
        Dots("Kappa, items that are right in the base", _kappas(LOST), "changes"),
    ),
    # A row per pair, by error consistency; a kappa without an interval is not drawn.
    plotted=lambda frame: frame.assign(
        checkpoint=frame["checkpoint"] + " and " + frame["other"], language=ALL
    )[frame["kappa_low"].notna() & (frame["measure"] == ERRORS)],
    silent=True,
    page=_ends,
)
