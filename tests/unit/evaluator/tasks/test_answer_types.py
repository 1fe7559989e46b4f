"""The type of an answer, by rule."""

from __future__ import annotations

import pytest

from evaluator.core.text import code_of
from evaluator.tasks.answer_types import WORDS, answer_type


@pytest.mark.parametrize(
    ("language", "answer", "kind"),
    [
        ("english", "1990", "date"), ("en", "in the 1990s", "date"), ("en", "12 March 1990", "date"),
        ("en", "March 5", "date"), ("en", "3/4/2020", "date"), ("en", "May", "date"), ("en", "1066 AD", "date"),
        ("en", "1,500 people", "number"), ("en", "1500 soldiers", "number"), ("en", "1.500.000", "number"),
        ("en", "about 30", "number"), ("en", "$5 million", "number"), ("en", "24-10", "number"),
        ("en", "three", "number"), ("en", "Seven", "number"), ("en", "twenty-one years", "number"),
        ("en", "two Americans", "number"), ("en", "Three Gorges Dam", "name"),
        ("en", "Apollo 11", "name"), ("en", "University of Warsaw", "name"), ("en", "B-52", "name"),
        ("en", "the river Kalo", "other"), ("en", "oxygen", "other"), ("en", "marching 5 miles", "number"),
        # months and number words of other languages, also inflected
        ("russian", "12 января 1990 года", "date"), ("ru", "в 1990 году", "date"), ("ru", "1500 солдат", "number"),
        ("ru", "Иван Грозный", "name"), ("ru", "шесть", "number"), ("ru", "вода", "other"),
        ("de", "3. Oktober", "date"), ("de", "sieben Jahre", "number"), ("de", "gelb", "other"),
        ("de", "Wasser", "name"),  # the documented limit: nouns have capitals
        ("fr", "14 juillet", "date"), ("es", "5 de mayo de 1810", "date"), ("tr", "5 Mayıs'ta", "date"),
        ("finnish", "5 toukokuuta", "date"), ("el", "25 Μαρτίου", "date"), ("pl", "3 maja", "date"),
        ("ro", "1 decembrie", "date"), ("vi", "tháng 5", "date"), ("indonesian", "2 mei", "date"),
        ("swahili", "mwaka 1740", "date"), ("sw", "1740", "date"), ("sw", "wakazi 1740", "number"),
        # scripts without capital letters: digits, signs and word lists
        ("arabic", "١٩٩٠", "date"), ("ar", "٣٠", "number"), ("ar", "5 مارس", "date"), ("ar", "سبعة", "number"),
        ("ar", "الماء", "other"), ("hi", "15 अगस्त", "date"), ("hi", "सात", "number"), ("hi", "पानी", "other"),
        ("bengali", "১৫ আগস্ট", "date"), ("bn", "৮৯৬০ জন", "number"), ("te", "రెండు", "number"),
        ("korean", "2021년 5월", "date"), ("ko", "1740명", "number"), ("ko", "칼로 강", "other"),
        ("ko", "두 명", "number"), ("ja", "2021年", "date"), ("zh", "三月", "date"), ("zh", "1500人", "number"),
        ("zh", "三个", "number"), ("zh", "万里长城", "other"), ("zh", "马丁·路德", "name"), ("ja", "千葉県", "other"),
        ("th", "พ.ศ. 2533", "date"), ("th", "5 มีนาคม", "date"), ("th", "1500 คน", "number"), ("th", "1500คน", "number"),
        # a language without a list: digits and capital letters alone
        ("hu", "1848", "date"), ("hu", "12 alma", "number"), ("hu", "Duna", "name"), ("hu", "március", "other"),
    ],
)  # fmt: skip
def test_the_type_of_an_answer_is_a_rule(language, answer, kind):
    assert answer_type(answer, language) == kind


@pytest.mark.parametrize("code", WORDS)
def test_every_listed_month_makes_a_date_and_every_number_word_a_number(code):
    assert code_of(code) == code
    months, _, numbers = (words.split() for words in WORDS[code].values())
    if code != "vi":
        assert len(months) >= 12 or not months
        assert {answer_type(f"5 {month.rstrip('*')}", code) for month in months} <= {"date"}
    assert {answer_type(word.rstrip("*"), code) for word in numbers} <= {"number"}
