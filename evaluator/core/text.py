"""Languages, and the form in which texts are compared.

    code_of("Swahili") == code_of("swh") == code_of("sw") == "sw" name_of("sw") ==
    "swahili" main_code("zh-Hans") == main_code("zho_Hans") == main_code("Chinese
    (Simplified)") == "zh"
    normalise("The  Nile.") == "the nile"

`languages.json` has a language in each line: its shortest code of ISO 639, its English
name, then its other codes and the names that data sets use; also how languages write
numbers (CLDR). A standard variety is its language (`cmn`: `zh`); others are languages
of their own (`yue`). A language that is not in the table keeps its spelling, in lower
case.
"""

import json
import re
import unicodedata
from collections.abc import Mapping
from functools import cache, lru_cache
from itertools import filterfalse
from pathlib import Path
from typing import Any

_TABLE: Mapping[str, Any] = json.loads(
    (Path(__file__).parent / "languages.json").read_text(encoding="utf-8")
)
_SPELLINGS: Mapping[str, list[str]] = {
    code: words.split(", ") for code, words in _TABLE["names"].items()
}
_NAMES = {code: words[0] for code, words in _SPELLINGS.items()}
_CODES = {word: code for code, words in _SPELLINGS.items() for word in words} | {
    code: code for code in _NAMES
}
WITH_COMMA, BY_SPACE, _WITHOUT_SPACES = (
    frozenset(_TABLE[habit].split())
    for habit in ("decimal comma", "thousands by space", "no space between words")
)
# The scripts that put no space between words, in 16 bits: Thai, Lao, Tibetan, Burmese,
# Khmer, Tai, kana, Chinese.
UNSPACED = (
    r"\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf\u2e80-\u2fdf\u3005-\u3007\u3031-\u3035"
    r"\u303b\u3040-\u312f\u31a0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua9e0-\ua9ff\uaa60-\uaa7f\uf900-\ufaff"
)
_UNIT = re.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]+")
# What multiplies a number beside it (`5 million`, Swahili `elfu 5`): CLDR's compact
# numbers, and hundreds and dozens, in the strict grader's normal form.
POWERS_AFTER, POWERS_BEFORE, ONES, PARTS, TENS, NEGATIONS, ALONE, DENIALS, ONLY = (
    {
        code: tuple(words.replace("_", " ") for words in words.split())
        for code, words in _TABLE[name].items()
    }
    for name in (
        *("powers of ten after a number", "powers of ten before a number"),
        *("number words below twenty", "parts and places in words"),
        "number words of tens",
        *("negations before a word", "alone, behind a word"),
        *("negations behind a word", "only, before a word"),
    )
)
# The articles that may begin an answer, in the strict grader's normal form.
ARTICLES = {
    "af": ("die ", "'n "),
    "ca": ("el ", "la ", "els ", "les ", "l'", "un ", "una ", "uns ", "unes "),
    "da": ("en ", "et ", "den ", "det ", "de "),
    "de": ("der ", "die ", "das ", "den ", "dem ", "des ", "ein ", "eine ", "einen ", "einem ", "einer ", "eines "),
    "el": ("ο ", "η ", "το ", "οι ", "τα ", "τον ", "την ", "τη ", "του ", "τησ ", "των ", "τουσ ", "τισ ",
           "έναν ", "ένασ ", "ένα ", "μια ", "μία ", "ενόσ "),
    "en": ("the ", "a ", "an "),
    "es": ("el ", "la ", "lo ", "los ", "las ", "un ", "una ", "unos ", "unas "),
    "fr": ("le ", "la ", "les ", "l'", "un ", "une ", "des "),
    "ga": ("an ", "na "),
    "gl": ("o ", "a ", "os ", "as ", "un ", "unha ", "uns ", "unhas "),
    "hu": ("a ", "az ", "egy "),
    "it": ("il ", "lo ", "la ", "l'", "i ", "gli ", "le ", "un ", "uno ", "una ", "un'"),
    "nb": ("en ", "ei ", "et ", "den ", "det ", "de "),
    "nl": ("de ", "het ", "een "),
    "nn": ("ein ", "ei ", "eit ", "den ", "det ", "dei "),
    "no": ("en ", "ei ", "et ", "den ", "det ", "de "),
    "pt": ("o ", "a ", "os ", "as ", "um ", "uma ", "uns ", "umas "),
    "ro": ("un ", "o ", "niște "),
    "sv": ("en ", "ett ", "den ", "det ", "de "),
}  # fmt: skip
# Languages that write articles and prepositions at the beginning of a noun.
PREFIXING = frozenset(("ar", "arc", "arz", "ary", "apc", "he", "am", "ti", "mt", "syr"))


@lru_cache(maxsize=1024)
def code_of(language: str) -> str:
    """The code of a language that is given by name or by code."""
    plain = language.strip().lower()
    return _CODES.get(plain, plain)


def name_of(language: str) -> str:
    """The English name, in lower case, of a language that is given by name or by
    code."""
    code = code_of(language)
    return _NAMES.get(code, code)


@lru_cache(maxsize=1024)  # every graded text needs it
def main_code(language: str) -> str:
    """The code of a language without script, region and remarks: `pt_BR` is `pt`."""
    code = code_of(language)
    return code if code in _NAMES else code_of(re.split(r"[-_(]", code)[0])


UNKNOWN = "is no known language: graded as one with spaces between words"


def is_known(language: str) -> bool:
    """Whether the table of languages has it."""
    return main_code(language) in _NAMES


def without_spaces(language: str) -> bool:
    """Whether a language, given by name or code (`thai`, `th`, `zh-CN`), puts no
    space between words."""
    return main_code(language) in _WITHOUT_SPACES


@cache
def is_punctuation(char: str) -> bool:
    return unicodedata.category(char).startswith("P")


def normalise(text: str) -> str:
    """NFC, lower-case, without Unicode punctuation (category P), white space
    collapsed to single spaces and trimmed."""
    text = unicodedata.normalize("NFC", text).lower()
    return " ".join("".join(filterfalse(is_punctuation, text)).split())


def split_tokens(text: str, language: str) -> list[str]:
    """The units of token F1: words split at white space, but characters in scripts
    that put no space between words.

    In a language of such a script, every character is one."""
    if without_spaces(language):
        return [char for char in text if not char.isspace()]
    return text.split() if text.isascii() else _UNIT.findall(text)


LOOP = 8  # tokens of the n-grams that show a loop


def loops(text: str, language: str) -> bool:
    """Whether a text loops: at least half of its n-grams of `LOOP` tokens stand in
    it before.

    The tokens are those of token F1, of the normalised text; of a text of fewer than 2
    `LOOP`, its characters, if they are 4 `LOOP` or more.
    """
    tokens = split_tokens(normalise(text), language)
    fewest = 2 * LOOP
    if len(tokens) < fewest:
        tokens, fewest = [*"".join(tokens)], 4 * LOOP
    grams = [
        tuple(tokens[start : start + LOOP]) for start in range(len(tokens) - LOOP + 1)
    ]
    return len(tokens) >= fewest and 2 * len(set(grams)) <= len(grams)
