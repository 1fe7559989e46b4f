"""Languages, and the form in which texts are compared.

    code_of("Swahili") == code_of("sw") == "sw"       TyDi QA names languages, XQuAD and Wikipedia use codes
    name_of("sw") == "swahili"
    normalise("The  Nile.") == "the nile"

A language that is not in the table keeps its spelling, in lower case."""

import re
import unicodedata
from functools import cache, lru_cache

# English name -> ISO 639-1 code.
_CODES = {
    "arabic": "ar", "assamese": "as", "bengali": "bn", "burmese": "my", "chinese": "zh", "czech": "cs", "dutch": "nl",
    "english": "en", "finnish": "fi", "french": "fr", "german": "de", "greek": "el", "gujarati": "gu", "hausa": "ha",
    "hindi": "hi", "indonesian": "id", "italian": "it", "japanese": "ja", "kannada": "kn", "korean": "ko",
    "malayalam": "ml", "marathi": "mr", "odia": "or", "polish": "pl", "portuguese": "pt", "punjabi": "pa",
    "romanian": "ro", "russian": "ru", "spanish": "es", "swahili": "sw", "tamil": "ta", "telugu": "te", "thai": "th",
    "turkish": "tr", "urdu": "ur", "vietnamese": "vi",
}  # fmt: skip
_NAMES = {code: name for name, code in _CODES.items()}
# Languages whose scripts put no space between words, under the names and codes that data sets use for them.
_WITHOUT_SPACES = {"thai", "th", "tha", "chinese", "zh", "zho", "chi", "cmn", "yue", "japanese", "ja", "jpn"}
_WITHOUT_SPACES |= {"khmer", "km", "khm", "lao", "lo", "burmese", "my", "mya", "bur"}


class _Kept(dict[int, int | None]):
    """The table of `str.translate`: it deletes punctuation. Each character is looked up once."""

    def __missing__(self, code: int) -> int | None:
        kept = self[code] = None if _is_punctuation(chr(code)) else code
        return kept


_WITHOUT_PUNCTUATION = _Kept()
_LARGE = re.compile("[\U00010000-\U0010ffff]")  # characters of more than 16 bits


def code_of(language: str) -> str:
    """The code of a language that is given by name or by code."""
    plain = language.strip().lower()
    return _CODES.get(plain, plain)


def name_of(language: str) -> str:
    """The English name, in lower case, of a language that is given by name or by code."""
    plain = language.strip().lower()
    return _NAMES.get(plain, plain)


@lru_cache(maxsize=256)  # every graded text needs it
def without_spaces(language: str) -> bool:
    """Whether a language, given by name or code (`thai`, `th`, `zh-CN`), puts no space between words."""
    return re.split(r"[-_]", language.strip().lower())[0] in _WITHOUT_SPACES


def _is_punctuation(char: str) -> bool:
    return unicodedata.category(char).startswith("P")


@cache
def _punctuation() -> re.Pattern[str]:
    """Of 16 bits: `re` finds it by a table, in a third of the time of `str.translate`; other sets it looks through."""
    return re.compile(f"[{re.escape(''.join(filter(_is_punctuation, map(chr, range(2**16)))))}]+")


def normalise(text: str) -> str:
    """NFC, lower-case, without Unicode punctuation (category P), white space collapsed to single spaces and trimmed."""
    text = unicodedata.normalize("NFC", text).lower()
    kept = text.translate(_WITHOUT_PUNCTUATION) if _LARGE.search(text) else _punctuation().sub("", text)
    return " ".join(kept.split())


def split_tokens(text: str, language: str) -> list[str]:
    """The units of token F1: words split at white space, or characters in languages that put no space between words."""
    return [char for char in text if not char.isspace()] if without_spaces(language) else text.split()
