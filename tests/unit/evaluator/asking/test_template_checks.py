"""Chat templates and prompt templates that would keep a run from ever starting, or
fail on some items."""

import pytest

from evaluator.asking import template_checks
from evaluator.asking.template_checks import LONGEST, try_prompts, try_template
from evaluator.asking.templates import PromptTemplate
from tests.support.stamps import make_item
from tests.support.sweeps import refused

ENDLESS = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
)

pytestmark = pytest.mark.slow  # each is tried in a process of its own


@pytest.mark.parametrize(
    "template", ["{{ '%99999999999d' | format(1) }}", f"{{{{ 'a' * {LONGEST + 1} }}}}"]
)
def test_template_writing_endlessly_is_refused(template):
    assert "models/mine: chat: the chat template writes more than" in refused(
        try_template, Tokenizer(template)
    )


def test_endless_template_is_refused(monkeypatch):
    monkeypatch.setattr(template_checks, "_SECONDS", 1)
    told = refused(tried, "{{ question }}" + ENDLESS)
    assert "prompts.mine: the template takes more than 1 s of processor time" in told


class Tokenizer:
    name_or_path = "models/mine"

    def __init__(self, template):
        self.chat_template = template
        self.special_tokens_map = {"bos_token": "<s>"}

    def get_chat_template(self):
        if self.chat_template is None:
            raise ValueError("no template")
        return self.chat_template


@pytest.mark.parametrize(
    "template", ["{{ bos_token }}{{ messages[0].content }}", "{{ 1 / 0 }}", None]
)
def test_other_faults_are_left_alone(template):
    """Everything else is left to the one who uses it."""
    assert try_template(Tokenizer(template)) is None


POSED = [(make_item(number), ()) for number in range(3)]


def tried(text):
    return try_prompts(PromptTemplate(name="mine", text=text), POSED)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "{{ question }}{{ 'a' * 10**11 }}",
            "the template writes more than 1,000,000 characters, or takes more than",
        ),
        (
            "{{ question }}{% if id == 'i2' %}{{ 1 / 0 }}{% endif %}",
            "division by zero (task 't', item 'i2')",
        ),
        ("{{ question }}{{ id | nonsense }}", "No filter named 'nonsense'."),
    ],
)
def test_the_line_names_template_and_item(text, problem):
    assert refused(tried, text).startswith(f"prompts.mine: {problem}")
