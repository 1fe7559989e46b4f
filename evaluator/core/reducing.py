"""From one probe's records to one row for each item, an outcome: functions that the
probes' `reduce` methods share.

A row is named by KEY. A probe counts as measured only if all of an item's records
are; columns that were not measured are null, and `<probe>_status` says why.

Two kinds of values are packed as text. Percentiles over positions need every
position's divergence: five bytes, for the divergence as float32, the band of the
base's confidence and the agreement of the likeliest tokens. To compare two
checkpoints' choices, each option keeps its probability in four bytes."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from evaluator.core.grading import strip_thinking
from evaluator.core.plain import flat, in_clauses

if TYPE_CHECKING:
    import pandas as pd

KEY = ("checkpoint", "task", "language", "item_id", "format", "seed")
MEASURED = ("ok", "truncated")

# The bands of the base's highest probability, by their lower ends.
BANDS = (0.0, 0.5, 0.9, 0.99)
_SAME = 8  # in the byte
_POSITION = np.dtype([("kld", "<f4"), ("marks", "u1")])

# of statuses; from `engine_error` on nothing was measured
SEVERITY = {"ok": 0, "truncated": 1, "engine_error": 2, "excluded": 3}
BY_SEVERITY = {severity: status for status, severity in SEVERITY.items()}


def why_not(records: pd.DataFrame, probe: str) -> pd.DataFrame:
    """Column `<probe>_why`: the text of the item's first record of its worst status,
    where that is no measurement."""
    severity = records["status"].map(SEVERITY).astype("int64")
    marked = records.assign(severity=severity)
    worst = marked[marked["severity"].gt(1) & marked["text"].notna()]
    worst = worst.sort_values(
        ["severity", "index"], ascending=[False, True], kind="stable"
    )
    first = worst.groupby(list(KEY))[["text"]].first()
    return first.rename(columns={"text": f"{probe}_why"})


def where_measured(
    reduced: pd.DataFrame, records: pd.DataFrame, probe: str, value: str
) -> pd.DataFrame:
    """`<probe>_status` and columns; engine_error where `ok` lacks a `value`."""
    import pandas as pd

    severity = records["status"].map(SEVERITY).astype("int64")
    worst = severity.groupby([records[name] for name in KEY]).max()
    status = worst.map(BY_SEVERITY).reindex(reduced.index)
    lacking = status.isin(MEASURED) & reduced[value].isna()
    status = status.mask(lacking, "engine_error")
    measured = status.isin(MEASURED)
    known = {name: column.where(measured) for name, column in reduced.items()}
    return pd.DataFrame({**known, f"{probe}_status": status})


def first_of(
    records: pd.DataFrame, columns: Mapping[str, Any], types: Mapping[str, str]
) -> pd.DataFrame:
    """One row for each item: the first value of each of `columns`, as `types`."""
    typed = records[list(KEY)].assign(**columns).astype(dict(types))
    return typed.groupby(list(KEY))[list(columns)].first()


def hits(records: pd.DataFrame, probe: str) -> pd.DataFrame:
    """The number of answers to an item, whether one contains a gold answer, and how
    many do."""
    import pandas as pd

    contains = records["contains"].astype("boolean").fillna(False).astype("int64")
    groups = records.assign(contains=contains).groupby(list(KEY))
    right = groups["contains"].sum().astype("Int64")
    reduced = pd.DataFrame(
        {
            f"{probe}s": groups.size().astype("Int64"),
            f"{probe}_hit": (right > 0).astype("boolean"),
            f"{probe}_hits": right,
        }
    )
    return where_measured(reduced, records, probe, f"{probe}_hit")


def by_its_rule(records: pd.DataFrame) -> pd.DataFrame:
    """The records with `contains` by the run's rule of grading: everything that
    counts right answers reads this."""
    paper = records["grading"].eq("paper").fillna(False).astype(bool)
    return records.assign(
        contains=records["contains"].where(~paper, records["contains_paper"])
    )


def by_both_rules(records: pd.DataFrame, probe: str) -> pd.DataFrame:
    """Of an item's graded answers, how many each rule counts, how many the paper's
    alone does, and the first of these.

    Empty for records of one rule."""
    done = records[records["contains"].notna() & records["contains_paper"].notna()]
    strict, paper = done["contains"].astype(bool), done["contains_paper"].astype(bool)
    loose = paper & ~strict
    marked = done[[*KEY, "index"]].assign(
        graded=done["contains"].notna(),
        strict=strict,
        paper=paper,
        only_paper=loose,
        example=done["text"].where(loose),
    )
    items = marked.sort_values("index", kind="stable").groupby(list(KEY))
    counts = items[["graded", "strict", "paper", "only_paper"]].sum()
    return counts.assign(example=items["example"].first()).add_prefix(f"{probe}_")


BOTH_RULES = {
    "graded": "Int64",
    "strict": "Int64",
    "paper": "Int64",
    "only_paper": "Int64",
    "example": "string",
}


@lru_cache(maxsize=10_000)  # beams and samples say the same again
def answer_fingerprint(text: object, language: str) -> int | None:
    """The same number for answers that are the same in their normal form."""
    if not isinstance(text, str):
        return None
    return crc32(flat(in_clauses(strip_thinking(text), language)).encode())


def majority(records: pd.DataFrame) -> pd.Series:
    """By KEY, the chance from 0 to 1 that the answer which most of an item's records
    say is right.

    That is self-consistency (Wang et al., ICLR 2023, arXiv 2203.11171). Answers that
    tie for the most are drawn with equal chances: the value is the mean over them,
    so the order of the samples changes nothing. A cut thought votes for no answer."""
    import pandas as pd

    key = list(KEY)
    answers = list(map(answer_fingerprint, records["text"], records["language"]))
    votes = records[key].assign(
        answer=pd.Series(answers, records.index),
        right=records["contains"].astype("Float64"),
    )
    voted = votes.groupby([*key, "answer"])["right"].agg(["size", "mean"])
    most = voted["size"].groupby(key).transform("max")
    winners = voted.loc[voted["size"] == most, "mean"]
    return winners.groupby(key).mean().astype("Float64")


@dataclass(frozen=True, eq=False)
class Positions:
    """Every position of some passages; `passage` is the place of its passage among
    them."""

    passage: npt.NDArray[np.intp]
    kld: npt.NDArray[np.float64]
    same_top: npt.NDArray[np.bool_]
    band: npt.NDArray[np.intp]  # a place in BANDS


def pack(
    kld: Sequence[float], same_top: Sequence[bool], confidence: Sequence[float]
) -> str:
    """The positions of one passage as text."""
    rows = np.empty(len(kld), dtype=_POSITION)
    rows["kld"] = kld
    rows["marks"] = np.searchsorted(BANDS, np.asarray(confidence), side="right") - 1
    rows["marks"] += np.asarray(same_top, dtype=np.uint8) * np.uint8(_SAME)
    return base64.b64encode(rows.tobytes()).decode()


def unpack(packed: Iterable[str]) -> Positions:
    """The positions of passages, one after the other."""
    passages = [np.frombuffer(base64.b64decode(text), _POSITION) for text in packed]
    rows = np.concatenate([np.empty(0, dtype=_POSITION), *passages])
    lengths = list(map(len, passages))
    return Positions(
        passage=np.repeat(np.arange(len(passages)), lengths),
        kld=rows["kld"].astype(np.float64),
        same_top=(rows["marks"] & _SAME) > 0,
        band=(rows["marks"] & (_SAME - 1)).astype(np.intp),
    )
