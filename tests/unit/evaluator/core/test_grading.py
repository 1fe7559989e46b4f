"""Grades worked out by hand, and the laws that every grade obeys; languages under
their names and codes."""

import re
import unicodedata
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.core.errors import InputError
from evaluator.core.grading import gradable, grade, grades, loops, strip_thinking
from evaluator.core.plain import plain
from evaluator.core.text import (
    code_of,
    is_known,
    main_code,
    name_of,
    normalise,
    split_tokens,
    without_spaces,
)


def rows(table):
    return [line for line in table.strip().split("\n") if not line.startswith("# ")]


# text | its normal form
NORMAL = """
The  Nile.\t | the nile
  tabs\tand\u00a0no-break   | tabs and nobreak
U.S.A. | usa
¿Qué? «Sí» | qué sí
ÄÖÜ ß STRASSE | äöü ß strasse
Mu\u0308nchen | m\u00fcnchen
ΟΔΟΣ | οδος
النيل، مصر؟ | النيل مصر
أ | \u0623
\u0627\u0654 | \u0623
東京。「都」 | 東京都
हाँ। | हाँ
$5 + 3 = 8% | $5 + 3 = 8
snake_case | snakecase
... |
\u2014 \u2013 |
"""


@pytest.mark.parametrize("row", rows(NORMAL))
def test_normalise(row):
    """Lower-case, not case folding; composed; without punctuation, of which the danda
    and the per cent sign are some and symbols are none."""
    text, expected = re.split(r" \| ?", row)
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


# language | gold answers | response | contained, equal, F1
BY_HAND = """
english | nile | The Nile. | yes yes 1  # a leading article does not count
english | the Nile; Nile | NILE! | yes yes 1
english | Nile | Amazon | no no 0
english | Nile |  | no no 0
# 4 produced tokens, 3 wanted, shared as multisets: a, a
finnish | a a c | a a a b | no no 4/7
# containment is of characters, but a digit beside a digit makes another number
english | Nile | Niles | yes no 0
english | 194 | 1945 | no no 0
de | M\u00fcnchen | Mu\u0308nchen ist es | yes no 1/2
arabic | \u0623حمد | \u0627\u0654حمد | yes yes 1
# Arabic readers leave vowel marks out; Latin accents tell words apart
ar | محمد | مُحَمَّد | yes yes 1
sv | Malmo | Malmö | no no 0
# 5 characters produced, 3 wanted, all 3 shared
th | รุง | กรุงเ | yes no 6/8
# 東 京 都 against 京 都 市: 2 shared of 3 and 3
japanese | 京都市 | 東京都 | no no 2/3
zh-CN | 東京 | 東 京 | yes yes 1
a language without a name | 東京 | 東 京 | yes yes 1
english | Nile | <think>Nile</think>Amazon | no no 0
english | Nile | <think>Nile | no no 0
# a reference of punctuation alone would be contained in everything
english | ...; Nile | Amazon | no no 0
english | ... |  | no no 0
"""


@pytest.mark.parametrize("row", rows(BY_HAND))
def test_grades_worked_out_by_hand(row):
    language, gold, text, expected = row.split(" | ")
    *yes, f1 = expected.split("  #")[0].split()
    result = [*grade(text, tuple(gold.split("; ")), language).values()]
    assert result[:2] == [each == "yes" for each in yes]
    assert result[2] == pytest.approx(float(Fraction(f1)), abs=1e-12)


def test_loops_are_repeated_runs_of_words():
    assert not loops(" ".join(["one"] * 15), "english")
    assert loops(" ".join(["one"] * 16), "english")
    sentence = "the river flows from the north to the sea in spring"
    assert loops(" ".join([sentence] * 3), "english")
    assert not loops(sentence + " while " + sentence.replace("the", "a"), "english")


def test_unspaced_scripts_split_into_characters():
    for language in [
        "th",
        "Thai",
        "tha_Thai",
        "zh",
        "zh_TW",
        "chinese",
        "ja",
        "khmer",
        "lo",
        "my",
    ]:
        assert without_spaces(language)
        assert split_tokens("ab c", language) == ["a", "b", "c"]
    for language in [
        "jp",
        "cn",
        "Mandarin",
        "lzh",
        "wuu",
        "Tibetan",
        "zho_Hans",
        "zh-Hans",
    ]:
        assert without_spaces(language)
        graded = grade("京都の東京", ["東京"], language)
        assert graded["token_f1"] == pytest.approx(4 / 7)
    assert without_spaces("Chinese (Simplified)")
    for language in ("", *["english", "en", "korean", "ko", "telugu", "thuringian"]):
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


def test_language_names_equal_codes():
    assert (code_of("Tamil"), name_of("or")) == ("ta", "odia")
    assert {code_of(name) for name in ("swahili", " Swahili", "sw", "SW")} == {"sw"}
    assert name_of("sw") == name_of("Swahili") == "swahili"
    assert code_of("be-tarask") == name_of("be-tarask") == "be-tarask"
    assert {
        main_code(name) for name in ("pt_BR", "por", "Portuguese", "por_Latn", "pt-PT")
    } == {"pt"}
    assert {
        main_code(name) for name in ("swh_Latn", "swa", "Kiswahili", "Swahili (Kenya)")
    } == {"sw"}
    assert (main_code("be-tarask"), main_code("yue"), main_code("Cantonese")) == (
        "be",
        "yue",
        "yue",
    )
    assert is_known("Chinese (Traditional)")
    assert not is_known("klingon")


@given(st.text())
def test_punctuation_is_what_unicode_says(text):
    lowered = unicodedata.normalize("NFC", text).lower()
    kept = "".join(
        char for char in lowered if not unicodedata.category(char).startswith("P")
    )
    assert normalise(text) == " ".join(kept.split())


# language | gold answer | response
RIGHT = """
english | 10 km | It is 10km long.
english | 10km | 10 km
english | 3 pm | at 3pm
english | seven | Seven.
english | J.K. Rowling | J. K. Rowling
english | Washington, D. C. | in Washington, D.C.
english | C | vitamin C. A cat
english | World War I | in World War I.
english | 1½ | 1 1/2
english | 1/2 | ½
english | 3 | 3 million
english | USA | U.S.A.
english | U.S.A. | the USA.
english | VIII | Ⅷ
english | 50% | 50％
english | O'Brien | O’Brien
english | St. John's | St John’s
english | e-mail | email
english | email | an E-Mail
english | naïve | naïve
english | 1701 | in 1701.
english | 1701 | 1701, he
english | 1701 | (1701)
english | 1701 | year-1701?
english | 1701 | 1701—he
english | 1701 | 1701-he
english | 1914-1918 | 1914 – 1918
english | 1918 | from 1914 to 1918
english | 2020 | 2020-01-15
english | 10\xa0000 | 10000
english | 10\u202f000 | 10,000
english | -5 | −5 °C
english | 5 | 5 km
english | 5 | 5th
english | 19 | COVID-19
english | C# | C# is
english | C++ | c++
english | A | Answer: A
english | A | a
english | A | vitamin-A
english | Ann | Ann's
english | Nile | Niles
english | sun | the sun
english | the sun | Sun
english | no | no
english | no | no.
english | no | No, it
english | 10:30 | at 10:30 am
english | Apollo 11 | Apollo 11 flew
english | .5 | 0.5
english | 5 | 5...
english | 5 | ...5
english | 1/2 | 1 / 2
english | 2 | 2*3
english | Istanbul | İSTANBUL
english | 5 | +5
english | 5 | USD5
english | USD5 | USD 5
english | 1000 | 1e3
english | 1,000 | It is 1E+3.
english | 0.0015 | 1.5e-3
english | 2,500,000 | 2.5e6km
english | -1000 | -1e3
english | 10^3 | 10**3
english | 100 | 100±5
english | 100±5 | 100 ± 5
english | 10 | **10**
english | 1e5 | 1e5
english | H2O | H₂O
english | 😀 | ok 😀!
english | 👨\u200d👩\u200d👧 | 👨\u200d👩\u200d👧
english | 5 | 5'10"
english | Dr | Dr. Who
english | the Who | who
english | 100 | 100.
english | 1,100 | 1100
english | 100 | $100
english | 1990 | 1990s
english | 16:9 | 16:9
finnish | seitsemän | seitsemänteen
hindi | क़लम | क़लम
hindi | 1,00,000 | 100000
hindi | पानी | पानी।
thai | 25 | ๒๕
arabic | 3.14 | ٣٫١٤
arabic | 1000 | 1٬000
arabic | 1000 | ١٬٠٠٠
arabic | ١٩١٤ | 1914
arabic | ٪50 | 50
hebrew | שלום | שָׁלוֹם
hebrew | צה״ל | צה"ל
greek | Οδυσσεύς | ΟΔΥΣΣΕΎΣ
vietnamese | Hà Nội | Hà Nội
korean | 서울 | 서울은
russian | Москва | Москва́
russian | No. 5 | №5
russian | 5 | №5
german | 2020 | 15.01.2020
german | 15.01.2020 | am 15.01.2020
german | 1.000,5 | 1000,5
german | 1000.5 | 1.000,5
german | 1.000 | 1000
german | ßo | SSO
german | Baden-Württemberg | Baden Württemberg
german | 3,14 | 3.14
german | 1'000 | 1000
french | 10 000 | 10000
french | 10 000 | 10000
french | or | l'or
turkish | Ali | Ali'nin
turkish | ırmak | IRMAK
chinese | 北京 | 在北京市
chinese | USA | 在USA的
chinese | 1949 | 于1949年
ja | 1949 | 1949年
ja | 日本 | 日 本
th | กรุงเทพ | อยู่ที่กรุงเทพมหานคร
my | ဗမာ | မြန်မာဗမာပြည်
tr | izmir | İZMİR
ar | صلاح | صَلَاح
zh | 約翰·史密斯 | 約翰史密斯
persian | 1914 | ۱۹۱۴
de | 1000 | 1’000
sv | Malmö | MALMÖ
"""
WRONG = """
english | World War I | World War II
english | Louis XVII | Louis XVIII
english | 5 | 5…10
english | 10 | 5..10
english | seven | seventeen
english | chapter eight | chapter eighty
english | 10 km | 10kmh
english | 3 | 3×10⁸
english | 7 | 7.5
english | 7 | 7,5
english | 7 | 1.7
english | 7 | 17:30
english | 7 | ⅐
english | 7 | 7²
english | 2 | 7²
english | 72 | 7²
english | 102 | 10²
english | 11/2 | 1½
english | 1/2 | 1½
english | naïve | naive
english | 1914 | 1914-1918
english | 15 | 15/01/2020
english | 1.000 | 1000
english | 1.000 | 1
english | 5 | -5
english | 5 | −$5
english | $5 | -$5
english | -$5 | $5
english | 5 | H5N1
english | 5 | year5
english | C | C#
english | C | C++
english | C# | C
english | A | a cat
english | 10 | 10:30
english | 10:30 | 1030
english | 1 | 1-2
english | 1 | 1/2
english | Apollo 1 | Apollo 11
english | 2.0 | version 2.0.1
english | 5 | .5
english | 23 | 2*3
english | 10 | 10^2
english | 10 | 10**2
english | 2 | 10**2
english | 1 | 1e3
english | 1.5 | 1.5e-3
english | 1000 | -1e3
english | 5 | ±5
english | 5 | 100 ± 5
english | 10 | 10⁻²
english | 510 | 5'10"
english | TV | television
english | ab | cab
english | the Who | the man who
english | 100 | 1,100
english | 2 | 2:1
german | acht | achtzehn
german | 1,5 | 15
german | 14 | 3,14
chinese | 三 | 三十万
chinese | 五 | 二十五
chinese | 3 | 3万
arabic | 314 | ٣٫١٤
vietnamese | Hà Nội | Ha Noi
russian | й | и
ja | 49 | 1949年
turkish | kır | kir
"""


@pytest.mark.parametrize("row", rows(RIGHT))
def test_strict_rule_finds(row):
    language, gold, response = row.split(" | ")
    assert grade(response, [gold], language)["contains"]


@pytest.mark.parametrize("row", rows(WRONG))
def test_strict_rule_denies(row):
    language, gold, response = row.split(" | ")
    assert not grade(response, [gold], language)["contains"]


@pytest.mark.parametrize("gold", ["%", "", "...", "\u0301", "\u064e", "\u200b", "—"])
def test_gold_without_content_is_not_gradable(gold):
    assert gradable([gold, "Nile"], "english") == ("Nile",)
    assert not grade("anything %", [gold], "english")["contains"]


def test_paper_rule_is_plain_containment():
    assert grade("1863636363", ["1863"], "english", "paper")["contains"]
    assert grade("-5", ["5"], "english", "paper")["exact_match"]
    assert grades("It is in the north.", ("no",), "english") == {
        "contains": False,
        "exact_match": False,
        "token_f1": 0.0,
        "contains_paper": True,
    }
    with pytest.raises(InputError, match="unknown rule of grading 'loose'"):
        grade("a", ["a"], "english", "loose")


SIGNS = list(
    "0123456789.,:/-'’+±*#^ aAbeİıIsßςσ٣٫٬²—–−。・東京กา한국\u0301\u064e\u200d"
)
written = st.text(
    alphabet=st.one_of(
        st.sampled_from(SIGNS), st.characters(exclude_categories=["Cs"])
    ),
    max_size=12,
)
languages = st.sampled_from(
    [
        "english",
        "german",
        "turkish",
        "french",
        "arabic",
        "thai",
        "japanese",
        "korean",
        "xx",
    ]
)


@given(written, written, languages)
def test_laws_of_strict_rule(text, other, language):
    """The normal form is its own, and the same for canonically equal texts. A
    gradable answer is right by itself."""
    normal = plain(text, language)
    assert (
        plain(normal, language)
        == normal
        == plain(unicodedata.normalize("NFD", text), language)
    )
    if gradable([text], language) and "<think>" not in text:
        assert list(grade(text, [text], language).values()) == [True, True, 1.0]
    result = grade(text, [other], language)
    if result["exact_match"]:
        assert list(result.values()) == [True, True, 1.0]


@given(st.integers(0, 99999), st.integers(0, 9), languages)
def test_digits_beside_digits_are_never_right(number, digit, language):
    for text in (f"x {number}{digit} y", f"x {digit}{number}"):
        assert not grade(text, [str(number)], language)["contains"]
