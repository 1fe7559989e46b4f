"""Control pairs: made by rule, the same for the same items, and right about whether they match."""

import pytest

from evaluator.core.text import normalise
from evaluator.judging.controls import controls_of, paraphrases
from tests.support.items import make_item


def posed(number, *answers, language="english"):
    return make_item(number, language=language, question=f"Question {number}?", answers=answers)


@pytest.mark.parametrize(
    ("answer", "language", "forms"),
    [
        ("Marie Curie", "en", ["Curie, Marie", "MARIE CURIE"]),
        ("Иван Грозный", "ru", ["Грозный, Иван", "ИВАН ГРОЗНЫЙ"]),
        ("The Nile", "en", ["Nile", "THE NILE"]),
        ("die Donau", "german", ["Donau", "DIE DONAU"]),
        ("1,500 people", "en", ["1500 people", "1,500 PEOPLE"]),
        ("12000", "en", ["12 000"]),
        ("1990", "en", []),  # a year has no groups
        ("1.500", "en", []),
        ("1" * 5000, "en", []),  # more digits than Python reads as a number
        ("NASA", "en", ["nasa"]),
        ("칼로 강", "ko", []),
        ("Straße", "de", []),  # its upper case does not come back
        ("the ", "en", ["THE "]),
    ],
)
def test_a_paraphrase_changes_the_form_alone(answer, language, forms):
    assert paraphrases(answer, language) == forms


ITEMS = [
    posed(0, "water"),
    posed(1, "Lake Nova", "Nova"),
    posed(2, "oxygen"),
    posed(3, "Nova"),
    posed(4, "12"),
    posed(5, "Tura City"),
    posed(6, "!?"),
    posed(7),
    posed(8, "칼로 강", language="korean"),
]


def test_what_must_match_and_what_must_not():
    found = controls_of(ITEMS, 30)
    by_item: dict[str, dict[str, str]] = {}
    for each in found:
        assert each.claim.question == f"Question {each.item_id[1:]}?"
        by_item.setdefault(each.item_id, {})[each.kind] = each.claim.response
    assert sorted(by_item) == ["i0", "i1", "i2", "i3", "i4", "i5", "i8"]  # punctuation and nothing are no answers
    assert all(each["same"] == ITEMS[int(name[1:])].answers[0] for name, each in by_item.items())
    # of names, Nova is part of Lake Nova: neither is another answer than the other
    assert by_item["i1"]["other"] == by_item["i3"]["other"] == "Tura City"
    assert by_item["i5"]["other"] in ("Lake Nova", "Nova")
    assert {by_item["i0"]["other"], by_item["i2"]["other"]} == {"oxygen", "water"}
    assert set(by_item["i4"]) == {"same"}  # the only number, without another form
    assert set(by_item["i8"]) == {"same"}
    for name, each in by_item.items():
        assert normalise(each.get("other", "?")) not in map(normalise, ITEMS[int(name[1:])].answers)


def test_pairs_depend_on_the_items_alone_and_every_language_has_its_own():
    items = [posed(number, f"answer {word}") for number, word in enumerate("abcdefghijkl")]
    items += [posed(number, f"자 {number}", language="korean") for number in range(40, 45)]
    few = controls_of(items, 3)
    assert few == controls_of(reversed(items), 3)
    assert {each.language: sum(one.language == each.language for one in few) for each in few} == {
        "english": 9,  # three items, three kinds each
        "korean": 6,  # no other form
    }
    assert controls_of(items, 0) == []
    answers = {item.item_id: item.answers[0] for item in items}
    for each in few:
        if each.kind == "other":
            assert each.claim.response in set(answers.values()) - {answers[each.item_id]}
