"""Which items of two sides are one: those that asked the same.

Items pair by id where their digests are equal, else by digest. An item never pairs
with a namesake of another digest. Where a side has no digests, or those of another
program, items pair by id alone."""

from collections.abc import Iterable
from hashlib import sha256

import pandas as pd

HASH = "doc_hash "  # before a digest that lm-eval made
_NAMED = 5  # items in a remark


def by_content(
    left: pd.DataFrame, right: pd.DataFrame, a: str, b: str
) -> tuple[pd.DataFrame, dict[str, tuple[str, str]], list[str]]:
    """`right` with the ids of `left`; both digests of the data if they differ;
    remarks on items that do not pair.

    `a` and `b` name the sides."""
    ours, theirs = _digests(left), _digests(right)
    digests = [*ours.values(), *theirs.values()]
    if not all(digests) or len({digest.startswith(HASH) for digest in digests}) > 1:
        return right, {}, []
    # (language, digest) -> ids of `left` that are not yet paired
    waiting: dict[tuple[str, str], list[str]] = {}
    for key, digest in ours.items():
        if theirs.get(key) != digest:
            waiting.setdefault((key[0], digest), []).append(key[1])
    names: dict[tuple[str, str], str] = {}  # the new ids of `right`
    alone = []
    for key, digest in theirs.items():
        if ours.get(key) != digest:
            same = waiting.get((key[0], digest))
            if same:
                names[key] = same.pop(0)
            else:
                names[key] = f"{key[1]} of B"
                alone.append(key)
    left_alone = [
        (language, name) for (language, _), items in waiting.items() for name in items
    ]
    changed = dict.fromkeys(alone).keys() & {*left_alone}
    groups = {
        "not paired, as question, context, gold answers or options changed": [
            key for key in alone if key in changed
        ],
        f"only in {a}": [key for key in left_alone if key not in changed],
        f"only in {b}": [key for key in alone if key not in changed],
    }
    data = (
        {"data": (_together(ours.values()), _together(theirs.values()))}
        if names or left_alone
        else {}
    )
    remarks = []
    for what, keys in groups.items():
        if keys:
            named = ", ".join(name for _, name in keys[:_NAMED])
            more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
            remarks.append(f"{what} ({len(keys)}): {named}{more}")
    places = zip(right["language"], right["item_id"], strict=True)
    return (
        right.assign(item_id=[names.get(key, key[1]) for key in places]),
        data,
        remarks,
    )


def _digests(side: pd.DataFrame) -> dict[tuple[str, str], str]:
    """What each item asked, by language and id."""
    keys = zip(side["language"], side["item_id"], strict=True)
    return dict(zip(keys, side["digest"], strict=True))


def _together(digests: Iterable[str]) -> str:
    return sha256("".join(sorted(digests)).encode()).hexdigest()[:12]
