"""Which items of two sides are one: those that asked the same.

Items pair by id where their digests are equal, else by digest. An item never pairs
with a namesake of another digest. Where a side has no digests, or those of another
program, items pair by id alone."""

from collections.abc import Iterable
from hashlib import sha256

import pandas as pd

from evaluator.logs.base import LOGGED

OF_B = " of B"  # after the id of an item that pairs with none
_NAMED = 5  # items in a remark
ItemKey = tuple[str, str]  # language, id


def by_content(
    left: pd.DataFrame, right: pd.DataFrame, a: str, b: str
) -> tuple[pd.DataFrame, dict[str, tuple[str, str]], list[str]]:
    """`right` with the ids of `left`; both digests of the data if they differ;
    remarks on items that do not pair.

    `a` and `b` name the sides."""
    ours, theirs = _digests(left), _digests(right)
    digests = [*ours.values(), *theirs.values()]
    if not all(digests) or len({digest.startswith(LOGGED) for digest in digests}) > 1:
        return right, {}, []
    # (language, digest) -> ids of `left` that are not yet paired
    waiting: dict[ItemKey, list[str]] = {}
    for (language, name), digest in ours.items():
        if theirs.get((language, name)) != digest:
            waiting.setdefault((language, digest), []).append(name)
    names: dict[ItemKey, str] = {}  # the new ids of `right`
    only_b = []
    for (language, name), digest in theirs.items():
        same = waiting.get((language, digest))
        if ours.get((language, name)) == digest:
            names[language, name] = name
        elif same:
            names[language, name] = same.pop(0)
        else:
            names[language, name] = f"{name}{OF_B}"
            only_b.append((language, name))
    only_a = []
    for (language, _), unpaired in waiting.items():
        only_a += [(language, name) for name in unpaired]
    keys = zip(right["language"], right["item_id"], strict=True)
    renamed = right.assign(item_id=[names[key] for key in keys])
    data = {}
    if only_a or only_b:
        data["data"] = _together(ours.values()), _together(theirs.values())
    return renamed, data, _remarks(only_a, only_b, a, b)


def _remarks(only_a: list[ItemKey], only_b: list[ItemKey], a: str, b: str) -> list[str]:
    changed = set(only_a) & set(only_b)
    reason = "not paired, as question, context, gold answers or options changed"
    remarks = []
    for what, keys in (
        (reason, [key for key in only_b if key in changed]),
        (f"only in {a}", [key for key in only_a if key not in changed]),
        (f"only in {b}", [key for key in only_b if key not in changed]),
    ):
        if keys:
            rest = len(keys) - _NAMED
            more = f" and {rest} more" if rest > 0 else ""
            listed = ", ".join(name for _, name in keys[:_NAMED])
            remarks.append(f"{what} ({len(keys)}): {listed}{more}")
    return remarks


def _digests(side: pd.DataFrame) -> dict[ItemKey, str]:
    """What each item asked, by language and id."""
    keys = zip(side["language"], side["item_id"], strict=True)
    return dict(zip(keys, side["digest"], strict=True))


def _together(digests: Iterable[str]) -> str:
    return sha256("".join(sorted(digests)).encode()).hexdigest()[:12]
