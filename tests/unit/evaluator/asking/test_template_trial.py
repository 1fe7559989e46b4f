"""Chat templates that would keep a run from ever starting."""

import pytest

from evaluator.asking.template_trial import LONGEST, problem_of, try_template
from evaluator.core.errors import InputError

ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"

pytestmark = pytest.mark.slow  # each is tried in a process of its own


@pytest.mark.parametrize(
    "template", ["{{ 'a' * 10**11 }}", "{{ '%99999999999d' | format(1) }}", f"{{{{ 'a' * {LONGEST + 1} }}}}"]
)
def test_a_template_that_writes_without_end_is_refused(template):
    assert "writes more than 1,000,000 characters" in problem_of(template)


def test_a_template_that_never_ends_is_refused_for_its_tokenizer():
    assert problem_of(ENDLESS, seconds=1) == "takes more than 1 s of processor time or 1 GiB"


class Tokenizer:
    name_or_path = "models/mine"

    def __init__(self, template):
        self.chat_template = template
        self.special_tokens_map = {"bos_token": "<s>"}

    def get_chat_template(self):
        if self.chat_template is None:
            raise ValueError("no template")
        return self.chat_template


def test_the_line_names_the_tokenizer():
    with pytest.raises(InputError, match="models/mine: chat: the chat template writes more than"):
        try_template(Tokenizer("{{ 'a' * 10**11 }}"))


@pytest.mark.parametrize(
    "template",
    ["{{ bos_token }}{{ messages[0].content }}", "{{ raise_exception('no') }}", "{{ 1 / 0 }}", "{% if %}", None],
)
def test_everything_else_is_left_to_the_one_who_uses_it(template):
    assert try_template(Tokenizer(template)) is None
