"""Prompts of a user's own: what a template may say, what it writes, and where its
context is cut."""

import pytest

from evaluator.asking.prompts import Prompter
from evaluator.asking.templates import (
    PromptTemplate,
    Wording,
    checked,
    checked_name,
    lists_options,
)
from evaluator.checkpoints.tokenizer import load_tokenizer
from launch.sweep.models import resolve_model
from tests.support.stamps import make_item
from tests.support.sweeps import lines, refused

ITEM = make_item(
    context="The Nile is long. It ends in the sea.", question="How long is it?"
)
OPTIONS = ("6650 km", "3 km")
TERSE = "{{ context }}\n\nQ: {{ question }}\nA:"


def wording(text):
    return Wording(PromptTemplate(name="mine", text=checked(text)))


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(resolve_model("bundled"))


def prompter(tokenizer, text, cap=512, chat=False):
    template = None if text is None else PromptTemplate(name="mine", text=checked(text))
    return Prompter(
        tokenizer,
        chat=chat,
        prompt_tokens=cap,
        one_shot_prompt_tokens=cap,
        template=template,
    )


def test_every_field():
    listed = "{% for each in options %} {{ loop.index }} {{ each }}{% endfor %}"
    text = "{{ id }} {{ language }}: {{ context }} {{ question }}" + listed
    expected = (
        f"{ITEM.item_id} {ITEM.language}: {ITEM.context} {ITEM.question} 1 6650 km 2"
        " 3 km"
    )
    assert wording(text).whole(ITEM, ITEM.context, OPTIONS) == expected
    assert wording(text).problem(ITEM, ITEM.context, OPTIONS) is None
    assert lists_options(text)
    assert not lists_options(TERSE)


@pytest.mark.parametrize(
    ("text", "around"),
    [
        (TERSE, ("", ITEM.context, "\n\nQ: How long is it?\nA:")),
        (
            "{{ question }}{% set text = context %} ({{ text }})",
            ("How long is it? (", ITEM.context, ")"),
        ),
        (
            "{% if context %}Read: {{ context }} {% endif %}{{ question }}",
            ("Read: ", ITEM.context, " How long is it?"),
        ),
        ("{{ question }}", ("How long is it?", "", "")),
        (
            "{% if context|length > 9 %}It is long. {% endif %}{{ question }}",
            ("It is long. How long is it?", "", ""),
        ),
    ],
)
def test_what_stands_around_the_context(text, around):
    mine = wording(text)
    assert mine.problem(ITEM, ITEM.context, ()) is None
    assert mine.around(ITEM, ITEM.context, ()) == around
    assert "".join(around) == mine.whole(ITEM, ITEM.context, ())
    assert mine.around(ITEM, "", ()) == (mine.whole(ITEM, "", ()), "", "")


NONE = """
{{ contxt }} {{ question }} | unknown field 'contxt'; did you mean 'context'?
{% if false %}{{ contxt }}{% endif %}{{ question }} | unknown field 'contxt'
{{ question }} {{ answers[0] }} | field 'answers': a prompt that holds the right answer measures nothing
{{ question }} {{ answer }} | field 'answer': a
{{ context }} | field 'question': a prompt needs the question
{% set question = 'x' %}{{ question }} | field 'question': a
{{ question } | not a Jinja template: line 1: unexpected '}'
{{ question }}{{ lipsum() }} | unknown field 'lipsum'
{{ question }}{{ self }} | unknown field 'self'
"""
DEEP = "{{ question }}{{ " + "(" * 9999 + "1" + ")" * 9999 + " }}"


@pytest.mark.parametrize(("text", "problem"), [*lines(NONE), (DEEP, "nested too deep")])
def test_templates_that_are_none(text, problem):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        checked(text)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_checking_computes_nothing():
    """Jinja computes constants where it compiles; this one would take years."""
    endless = "{{ question }}{{ 9 ** (9 ** (9 ** 9)) }}"
    assert checked(endless) == endless


UNFIT = """
{{ question }} {{ context | upper }} | field 'context': must be in the prompt unchanged
{{ question }} {{ context[:20] }} | field 'context': must be in the prompt unchanged
{{ question ~ context }} | field 'context': must be in the prompt unchanged
{{ question }}{% filter upper %}{{ context }}{% endfilter %} | field 'context': must be
{{ context }}{{ question }}{{ context }} | field 'context': is in the prompt more than once
{% if question %}Well?{% endif %} | field 'question': the prompt does not hold the question
{% if language == 'klingon' %}{{ question }}{% endif %} | field 'question': the prompt does not hold
{{ question }}{{ options }} | a list is no text; write a list with a loop
{{ question }}{{ range }} | a function is no text
{{ question }}{{ none }} | a NoneType is no text
{{ question }}{{ id.number }} | 'str object' has no attribute 'number'
{{ question }}{{ 1 / 0 }} | division by zero
"""


@pytest.mark.parametrize(("text", "problem"), lines(UNFIT))
def test_templates_that_cannot_pose_an_item(text, problem):
    found = wording(text).problem(ITEM, ITEM.context, OPTIONS)
    assert found is not None
    assert problem in found


@pytest.mark.parametrize(
    "attack",
    [
        "question.__class__.__mro__[1].__subclasses__()",
        "''['__class__']",
        "question | attr('__class__')",
        "'{0.__class__.__init__.__globals__}'.format(question)",
        "cycler.__init__.__globals__.os.popen('id').read()",
        "namespace.__init__.__globals__",
        "question.format.__globals__",
        "options.append('more')",
        "range(10 ** 9) | list | length",
    ],
)
def test_the_sandbox_holds(attack):
    found = wording("{{ question }}{{ " + attack + " }}").problem(
        ITEM, ITEM.context, OPTIONS
    )
    assert found is not None
    assert (
        "unsafe" in found
        or "Range too big" in found
        or "no attribute" in found
        or "undefined" in found
    )


def test_nothing_of_files_or_chance():
    assert "no loader" in (
        wording("{{ question }}{% include '/etc/passwd' %}").problem(ITEM, "", ()) or ""
    )
    assert "No filter named 'random'" in refused(
        wording, "{{ question }}{{ options | random }}"
    )


@pytest.mark.parametrize(
    "name", ["paper", "all", "", "a+b", "a/b", "a b", ".hidden", "é", "a\n"]
)
def test_names_that_are_none(name):
    with pytest.raises(ValueError, match="name"):
        checked_name(name)
    assert checked_name("terse-2.b_c") == "terse-2.b_c"


def test_a_solved_example(tokenizer):
    exemplar = make_item(2, context="x" * 400, question="Who?", answers=("Ann",))
    item = make_item(1, context="y" * 600, question="Where?")
    built = prompter(tokenizer, TERSE, cap=2000).build(
        item, "one_shot", exemplar=exemplar
    )
    assert (
        built.text == f"{'x' * 300}\n\nQ: Who?\nA: Ann\n\n{'y' * 500}\n\nQ: Where?\nA:"
    )
    lines = prompter(tokenizer, TERSE + "\n\n", cap=2000).build(
        item, "one_shot", exemplar=exemplar
    )
    assert "\nA:\nAnn\n\n" in lines.text
