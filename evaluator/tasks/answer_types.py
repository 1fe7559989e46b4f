"""The kind of an answer, by rule: date, number, name or other.

date      a year from 1000 to 2099 in exactly four digits (in Thai to 2599); digits
          with a hyphen, slash or full stop between them; digits before a sign for
          year, month or day in Chinese, Japanese or Korean; a month's name beside a
          digit; a month's name alone
number    any other answer with a digit and no capitalised word before it; an answer
          that begins with a number word
name      every word of more than three letters begins with a capital letter, and one
          word does; in a script without capital letters: a dot between the parts of
          a foreign name, or brackets of a title
other     the rest

No word may follow a year (in Swahili: precede it), except a word for "year" or an
era: "1500 soldiers" is a number. No Chinese, Japanese, Korean or Thai letter may
follow directly. Digits of every script count.

`answer_words.json` has the month names and number words of 26 languages; others are
judged by digits and capital letters. Two limits: German nouns count as names.
Scripts without capital letters (Arabic, Bengali, Chinese, Hindi, Thai, ...) hardly
mark names, so most names are `other` there."""

import json
import re
import unicodedata
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from evaluator.core.text import main_code

_LOOKED_AT = 200
# language code -> month names, words for "year" and eras, number words from two. A star
# ends a stem.
WORDS: Mapping[str, Mapping[str, str]] = json.loads(
    (Path(__file__).parent / "answer_words.json").read_text(encoding="utf-8")
)
_NUMERAL_LAST = frozenset(("sw",))  # languages whose numerals follow the noun
_LONG_YEARS = frozenset(("th",))  # the Buddhist era
_DATE = re.compile(
    r"(?<!\d)\d{1,4}([-/.])\d{1,2}\1\d{1,4}(?!\d)|[\d〇一二三四五六七八九十]\s*[年月日년월일]"
)
# Thai, kana, Chinese, Hangul
_NO_SPACE = r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]"
_YEAR = re.compile(rf"(?<![\d.,])(1\d{{3}}|2[0-5]\d\d)(?!\d|[.,]\d|{_NO_SPACE})")
# Numerals, and the signs that stand behind them when something is counted. `千葉` is a
# place.
_CHINESE_NUMBER = re.compile(
    r"[约約]?[零〇一二两兩三四五六七八九十百千万萬亿億兆半]+[个個名人次种種倍天岁歳座位层層元円本回つ枚台匹艘只条條部世紀纪分秒時时間间度]{0,2}"
)
_CHINESE = frozenset(("zh", "ja"))
_NAME_SIGNS = re.compile(r"\w[·・＝]\w|^[《『「].+[》』」]$")
_BETWEEN = re.compile(r"[\s\-–,()/]+")


@lru_cache(maxsize=65536)
def answer_type(answer: str, language: str) -> str:
    """date, number, name or other, of an answer in a language (a name or a code);
    its first 200 characters decide."""
    answer = unicodedata.normalize("NFC", answer[:_LOOKED_AT]).strip()
    plain = "".join(
        str(unicodedata.digit(char)) if char.isdigit() else char for char in answer
    )
    code = main_code(language)
    if _is_date(plain, code):
        return "date"
    words = [word for word in _BETWEEN.split(plain) if word]
    if _is_number(plain, words, code):
        return "number"
    lettered = [word for word in words if word[0].isalpha()]
    capital = [word for word in lettered if word[0].isupper()]
    if capital and all(len(word) <= 3 or word in capital for word in lettered):
        return "name"
    return "name" if _NAME_SIGNS.search(plain) else "other"


def _is_date(plain: str, code: str) -> bool:
    if _DATE.search(plain):
        return True
    digit = any(char.isdigit() for char in plain)
    words = [word for word in map(_bare, _BETWEEN.split(plain)) if word]
    months = _matcher(code, "months")
    if code == "th":
        return bool(months.search(plain)) or (digit and _year(plain, code))
    named = [bool(months.fullmatch(word)) for word in words]
    return (any(named) and (digit or all(named))) or (digit and _year(plain, code))


def _year(plain: str, code: str) -> bool:
    """Whether the text contains a year, and no word follows that the number could
    count."""
    for found in _YEAR.finditer(plain):
        if found[1] > "2099" and code not in _LONG_YEARS:
            continue
        beside = re.match(r"\s+([^\W\d]\S*)", plain[found.end() :])
        if code in _NUMERAL_LAST and beside is None:
            beside = re.search(r"([^\W\d]\S*)\s+$", plain[: found.start()])
        if beside is None or _matcher(code, "years").fullmatch(_bare(beside[1])):
            return True
    return False


def _is_number(plain: str, words: list[str], code: str) -> bool:
    digit = re.search(r"\d", plain)
    if digit:
        return not any(word[0].isupper() for word in plain[: digit.start()].split())
    if code in _CHINESE and _CHINESE_NUMBER.fullmatch(plain):
        return True
    if not words or not _matcher(code, "numbers").fullmatch(_bare(words[0])):
        return False
    return not words[0][0].isupper() or not any(word[0].isupper() for word in words[1:])


def _bare(word: str) -> str:
    return word.strip(".,;:'\"()").lower()


@lru_cache(maxsize=256)
def _matcher(code: str, kind: str) -> re.Pattern[str]:
    """One of a language's lists of words as a pattern; it matches nothing where
    there is no list."""
    words = (
        unicodedata.normalize("NFC", word)
        for word in WORDS.get(code, {}).get(kind, "").lower().split()
    )
    return re.compile(
        "|".join(re.escape(word).replace(r"\*", r"\S*") for word in words) or r"(?!)"
    )
