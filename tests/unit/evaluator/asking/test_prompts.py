"""Prompts to the letter, their token caps, and the laws of the answer boundary."""

from dataclasses import replace
from datetime import date

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from tokenizers import decoders as token_decoders
from transformers import PreTrainedTokenizerFast

from evaluator.asking.prompts import Prompt, Prompter, prompt_text
from evaluator.probes.perplexity import windows_of
from evaluator.probes.planning import exemplars_of
from tests.support.stamps import make_item
from tests.support.sweeps import refused

CHATML = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content"
    " }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{%"
    " if enable_thinking is defined and enable_thinking is false"
    " %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
CORPUS = [
    (
        "Context: the Nile is long.\n\nQuestion: how long?\n\nAnswer in a few words:"
        " 6650 km"
    ),
    "Answer: Nile",
    "a: b",
]


def byte_tokenizer(
    *,
    special=("<bos>", "<eos>", "<|im_start|>", "<|im_end|>"),
    template=None,
    merges=(),
):
    """Byte-level BPE, one id a byte but for `merges`, which know no word boundaries."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {char: number for number, char in enumerate(alphabet)}
    for one, other in merges:
        vocabulary[one + other] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    tokenizer.decoder = token_decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special))
    if template is not None:
        ids = [(token, tokenizer.token_to_id(token)) for token in ("<bos>", "<eos>")]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=ids
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>"
    )


@pytest.fixture(scope="module")
def merging():
    """A tokenizer trained without any pre-tokenisation: it merges across words,
    lines and the answer boundary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.decoder = token_decoders.Fuse()
    alphabet = [*map(chr, range(32, 127)), "\n", *"äกน\u0301\u0627\u0654"]
    trainer = trainers.BpeTrainer(
        vocab_size=300, show_progress=False, initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def prompter(tokenizer, *, chat=False, cap=512, one_shot_cap=1024, date=None):
    return Prompter(
        tokenizer,
        chat=chat,
        prompt_tokens=cap,
        one_shot_prompt_tokens=one_shot_cap,
        date=date,
    )


ITEM = make_item(0, answers=["Nile"], context="C" * 600, question="Which?")
EXEMPLAR = make_item(1, answers=["...", "Po"], context="E" * 400, question="Where?")
ASKED = "Question: Which?\n\nAnswer in a few words:"
LISTED = "Question: Which?\n\nCandidates: a; b; c\n\nAnswer in a few words:"
EXAMPLE, THEN = (
    "Question: Where?\nAnswer in a few words: Po\n\n",
    "Question: Which?\nAnswer in a few words:",
)


@pytest.mark.parametrize(
    ("form", "arguments", "expected"),
    [
        ("open", {}, f"Context: {'C' * 600}\n\n{ASKED}"),
        ("open", {"context_chars": 500}, f"Context: {'C' * 500}\n\n{ASKED}"),
        *(
            (form, {"candidates": [*"abc"]}, f"Context: {'C' * 600}\n\n{LISTED}")
            for form in ("shown", "distractors_only", "unrelated")
        ),
        (
            "one_shot",
            {"exemplar": EXEMPLAR},
            f"Context: {'E' * 300}\n{EXAMPLE}Context: {'C' * 500}\n{THEN}",
        ),
        (
            "one_shot",
            {"exemplar": EXEMPLAR, "context_chars": 2},
            f"Context: {'E' * 300}\n{EXAMPLE}Context: CC\n{THEN}",
        ),
    ],
)
def test_formats_to_the_letter(form, arguments, expected):
    prompt = prompter(byte_tokenizer(), cap=1000).build(ITEM, form, **arguments)
    assert prompt.text == expected
    assert prompt.token_ids == tuple(byte_tokenizer()(expected).input_ids)
    assert not prompt.truncated
    if "context_chars" not in arguments:
        assert prompt_text(ITEM, form, **arguments) == expected


@pytest.mark.parametrize("context", ["", " \n"])
@pytest.mark.parametrize(
    ("form", "arguments", "expected"),
    [
        ("open", {}, ASKED),
        ("shown", {"candidates": [*"abc"]}, LISTED),
        ("one_shot", {"exemplar": replace(EXEMPLAR, context="")}, EXAMPLE + THEN),
        # a data set in which some questions have a context
        (
            "one_shot",
            {"exemplar": replace(EXEMPLAR, context="E")},
            f"Context: E\n{EXAMPLE}{THEN}",
        ),
    ],
)
def test_item_without_context(context, form, arguments, expected):
    """An item without a context is asked without one."""
    item = replace(ITEM, context=context)
    prompt = prompter(byte_tokenizer(), cap=1000).build(item, form, **arguments)
    assert (prompt.text, prompt.truncated) == (expected, False)
    assert prompt_text(item, form, **arguments) == expected


def test_one_shot_cap_and_exemplar():
    """One shot has a cap of its own and needs an exemplar."""
    small = prompter(byte_tokenizer(), cap=100, one_shot_cap=500)
    cut = small.build(ITEM, "one_shot", exemplar=EXEMPLAR)
    assert cut.truncated
    assert len(cut.token_ids) == 500
    assert cut.text.startswith(f"Context: {'E' * 300}\n")
    needs = "language 'english': format 'one_shot' needs an item that is not evaluated"
    assert needs in refused(small.build, ITEM, "one_shot")


def test_exemplars_are_neither_evaluated_nor_excluded():
    pool = [make_item(0), make_item(1, answers=["?"]), make_item(2), make_item(3)]
    assert exemplars_of(pool, [pool[0]]) == pool[2:]
    assert exemplars_of(pool, pool[1:]) == [pool[0]]
    assert exemplars_of(pool, [pool[0], pool[2], pool[3]]) == []


def test_bos_is_added_eos_is_not():
    """The tokenizer adds its bos but never closes the prompt."""
    text = "Context: x\n\nQuestion: q\n\nAnswer in a few words:"
    item = make_item(0, context="x", question="q")
    bare = tuple(byte_tokenizer()(text).input_ids)
    for template, start in (
        ("<bos> $A", True),
        ("<bos> $A <eos>", True),
        ("$A <eos>", False),
        (None, False),
    ):
        tokenizer = byte_tokenizer(template=template)
        built = prompter(tokenizer, cap=100)
        prompt = built.build(item, "open")
        bos = (tokenizer.bos_token_id,) if start else ()
        assert prompt.token_ids == bos + bare
        scored = built.continuations(prompt, ["Nile"])[0]
        assert scored.prompt_ids == prompt.token_ids
        assert scored.continuation_ids == tuple(byte_tokenizer()(" Nile").input_ids)
        cut = prompter(tokenizer, cap=len(bare) + 1 - (not start)).build(
            make_item(0, question="q"), "open"
        )
        assert cut.text == text.replace(": x", ": T")


def test_chat_prompt_is_one_user_turn():
    """Chat prompts are user turns without thinking and without a second bos."""
    tokenizer = byte_tokenizer(template="<bos> $A")
    tokenizer.chat_template = CHATML
    built = prompter(tokenizer, chat=True, cap=140)
    item = make_item(0, context="x", question="q")
    prompt = built.build(item, "open")
    assert (
        prompt.text
        == "<bos><|im_start|>user\nContext: x\n\nQuestion: q\n\nAnswer in a few"
        " words:<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    assert prompt.token_ids.count(tokenizer.bos_token_id) == 1
    scored = built.continuations(prompt, ["Nile"])[0]
    assert scored.prompt_ids == prompt.token_ids
    # no space before it
    assert scored.continuation_ids == tuple(byte_tokenizer()("Nile").input_ids)
    cut = built.build(ITEM, "open")
    assert cut.truncated
    assert len(cut.token_ids) == 140
    assert cut.text.endswith(
        "words:<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    assert cut.text.startswith("<bos><|im_start|>user\nContext: CC")


def test_examples_stand_before_every_prompt_but_the_papers_one():
    tokenizer = byte_tokenizer()
    shots = [
        make_item(1, answers=["Po"], context="", question="Where?"),
        make_item(2, answers=["7"], context="c", question="When?"),
    ]
    item = make_item(0, context="", question="Which?")
    before = (
        "Question: Where?\n\nAnswer in a few words: Po\n\n"
        "Context: c\n\nQuestion: When?\n\nAnswer in a few words: 7\n\n"
    )
    built = prompter(tokenizer)
    assert built.build(item, "open", examples=shots).text == before + ASKED
    listed = built.build(item, "shown", candidates="abc", examples=shots)
    assert listed.text == before + LISTED
    one_shot = {"exemplar": EXEMPLAR, "context_chars": 0}
    plain = built.build(item, "one_shot", **one_shot)
    assert built.build(item, "one_shot", examples=shots, **one_shot) == plain


def test_system_message_is_in_the_chat_template():
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    )
    built = prompter(tokenizer, chat=True)
    built.system = "Be brief."
    text = built.build(make_item(0, context="", question="q"), "open").text
    assert text.startswith("[system] Be brief.\n[user] Question: q")
    tokenizer.chat_template = "{{ messages[-1].content }}"
    assert "leaves the system message out" in refused(
        lambda: built.build(make_item(0), "open")
    )


@pytest.mark.parametrize(
    "template", ["{{ strftime_now('%d %b %Y') }}", "{{ date_string }}"]
)
def test_chat_templates_read_the_runs_date(template):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template + " {{ messages[0].content }}"
    made = [
        prompter(tokenizer, chat=True, date=day).build(make_item(0), "open")
        for day in (None, date(2026, 1, 31))
    ]
    assert [prompt.text[:11] for prompt in made] == ["26 Jul 2024", "31 Jan 2026"]
    assert made[0].digest != made[1].digest


def test_bad_chat_templates_are_refused():
    tokenizer = byte_tokenizer()
    assert "no chat template" in refused(prompter, tokenizer, chat=True)
    for template, message in (
        ("{{ messages[0].content | upper }}", "rewrites the user's turn"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        (
            "{% if %}",
            "chat: the chat template cannot be applied (Expected an expression",
        ),
    ):
        tokenizer.chat_template = template
        assert message in refused(
            lambda: prompter(tokenizer, chat=True).build(ITEM, "open")
        )


TEXT = st.text(
    alphabet=st.sampled_from("ab Nile:\nä\u0301กน้ำ\u0627\u0654东𐍈"), max_size=120
)
CONTEXT = TEXT.filter(str.strip)


def check_cut(built, tokenizer, item, cap):
    """The laws of a prompt under a cap. Returns the prompt."""
    after = f"\n\nQuestion: {item.question}\n\nAnswer in a few words:"
    whole = tokenizer(f"Context: {item.context}{after}").input_ids
    prompt = built.build(item, "open")
    assert prompt == built.build(item, "open")
    assert prompt.token_ids == tuple(tokenizer(prompt.text).input_ids)
    assert prompt.truncated == (len(whole) > cap)
    assert len(prompt.token_ids) <= cap
    assert prompt.text.startswith("Context: ")
    assert prompt.text.endswith(after)
    kept = prompt.text.removeprefix("Context: ").removesuffix(after)
    assert item.context.startswith(kept)
    for longer in range(len(kept) + 1, min(len(kept) + 9, len(item.context) + 1)):
        assert (
            len(tokenizer(f"Context: {item.context[:longer]}{after}").input_ids) > cap
        )
    return prompt


@settings(max_examples=60, deadline=None)
@given(
    context=CONTEXT,
    question=st.text(alphabet="ab Nil:", max_size=8),
    room=st.integers(0, 60),
)
def test_cap_cuts_only_the_context(merging, context, question, room):
    item = make_item(0, context=context, question=question)
    shortest = len(
        merging(
            f"Context: \n\nQuestion: {question}\n\nAnswer in a few words:"
        ).input_ids
    )
    check_cut(prompter(merging, cap=shortest + room), merging, item, shortest + room)


def check_boundary(built, tokenizer, prompt, answer, separator=" "):
    scored, _ = built.continuations(prompt, [answer, "6650 km"])  # in one batch
    joint = tuple(tokenizer(prompt.text + separator + answer).input_ids)
    assert scored.prompt_ids + scored.continuation_ids == joint
    assert scored.continuation_ids
    assert scored.prompt_ids == prompt.token_ids[: len(scored.prompt_ids)]
    moved = scored.prompt_ids != prompt.token_ids
    assert moved == (joint[: len(prompt.token_ids)] != prompt.token_ids)
    if moved:  # the last token in common: the next one differs
        common = len(scored.prompt_ids)
        assert common < len(prompt.token_ids)
        assert joint[common] != prompt.token_ids[common]
    return scored


@settings(max_examples=200, deadline=None)
@given(
    start=st.sampled_from(["Answer in a few words:", "Context: the Nile", "a: b\n\nA"]),
    answer=st.text(alphabet="Nile 6k\nä\u0301:", min_size=1, max_size=8),
)
def test_boundary_laws_where_merges_cross_it(merging, start, answer):
    ids = tuple(merging(start).input_ids)
    joint = tuple(merging(f"{start} {answer}").input_ids)
    assume(ids[0] == joint[0])
    check_boundary(
        prompter(merging),
        merging,
        Prompt(text=start, token_ids=ids, truncated=False),
        answer,
    )


def test_merge_across_boundary_moves_split():
    """A merge across the boundary moves the split back and an answer needs tokens."""
    tokenizer = byte_tokenizer(merges=[(":", "Ġ"), (":Ġ", "N")])
    built = prompter(tokenizer)
    prompt = built.build(make_item(0, context="x"), "open")
    # " Nile" eats the colon, " Po" takes only the space into it: both are split before
    # the colon
    for answer, first in (("Nile", ":ĠN"), ("Po", ":Ġ")):
        scored = check_boundary(built, tokenizer, prompt, answer)
        assert scored.prompt_ids == prompt.token_ids[:-1]
        assert tokenizer.convert_ids_to_tokens([scored.continuation_ids[0]]) == [first]
    tokenizer.chat_template = "{{ messages[0].content }}"
    chat = prompter(tokenizer, chat=True)
    prompt = chat.build(make_item(0, context="x"), "open")
    assert (
        check_boundary(chat, tokenizer, prompt, "Nile", separator="").prompt_ids
        == prompt.token_ids
    )
    assert "answer '' has no tokens of its own" in refused(
        chat.continuations, prompt, [""]
    )


@pytest.mark.parametrize(
    ("chat_template", "template", "opening"),
    [
        # GLM's: its tokenizer adds nothing
        ("\n[gMASK]<sop>\n{% for m in messages %}<|m|>", None, ["[gMASK]", "<sop>"]),
        ("[gMASK]<sop>{{ m }}", "<bos> $A", ["[gMASK]", "<sop>"]),
        # the tokenizer writes it too
        ("<bos>{{ m }}", "<bos> $A", []),
        # no special tokens, or those of a turn
        ("Ask: {{ m }}", None, []),
        ("{% for m in messages %}<|im_start|>{{ m }}{% endfor %}", None, []),
        (None, None, []),
    ],
)
def test_plain_text_begins_as_the_template_does(chat_template, template, opening):
    special = ("<bos>", "<eos>", "<|im_start|>", "[gMASK]", "<sop>")
    tokenizer = byte_tokenizer(special=special, template=template)
    tokenizer.chat_template = chat_template
    own = tokenizer("Lake Seran", verbose=False)["input_ids"]
    ids = tokenizer.convert_tokens_to_ids(opening)
    prompt = prompter(tokenizer).pose("Lake", " ", "Seran")
    assert prompt.token_ids == (*ids, *own)
    (gold,) = prompter(tokenizer).continuations(prompt, ["Nile"])
    assert gold.prompt_ids == prompt.token_ids
    (window,) = windows_of("book", "Lake Seran", tokenizer, 64, 64)
    assert list(window.token_ids) == [*ids, *own]
