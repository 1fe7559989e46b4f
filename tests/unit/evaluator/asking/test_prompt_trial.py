"""Templates that would keep a run from ever starting, or that fail on some of its items."""

import pytest

from evaluator.asking import prompt_trial
from evaluator.asking.prompt_trial import try_prompts
from evaluator.asking.templates import PromptTemplate
from evaluator.core.errors import InputError
from tests.support.items import make_item

pytestmark = pytest.mark.slow  # each is tried in a process of its own

POSED = [(make_item(number), ()) for number in range(3)]


def tried(text):
    return try_prompts(PromptTemplate(name="mine", text=text), POSED)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{{ question }}{{ 'a' * 2000000 }}", "the template writes more than 1,000,000 characters"),
        ("{{ question }}{{ 'a' * 10**11 }}", "the template writes more than 1,000,000 characters, or takes more than"),
        ("{{ question }}{% if id == 'i2' %}{{ 1 / 0 }}{% endif %}", "division by zero (task 't', item 'i2')"),
        ("{{ question }}{{ id | nonsense }}", "No filter named 'nonsense'."),
    ],
)
def test_the_line_names_template_and_item(text, problem):
    with pytest.raises(InputError) as caught:
        tried(text)
    assert str(caught.value).startswith(f"prompts.mine: {problem}")


def test_one_that_never_ends(monkeypatch):
    monkeypatch.setattr(prompt_trial, "_SECONDS", 1)
    with pytest.raises(InputError, match=r"prompts\.mine: the template takes more than 1 s of processor time"):
        tried("{{ question }}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}")


def test_a_sound_one():
    assert tried("{{ context }} {{ question }}") is None
