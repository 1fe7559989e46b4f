"""The names and the codes of languages: TyDi QA names them ("swahili"), XQuAD and Wikipedia use codes ("sw").

    code_of("Swahili") == code_of("sw") == "sw"
    name_of("sw") == "swahili"

A language that is not in the table keeps the spelling that it has, in lower case.
"""

from __future__ import annotations

# English name -> ISO 639-1 code.
_CODES = {
    "arabic": "ar",
    "bengali": "bn",
    "chinese": "zh",
    "english": "en",
    "finnish": "fi",
    "german": "de",
    "greek": "el",
    "hindi": "hi",
    "indonesian": "id",
    "japanese": "ja",
    "korean": "ko",
    "romanian": "ro",
    "russian": "ru",
    "spanish": "es",
    "swahili": "sw",
    "telugu": "te",
    "thai": "th",
    "turkish": "tr",
    "vietnamese": "vi",
}
_NAMES = {code: name for name, code in _CODES.items()}


def code_of(language: str) -> str:
    """The code of a language that is given by name or by code."""
    plain = language.strip().lower()
    return _CODES.get(plain, plain)


def name_of(language: str) -> str:
    """The English name, in lower case, of a language that is given by name or by code."""
    plain = language.strip().lower()
    return _NAMES.get(plain, plain)
