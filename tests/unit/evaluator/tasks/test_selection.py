"""Subsets, and what an item can be asked."""

import random

import pytest

from evaluator.tasks import gold_option, is_excluded, select
from tests.support.items import make_item


def test_the_subset_is_the_start_of_the_seeded_shuffle_of_the_file_order():
    pool = [make_item(number) for number in range(50)]
    order = list(range(50))
    random.Random(42).shuffle(order)
    assert [item.item_id for item in select(pool, 7)] == [f"i{number}" for number in order[:7]]
    # a larger subset begins with the smaller one
    assert select(pool, 20)[:7] == select(pool, 7)


@pytest.mark.parametrize("items", [0, 50, 51, 1000])
def test_all_items_are_asked_in_the_same_order(items):
    pool = [make_item(number) for number in range(50)]
    asked = select(pool, items)
    assert asked == select(pool, 50)
    assert sorted(item.item_id for item in asked) == sorted(item.item_id for item in pool)
    assert pool == [make_item(number) for number in range(50)]


@pytest.mark.parametrize("answers", [(), ("",), ("...",), ("?!", " \n", "—")])
def test_items_without_a_gradable_answer_are_excluded(answers):
    assert is_excluded(make_item(0, answers=answers))


def test_the_gold_option_is_the_first_reference_that_can_be_graded():
    assert not is_excluded(make_item(0, answers=("...", "Nile")))
    assert gold_option(make_item(0, answers=("...", "Nile", "the Nile"))) == "Nile"
    assert gold_option(make_item(0, answers=("the Nile.", "Nile"))) == "the Nile."
