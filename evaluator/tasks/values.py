"""What a value of a data set means as text: the only place that decides it.

- A missing value is None: null, NaN, NaT.
- A whole number is its digits, also where a hole made floats of a column (1701.0 is
  "1701").
- Another number is its shortest decimal form. A column of floats with both is
  ambiguous, and refused.
- A date is "1969-07-20". Timestamps, times, booleans and bytes are refused: nobody
  knows how a model should write them.
- A class label is its name.
- A text is itself. But as the whole of a field, `nan` and a list in quotes are what
  other programs made of a hole or a list; both are refused. An entry of a list may
  be such a text.

CSV has only texts, so there more is ambiguous: any brackets around an answer, a
number as a program writes it (1e-07, 1.2E+10), a column of numbers of which one ends in ".0",
and an answer `True` or `False`."""

import math
import re
from datetime import date
from decimal import Decimal
from typing import Any

from evaluator.core.errors import Document, InputError, of_kind, one_line

_HOLES = (
    *("nan", "NaN", "NaT", "<NA>", "NULL", "null"),
    *("#N/A", "#REF!", "#VALUE!", "#DIV/0!", "#NAME?", "#NUM!", "#NULL!"),  # Excel's
)
_LIST = re.compile(r"""(array)?[\[({][\[({\s]*['"].*[\])}]""", re.DOTALL)
_BRACKETS = re.compile(r"[\[{].*[\]}]", re.DOTALL)
_EXPONENT = re.compile(r"[-+]?\d(\.\d+)?[eE][-+]\d\d+")
_POINT = re.compile(r"[-+]?\d+\.0+")
_DECIMAL = re.compile(r"[-+]?\d+(\.\d+)?")
# from here on, whole numbers lack their last digits; else from 2**53
_EXACT = {"float16": 2**11, "float32": 2**24}


class ClassLabel(str):
    """The name of a class, with its number."""

    number: int


def decoded(value: Any, feature: Any) -> Any:
    """A value with the names of its class labels and the precision of its floats;
    `feature`: its type in `datasets`."""
    if isinstance(value, list):
        inner = getattr(feature, "feature", None)
        if isinstance(feature, list):
            inner = feature[0]
        return [decoded(entry, inner) for entry in value]
    if isinstance(value, dict):
        inner = feature if isinstance(feature, dict) else {}
        return {key: decoded(entry, inner.get(key)) for key, entry in value.items()}
    names = getattr(feature, "names", None)
    if isinstance(value, int) and names is not None:
        if not 0 <= value < len(names):
            return None  # `datasets` has -1 for no label
        label = ClassLabel(names[value])
        label.number = value
        return label
    if isinstance(value, float) and getattr(feature, "dtype", None) in _EXACT:
        import numpy as np  # late: reading a task's name does not need it

        return np.dtype(feature.dtype).type(value)
    return value


class Texts:
    """Reads the values of a data set, whose columns have one type each. `csv`: they
    come from a CSV file."""

    def __init__(self, *, csv: bool = False) -> None:
        self._csv = csv
        # (column, whether whole) -> the first such number
        self._floats: dict[tuple[str, bool], str] = {}
        # column of CSV -> its first value in .0; empty: some are texts
        self._points: dict[str, str] = {}
        self._keys: set[tuple[str, str]] = set()  # (column, key) of objects
        self._lacking: dict[tuple[str, str], str] = {}  # the first object without a key

    def read(
        self, value: Any, column: str, at: str, *, alone: bool, prose: bool
    ) -> str | None:
        """A value's text, or None if it is missing. `at` names row and field in errors;
        `alone`: in no list; `prose`: it may well be in brackets, or the word `true`.

        Raises InputError for what is no text and no number, and for what is ambiguous.
        """
        if value is None:
            return None
        if isinstance(value, str):
            return self._text(value, column, at, alone=alone, prose=prose)
        if type(value) is date:
            return value.isoformat()
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, float | Decimal) or type(value).__name__ in _EXACT:
            return self._number(value, column, at)
        raise InputError(
            f"{at} must be text or a number, not {one_line(repr(value), 60)}: write it"
            " as the text that is meant"
        )

    def entry(self, value: Document, key: str, column: str, at: str) -> Any:
        """What an object holds under a key: None if it lacks the key, which some
        object of the column must have."""
        if key in value:
            self._keys.add((column, key))
        else:
            self._lacking.setdefault(
                (column, key),
                f"{at}: there is no {key!r} in {one_line(repr(value), 60)}",
            )
        return value.get(key)

    def finish(self) -> None:
        """After the last row. Raises InputError for a column of CSV that may hold
        whole numbers or texts, and for a key that no object has."""
        for place, message in self._lacking.items():
            if place not in self._keys:
                raise InputError(message)
        for first in filter(None, self._points.values()):
            raise InputError(
                f"{first}, and every value of this column is a number: write whole"
                " numbers without it (in pandas: astype('Int64')), or texts as Parquet"
                " or JSON"
            )

    def _text(
        self, value: str, column: str, at: str, *, alone: bool, prose: bool
    ) -> str:
        of_kind(value, str, at)  # no lone surrogates
        if isinstance(value, ClassLabel):
            return value
        text = value.strip()
        if not alone or not text:
            return text
        if text in _HOLES:
            raise InputError(
                f"{at} is the text {text!r}, which programs write for a missing value:"
                " leave it empty"
            )
        if _LIST.fullmatch(text) or (
            self._csv and not prose and _BRACKETS.fullmatch(text)
        ):
            raise InputError(
                f"{at} is a list as text: {one_line(text, 60)}: use JSON or Parquet,"
                " which have lists; a text that looks like one may be an entry of a"
                " list"
            )
        if self._csv:
            if not prose and text.lower() in ("true", "false"):
                raise InputError(
                    f"{at} is {text}, a boolean in CSV: write what is meant (yes), or"
                    " use Parquet or JSON"
                )
            if _EXPONENT.fullmatch(text):
                raise InputError(
                    f"{at} is {text}: write all digits, or use Parquet or JSON"
                )
            if not _DECIMAL.fullmatch(text):
                self._points[column] = ""
            elif _POINT.fullmatch(text):
                self._points.setdefault(column, f"{at} is {text}")
        return text

    def _number(self, value: Any, column: str, at: str) -> str | None:
        """The text of a float or a decimal."""
        if math.isnan(value):
            return None
        whole = math.isfinite(value) and value == math.floor(value)
        limit = _EXACT.get(type(value).__name__, 2**53)
        if math.isinf(value) or (
            whole and not isinstance(value, Decimal) and abs(value) >= limit
        ):
            raise InputError(
                f"{at} is {value}, a float without its last digits: write the column as"
                " integers or texts"
            )
        self._floats.setdefault((column, whole), f"{at} is {value}")
        first, other = (self._floats.get((column, kind)) for kind in (True, False))
        if first and other:
            raise InputError(
                f"{first}, in a column with fractions ({other}): write the column as"
                " texts"
            )
        if whole:
            return str(int(value))
        if isinstance(value, Decimal):
            return f"{value.normalize():f}"
        import numpy as np  # late, as above

        return str(np.format_float_positional(value, trim="-"))
