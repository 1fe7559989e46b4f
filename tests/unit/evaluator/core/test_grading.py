"""Grades worked out by hand, and the laws that every grade obeys; languages under their names and codes."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.core.grading import grade, strip_thinking
from evaluator.core.text import code_of, name_of, normalise, split_tokens, without_spaces


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Nile.\n", "the nile"),
        ("  tabs\tand\u00a0no-break  ", "tabs and nobreak"),
        ("U.S.A.", "usa"),
        ("¿Qué? «Sí»", "qué sí"),
        ("ÄÖÜ ß STRASSE", "äöü ß strasse"),  # lower-case, not case folding: ß stays
        ("Mu\u0308nchen", "m\u00fcnchen"),  # NFC composes the umlaut
        ("ΟΔΟΣ", "οδος"),  # final sigma by context
        ("النيل، مصر؟", "النيل مصر"),  # Arabic comma and question mark
        ("أ", "\u0623"),
        ("\u0627\u0654", "\u0623"),  # alef + hamza above composes to one letter
        ("東京。「都」", "東京都"),
        ("हाँ।", "हाँ"),  # the danda is punctuation
        ("$5 + 3 = 8%", "$5 + 3 = 8"),  # symbols (S) stay, the per cent sign is category Po
        ("snake_case", "snakecase"),
        ("...", ""),
        ("", ""),
        ("\u2014 \u2013", ""),
    ],
)
def test_normalise(text, expected):
    assert normalise(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>a\nb</think>Nile", "Nile"),
        ("x<think>a</think>y<think>b</think>z", "xyz"),
        ("Nile <think>and then", "Nile "),
        ("<think>", ""),
        ("<think></think>\n\nNile", "\n\nNile"),
        ("no span </think>", "no span </think>"),
        ("plain", "plain"),
    ],
)
def test_strip_thinking(text, expected):
    assert strip_thinking(text) == expected


@pytest.mark.parametrize(
    ("text", "answers", "language", "expected"),
    [
        ("The Nile.", ["nile"], "english", (True, False, 2 / 3)),
        ("NILE!", ["the Nile", "Nile"], "english", (True, True, 1.0)),
        ("Amazon", ["Nile"], "english", (False, False, 0.0)),
        ("", ["Nile"], "english", (False, False, 0.0)),
        # 4 produced tokens, 3 wanted, shared as multisets: a, a -> 2; F1 = 4 / 7
        ("a a a b", ["a a c"], "finnish", (False, False, 4 / 7)),
        # containment is of characters, not of words
        ("1945", ["194"], "english", (True, False, 0.0)),
        # decomposed output, composed reference
        ("Mu\u0308nchen ist es", ["M\u00fcnchen"], "de", (True, False, 0.5)),
        # composed and decomposed hamza are the same answer
        ("\u0627\u0654حمد", ["\u0623حمد"], "arabic", (True, True, 1.0)),
        # diacritics are not punctuation: they still tell words apart
        ("مُحَمَّد", ["محمد"], "ar", (False, False, 0.0)),
        # 5 characters produced, 3 wanted, all 3 shared: F1 = 6 / 8
        ("กรุงเ", ["รุง"], "th", (True, False, 0.75)),
        # 東 京 都 against 京 都 市: 2 shared of 3 and 3
        ("東京都", ["京都市"], "japanese", (False, False, 2 / 3)),
        ("東 京", ["東京"], "zh-CN", (False, False, 1.0)),
        ("東 京", ["東京"], "korean", (False, False, 0.0)),
        ("<think>Nile</think>Amazon", ["Nile"], "english", (False, False, 0.0)),
        ("<think>Nile", ["Nile"], "english", (False, False, 0.0)),
        # a reference of punctuation alone would be contained in everything
        ("Amazon", ["...", "Nile"], "english", (False, False, 0.0)),
        ("", ["..."], "english", (False, False, 0.0)),
        ("Amazon", [], "english", (False, False, 0.0)),
    ],
)
def test_grades_worked_out_by_hand(text, answers, language, expected):
    result = grade(text, tuple(answers), language)
    assert tuple(result.values()) == (*expected[:2], pytest.approx(expected[2], abs=1e-12))


def test_scripts_without_spaces_are_split_into_characters():
    for language in ("th", "Thai", "tha_Thai", "zh", "zh_TW", "chinese", "ja", "khmer", "lo", "my"):
        assert without_spaces(language)
        assert split_tokens("ab c", language) == ["a", "b", "c"]
    for language in ("english", "en", "korean", "ko", "telugu", "thuringian", ""):
        assert not without_spaces(language)
        assert split_tokens("ab c", language) == ["ab", "c"]


@given(st.text(), st.lists(st.text(), max_size=3), st.sampled_from(["english", "th"]))
def test_laws(text, answers, language):
    answers = tuple(answers)
    result = grade(text, answers, language)
    assert 0.0 <= result["token_f1"] <= 1.0
    if result["exact_match"]:
        assert result["contains"]
        assert result["token_f1"] == 1.0
    # canonically equivalent output gets the same grade
    assert grade(unicodedata.normalize("NFD", text), answers, language) == result


def test_names_and_codes_mean_the_same_language():
    assert (code_of("Tamil"), name_of("or")) == ("ta", "odia")
    assert code_of("swahili") == code_of(" Swahili") == code_of("sw") == code_of("SW") == "sw"
    assert name_of("sw") == name_of("Swahili") == "swahili"
    assert code_of("be-tarask") == name_of("be-tarask") == "be-tarask"


@given(st.text())
def test_punctuation_is_what_unicode_says(text):
    lowered = unicodedata.normalize("NFC", text).lower()
    kept = "".join(char for char in lowered if not unicodedata.category(char).startswith("P"))
    assert normalise(text) == " ".join(kept.split())
