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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from evaluator.core.reducing import unpack_shares
from evaluator.metrics.bootstrap import intervals
from evaluator.metrics.columns import COUNT, RATIO, SCORE, TEXT, Column, Row
from evaluator.metrics.exclusions import LEAST, STATUSES, joined_reasons
from evaluator.metrics.fates import CORRECT
from evaluator.metrics.inputs import ALL, Inputs, Subject
from evaluator.metrics.intervals import Floats, ItemNumbers
from evaluator.metrics.measures import as_floats, beyond_chance, bounds
from evaluator.metrics.table import Dots, Table, of_probes
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
_SHOWN = 5  # pairs at either end of a page's table


def kappa_of(
    observed: Floats, first: Floats, second: Floats, other_options: Floats
) -> Floats:
    """Kappa of two checkpoints with these accuracies; NaN if chance alone explains
    full agreement."""
    return beyond_chance(observed, expected_agreement(first, second, other_options))


def expected_agreement(first: Floats, second: Floats, other_options: Floats) -> Floats:
    """The chance agreement of two checkpoints with these accuracies; `other_options`
    is the mean of 1 / (K - 1)."""
    return np.asarray(first * second + (1 - first) * (1 - second) * other_options)


@dataclass(frozen=True)
class _Sheet:
    """One checkpoint's answers to one probe, by the items' numbers within the task.
    `flags` mark the items that are `right`, `measured`, `asked`, and left out."""

    subject: Subject
    shares_IK: Shares
    options: npt.NDArray[np.intp]  # how many an item has; 0 if it was not measured
    flags: Mapping[str, Flags]

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
    marked = {"right": done[right], "measured": done, "asked": answers[status.notna()]}
    for left_out in STATUSES:
        marked[left_out] = answers[status == left_out]
    flags = {}
    for name, rows in marked.items():
        flags[name] = np.isin(np.arange(items), rows["item"])
    return _Sheet(subject, shares_IK, options_I, flags)


def partners(subjects: Sequence[Subject]) -> list[list[int]]:
    """For each checkpoint of a task, the later ones to compare it with, as places in
    `subjects`."""
    many = len(subjects)
    if many <= ALL_PAIRS:
        return [list(range(at + 1, many)) for at in range(many)]
    places = {subject.checkpoint: at for at, subject in enumerate(subjects)}
    pairs = set()
    by_method, by_setting = [], []
    for at, subject in enumerate(subjects):
        if subject.base in places:
            pairs.add((places[subject.base], at))
        sparsity = subject.requested or 0.0
        setting = (subject.pattern or "", sparsity, subject.calibration or "")
        base, method = subject.base or "", subject.method or ""
        by_method.append((base, method, *setting, at))
        by_setting.append((base, *setting, method, at))
    for keys in (by_method, by_setting):
        ordered = [int(key[-1]) for key in sorted(keys)]
        for place, one in enumerate(ordered):
            for other in ordered[place + 1 : place + 1 + NEAR]:
                if subjects[one].base == subjects[other].base:
                    pairs.add((one, other))
    later: list[set[int]] = [set() for _ in subjects]
    for one, other in pairs:
        later[min(one, other)].add(max(one, other))
    return [sorted(others) for others in later]


def _rows(inputs: Inputs) -> Iterator[Row]:
    by_task: dict[str, list[Subject]] = {}
    for subject in inputs.checkpoints:
        by_task.setdefault(subject.task, []).append(subject)
    for subjects in by_task.values():
        for probe, measure in _WAYS if len(subjects) > 1 else ():
            sheets = [_sheet(inputs, subject, probe, measure) for subject in subjects]
            sheets = [sheet for sheet in sheets if sheet.flags["asked"].any()]
            for row in _of_sheets(inputs, sheets, measure):
                yield row | {"probe": probe, "measure": measure}


def _of_sheets(inputs: Inputs, sheets: Sequence[_Sheet], measure: str) -> Iterator[Row]:
    """Every pair on all items, then every pair of one base on what that has right."""
    fewer = None
    if len(sheets) > ALL_PAIRS:
        fewer = f"of {len(sheets)} checkpoints, not every pair is compared"
    bases = {sheet.name: sheet for sheet in sheets}
    later = partners([sheet.subject for sheet in sheets])
    for among in (ALL, LOST):
        for sheet, places in zip(sheets, later, strict=True):
            others = [sheets[place] for place in places]
            items = np.ones_like(sheet.flags["right"])
            base = bases.get(sheet.subject.base or "")
            if among == LOST:
                if base is None:
                    continue
                others = [each for each in others if each.subject.base == base.name]
                items = base.flags["right"]
            rows = _pairs(inputs, sheet, others, items, measure)
            for other in others:
                row, notes = rows[other.name], _notes(inputs, sheet, other)
                row["reason"] = joined_reasons(fewer, *notes, row.get("reason"))
                subject = {"task": sheet.subject.task, "checkpoint": sheet.name}
                yield subject | {"other": other.name, "among": among} | row


def _notes(inputs: Inputs, sheet: _Sheet, other: _Sheet) -> list[str]:
    """A row's own checkpoint has the note on few items in every table."""
    notes = []
    for of, reasons in (
        (other, inputs.decided_early),
        (sheet, inputs.incomparable),
        (other, inputs.incomparable),
    ):
        if reason := reasons.get(of.subject.key):
            notes.append(f"{of.name}: {reason}")
    return notes


def _pairs(
    inputs: Inputs, sheet: _Sheet, others: Sequence[_Sheet], among: Flags, measure: str
) -> dict[str, Row]:
    """A checkpoint and each of others, by their names, on the items `among`. One
    product serves all that measured the same items."""
    together: dict[bytes, list[_Sheet]] = {}
    for other in others:
        together.setdefault(other.flags["measured"].tobytes(), []).append(other)
    rows: dict[str, Row] = {}
    for group in together.values():
        compared = _compared(inputs, sheet, group, among, measure)
        rows |= dict(zip([other.name for other in group], compared, strict=True))
    return rows


def _compared(
    inputs: Inputs, sheet: _Sheet, others: Sequence[_Sheet], among: Flags, measure: str
) -> list[Row]:
    """A checkpoint and each of `others`, which measured the same items: counts,
    agreement, and kappa."""
    both = sheet.flags["measured"] & others[0].flags["measured"]
    numbers = np.flatnonzero(among & both)
    rows = _counts(sheet, others, among, numbers)
    if not len(numbers):
        return [row | {"reason": "no item was measured in both"} for row in rows]
    values = _agreements(sheet, others, numbers)
    means = [np.atleast_2d(each).mean(axis=1) for each in values]
    expected, kappas = expected_agreement(*means[1:]), kappa_of(*means)
    # Agreement and each side's share of the gold option, for items that both, one or
    # neither have right.
    options = float(means[3][0])
    kinds = [(1, 1, 1, options), (1, 0, 0, options)]
    kinds += [(0, 1, 0, options), (0, 0, 1, options)]
    if options < 1:
        kinds.append((0, 0, 0, options))
    asked = inputs.asked(sheet.subject.task)
    contexts = asked["context"].to_numpy(np.intp)[numbers]
    found = intervals(kappa_of, values, contexts, kinds)
    for at, row in enumerate(rows):
        row["observed"], row["expected"] = float(means[0][at]), float(expected[at])
        if few := _too_few(row, measure):
            row["reason"] = (
                f"no kappa: fewer than {LEAST} items {few} in one of the two"
            )
        elif np.isnan(kappas[at]):
            row["reason"] = (
                "both are sure of the same wrong option everywhere: kappa is undefined"
            )
        else:
            row |= {"kappa": float(kappas[at]), **bounds("kappa", found[at])}
    return rows


def _counts(
    sheet: _Sheet, others: Sequence[_Sheet], among: Flags, numbers: ItemNumbers
) -> list[Row]:
    rows: list[Row] = []
    here = sheet.flags["right"][numbers]
    for other in others:
        there = other.flags["right"][numbers]
        excluded = sheet.flags["excluded"] | other.flags["excluded"]
        failed = sheet.flags["engine_error"] | other.flags["engine_error"]
        flags = {
            "excluded": excluded & among,
            "engine_error": failed & ~excluded & among,
            "unpaired": (sheet.flags["asked"] ^ other.flags["asked"]) & among,
            "both_wrong": ~here & ~there,
            "wrong_here": ~here & there,
            "wrong_there": here & ~there,
        }
        row = {name: int(marked.sum()) for name, marked in flags.items()}
        rows.append(row | {"n": len(numbers)})
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
    sheet: _Sheet, others: Sequence[_Sheet], numbers: ItemNumbers
) -> list[Floats]:
    """The arguments of `kappa_of`, as a number per item."""
    mine_IK = sheet.shares_IK[numbers]
    agreed, gold = [], []
    for other in others:
        shares_IK = other.shares_IK[numbers]
        width = min(mine_IK.shape[1], shares_IK.shape[1])
        both = mine_IK[:, :width], shares_IK[:, :width]
        agreed.append(np.einsum("ik,ik->i", *both, dtype=np.float64))
        gold.append(shares_IK[:, 0].astype(np.float64))
    mine = mine_IK[:, 0].astype(np.float64)
    other_options = 1.0 / (sheet.options[numbers] - 1)
    return [np.stack(agreed), mine, np.stack(gold), other_options]


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
        *TEXT("task", "checkpoint", "other", "probe", "measure", "among"),
        *COUNT("n", "excluded", "engine_error", "unpaired", "both_wrong"),
        Column("wrong_here", COUNT, "wrong in the first alone"),
        Column("wrong_there", COUNT, "wrong in the other alone"),
        *SCORE("observed", "expected"),
        *RATIO.estimates("kappa"),
    ),
    compute=_rows,
    figure=(
        Dots("Kappa, all items", of_probes("kappa", among=ALL), "changes"),
        Dots(
            "Kappa, items that are right in the base",
            of_probes("kappa", among=LOST),
            "changes",
        ),
    ),
    # A row per pair, by error consistency; a kappa without an interval is not drawn.
    plotted=lambda frame: frame.assign(
        checkpoint=frame["checkpoint"] + " and " + frame["other"], language=ALL
    )[frame["kappa_low"].notna() & (frame["measure"] == ERRORS)],
    silent=True,
    page=_ends,
)
