"""What type an answer is of, by rule: date, number, name or other.

date      a year from 1000 to 2099 in exactly four digits that no word follows, groups of digits with a hyphen,
          slash or full stop between them, digits before a year, month or day sign of Chinese, Japanese or Korean,
          or an English month beside a digit
number    any other answer with a digit, and no capitalised word before it
name      every word of more than three letters begins with a capital letter, and one word does
other     the rest, and all without digits in scripts that have no capital letters
"""

from __future__ import annotations

import re
import unicodedata

_LOOKED_AT = 200
_MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
_DATE = re.compile(
    r"(?<![\d.,])(1\d{3}|20\d{2})(?!\d|[.,]\d|\s+(?!AD|BC|CE)[^\W\d])"
    r"|(?<!\d)\d{1,4}([-/.])\d{1,2}\2\d{1,4}(?!\d)"
    r"|\d\s*[年月日년월일]"
    rf"|\b({_MONTHS})\b.*\d|\d.*\b({_MONTHS})\b"
)


def answer_type(answer: str) -> str:
    """date, number, name or other; of a longer text, its first 200 characters say."""
    answer = answer[:_LOOKED_AT]
    plain = "".join(str(unicodedata.digit(char)) if char.isdigit() else char for char in answer)
    if _DATE.search(plain):
        return "date"
    digit = re.search(r"\d", plain)
    if digit and not any(word[0].isupper() for word in plain[: digit.start()].split()):
        return "number"
    words = [word for word in re.split(r"[\s\-]+", answer) if word[:1].isalpha()]
    if any(word[0].isupper() for word in words) and all(word[0].isupper() for word in words if len(word) > 3):
        return "name"
    return "other"
