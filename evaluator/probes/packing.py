"""An outcome's values beside its numbers, packed as text: positions, and the shares of options.

A row of outcomes is one item. Its sums give means, but percentiles over positions need every position's divergence.
A position takes five bytes: the divergence as float32, and one byte for the band of the base's confidence and the
agreement of the likeliest tokens. To compare two checkpoints' choices, each option keeps its probability in four bytes.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# The bands of the base's highest probability, by their lower ends.
BANDS = (0.0, 0.5, 0.9, 0.99)
_SAME = 8  # in the byte
_POSITION = np.dtype([("kld", "<f4"), ("marks", "u1")])


@dataclass(frozen=True, eq=False)
class Positions:
    """Every position of some passages; `passage` is the place of its passage among them."""

    passage: npt.NDArray[np.intp]
    kld: npt.NDArray[np.float64]
    same_top: npt.NDArray[np.bool_]
    band: npt.NDArray[np.intp]  # a place in BANDS


def pack(kld: Sequence[float], same_top: Sequence[bool], confidence: Sequence[float]) -> str:
    """The positions of one passage as text."""
    rows = np.empty(len(kld), dtype=_POSITION)
    rows["kld"] = kld
    rows["marks"] = np.searchsorted(BANDS, np.asarray(confidence), side="right") - 1
    rows["marks"] += np.asarray(same_top, dtype=np.uint8) * np.uint8(_SAME)
    return base64.b64encode(rows.tobytes()).decode()


def unpack(packed: Iterable[str]) -> Positions:
    """The positions of passages, one after the other."""
    passages = [np.frombuffer(base64.b64decode(each), dtype=_POSITION) for each in packed]
    rows = np.concatenate([np.empty(0, dtype=_POSITION), *passages])
    return Positions(
        passage=np.repeat(np.arange(len(passages)), [len(each) for each in passages]),
        kld=rows["kld"].astype(np.float64),
        same_top=(rows["marks"] & _SAME) > 0,
        band=(rows["marks"] & (_SAME - 1)).astype(np.intp),
    )


def pack_shares(shares: Sequence[float]) -> str:
    """The probabilities of one item's options as text."""
    return base64.b64encode(np.asarray(shares, dtype="<f4").tobytes()).decode()


def unpack_shares(packed: Sequence[str]) -> npt.NDArray[np.float32]:
    """Items x options; zeros behind the options of an item that has fewer than others."""
    items = [np.frombuffer(base64.b64decode(each), dtype="<f4") for each in packed]
    shares = np.zeros((len(items), max(map(len, items), default=0)), dtype=np.float32)
    for row, each in zip(shares, items, strict=True):
        row[: len(each)] = each
    return shares
