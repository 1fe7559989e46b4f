"""Table `calibration`: does the text that calibrated the pruning close the gap between
choice and open?

Kinds of calibration (paper, section 5), read from the source's name:

    english         `c4`, or Wikipedia or the bundled gazetteer in English alone
    per_language    one of these in one other language
    multilingual    `balanced:...`, Wikipedia in several languages, or the whole
                    `gazetteer`
    other           a file of the user's

If a base has at least two single-language checkpoints of one pruning setting, rows of a
made-up checkpoint `<setting> per language` combine them: each language's items come
from the checkpoint that was calibrated on that language.
"""

import re
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from evaluator.core.text import code_of
from evaluator.metrics.columns import (
    COUNTED,
    LANGUAGE,
    PERCENTAGE,
    POINTS,
    SUBJECT,
    TEXT,
    Column,
    Row,
)
from evaluator.metrics.cuts import Cut
from evaluator.metrics.inputs import Inputs, Subject
from evaluator.metrics.intervals import Floats
from evaluator.metrics.items import MEAN, Items
from evaluator.metrics.measures import Share
from evaluator.metrics.table import Dots, Series, Table

_NAMED = ("wikipedia", "balanced", "gazetteer")  # sources that may name languages


def _gap(items: Items) -> Floats:
    return items["recognised"] - items["produced"]


_CUT = Cut(
    probes=("greedy", "choice"),
    measures=(
        Share("open_accuracy", "produced"),
        Share("choice_accuracy", "recognised"),
        Share("choice_minus_open", _gap, low=-1.0),
    ),
    mean=True,
    nothing="no item was measured with both greedy and choice",
)


def _rows(inputs: Inputs) -> Iterator[Row]:
    """Open and choice accuracy and their gap per calibrated checkpoint: pooled, mean
    over languages, by language."""
    alone: dict[tuple[object, ...], list[Subject]] = {}
    for subject in inputs.checkpoints:
        if subject.base is None or subject.calibration is None:
            continue
        yield from _calibrated(inputs, subject, kind_of(subject.calibration))
        if _single_language(subject.calibration) is not None:
            setting = subject.method, subject.pattern, subject.requested
            key = subject.task, subject.base, *setting
            alone.setdefault(key, []).append(subject)
    for subjects in alone.values():
        if len(subjects) > 1:
            together, items = _combined(inputs, subjects)
            yield from _calibrated(inputs, together, "per_language", items)


def _calibrated(
    inputs: Inputs, subject: Subject, kind: str, items: Items | None = None
) -> Iterator[Row]:
    rows = [*_CUT.rows(inputs, subject, items=items)]
    for row in rows if rows and rows[0]["n"] else ():
        yield row | {"kind": kind}


def _combined(inputs: Inputs, subjects: Sequence[Subject]) -> tuple[Subject, Items]:
    """Each language's items from the checkpoint that was calibrated on that
    language."""
    first = subjects[0]
    calibrated = {_single_language(each.calibration or ""): each for each in subjects}
    parts = [inputs.of(first).take(slice(0, 0))]
    for language in inputs.languages(first.task):
        if subject := calibrated.get(code_of(language)):
            parts.append(inputs.of(subject).of(language))
    items = Items(lambda name: np.concatenate([part[name] for part in parts]))
    by_share = first.pattern in ("unstructured", "layers", "experts")
    setting = f"{first.method}-{first.requested if by_share else first.pattern}"
    together = replace(
        first, checkpoint=f"{setting} per language", calibration="each language's own"
    )
    return together, items


def kind_of(source: str) -> str:
    """The kind of a calibration source, by its name in the records."""
    family = source.partition(":")[0]
    # A file, the data set that a quantised checkpoint names, or both if it was pruned
    # before.
    if " + " in source or family not in ("c4", *_NAMED):
        return "other"
    language = "en" if family == "c4" else _single_language(source)
    if language is None:
        return "multilingual"
    return "english" if language == "en" else "per_language"


def _single_language(source: str) -> str | None:
    """The code of a source's only language, if the source names one."""
    family, _, text = source.partition(":")
    languages = re.split(r"[,\s]+", text.strip())
    if family not in _NAMED or len(languages) != 1 or not languages[0]:
        return None
    return code_of(languages[0])


_BOTH = (
    Series("open_accuracy", "greedy", "said"),
    Series("choice_accuracy", "choice", "picked"),
)

TABLE = Table(
    name="calibration",
    title="Does calibration close the gap?",
    reading=(
        "Said and picked accuracy of checkpoints that differ in the text used to"
        " calibrate the pruning. If both rise together, the gap between them stays."
    ),
    needs="the probes greedy and choice on a compressed checkpoint that was calibrated",
    columns=(
        *SUBJECT,
        *TEXT("kind"),
        LANGUAGE,
        *COUNTED,
        *PERCENTAGE.estimates("open_accuracy", "choice_accuracy"),
        Column("choice_minus_open", POINTS, "picked − said", interval=True),
    ),
    compute=_rows,
    figure=(
        Dots("Accuracy", _BOTH, width=1.15, linked=True),
        Dots(
            "Gap: picked minus said",
            (
                Series("choice_minus_open", "mc_only", "pooled", shift=-0.12),
                Series(
                    "choice_minus_open",
                    "mc_only",
                    "mean over languages",
                    {"language": MEAN},
                    0.12,
                    True,
                ),
            ),
            "points",
        ),
    ),
    plotted=lambda rows: rows.assign(
        checkpoint=rows["checkpoint"] + " (" + rows["kind"].str.replace("_", " ") + ")"
    ),
)
