"""Where an answer is cut: by the rule, on texts that make each word of it matter."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.probes.alignment import align
from evaluator.probes.grading import grade


class Pieces:
    """A tokenizer whose tokens are pieces of UTF-8 text, decoded as byte-level tokenizers do."""

    def __init__(self, *pieces: str | bytes) -> None:
        self._pieces = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
        self.ids = tuple(range(len(pieces)))

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self._pieces[token] for token in ids).decode(errors="replace")

    def cut(self, *answers: str) -> tuple[str, str] | None:
        """Lead-in and aligned answer, decoded."""
        found = align(self.ids, answers, self.decode)
        return None if found is None else (self.decode(found.lead_in), self.decode(found.answer))


@pytest.mark.parametrize(
    ("pieces", "answers", "expected"),
    [
        (("The", " river", " is", " Ni", "le", "."), ["Nile"], ("The river is", " Nile")),
        (("Nile",), ["Nile"], ("", "Nile")),
        # case and punctuation do not count; punctuation before the answer belongs to the lead-in
        (("It", " is", ' "', "NI", "LE", '"'), ["Nile"], ('It is "', "NILE")),
        (("U", ".", "S", ".", " Army"), ["US"], ("", "U.S")),
        (("in", " New", "  ", "York", " City"), ["new york"], ("in", " New  York")),
        # the first mention ends the answer; within it, the last place where it can begin begins it
        (("Nile", ", the", " Nile"), ["Nile"], ("", "Nile")),
        (("ni", " ni", "le"), ["Nile"], ("ni", " nile")),
        (("an", "an", "as"), ["anas"], ("an", "anas")),
        # of several answers the one that is complete first, however they are listed; of two at once the shorter
        (("the", " White", " Nile"), ["White Nile", "White"], ("the", " White")),
        (("the", " White", " Nile"), ["White Nile", "Nile"], ("the White", " Nile")),
        # a token that holds more than the answer is taken whole
        (("about", " sixty", "Nileometres"), ["Nile"], ("about sixty", "Nileometres")),
        # answers that normalise to nothing are in no text
        (("well", "?!"), ["?!"], None),
        (("well", "?!", " Nile"), ["?!", "Nile"], ("well?!", " Nile")),
        (("the", " Congo"), ["Nile"], None),
        ((), ["Nile"], None),
        # cut by the token limit, before or after the answer is complete
        (("the", " Ni"), ["Nile"], None),
        (("the", " Ni", "le in Eg"), ["Nile"], ("the", " Nile in Eg")),
    ],
)
def test_the_rule_on_words(pieces, answers, expected):
    assert Pieces(*pieces).cut(*answers) == expected


def test_characters_of_several_tokens_are_kept_whole():
    first, *rest = [bytes([byte]) for byte in "о".encode()]
    said = Pieces("это ", first, *rest, "нти", ".")
    assert said.cut("Онти") == ("это ", "онти")
    assert Pieces("это ", first, *rest, "нт").cut("Онти") is None
    # an answer that ends in the middle of a character is complete before it
    emoji = "🌊".encode()
    assert Pieces("the ", emoji[:2], emoji[2:], "Nile", emoji[:3]).cut("Nile") == ("the 🌊", "Nile")
    # a letter whose accent follows as a token of its own, and a gold answer with both as one code point
    said = Pieces("un ", "cafe", "\N{COMBINING ACUTE ACCENT}", " noir")
    assert said.cut("caf\N{LATIN SMALL LETTER E WITH ACUTE}") == ("un ", "cafe\N{COMBINING ACUTE ACCENT}")


@pytest.mark.parametrize(
    ("pieces", "answer", "expected"),
    [
        # thoughts are not said
        (("<think>", "Nile", "</think>", "Po"), "Nile", None),
        (("<think>", "Nile"), "Nile", None),
        (("<think>", "Nile", "</think>", "the ", "Nile"), "Nile", ("<think>Nile</think>the ", "Nile")),
        (("Nile", "<think>", "Po", "</think>"), "Nile", ("", "Nile")),
        # a tag in pieces does not show what it says
        (("<", "think", ">", "a", "</", "think", ">", "I ", "think"), "think", ("<think>a</think>I ", "think")),
        (("<", "think", ">", "a", "</", "think", ">", "I know"), "think", None),
        # an answer on both sides of a thought; the thought holds it too, and must not be taken for it
        (("Ni", "<think>", "Nile", "</think>", "le", " it is"), "Nile", ("", "Ni<think>Nile</think>le")),
        # tokens that a tag shares with what is said
        (("<thi", "nk>Ni", "le</thi", "nk>the Ni", "le"), "Nile", ("<think>Nile</thi", "nk>the Nile")),
        # two thoughts
        (
            ("<think>", "x", "</think>", "<think>", "Nile", "</think>", "Nile"),
            "Nile",
            ("<think>x</think><think>Nile</think>", "Nile"),
        ),
    ],
)
def test_a_match_is_outside_of_every_thought(pieces, answer, expected):
    assert Pieces(*pieces).cut(answer) == expected


@settings(max_examples=400, deadline=None)
@given(
    pieces=st.lists(
        st.sampled_from(["a", "b", "A.", " ", "-", "ab", "<think>", "</think>", "<thi", "nk>", "</", b"\xc3", b"\xa9"]),
        max_size=9,
    ),
    answers=st.lists(st.sampled_from(["a", "ab", "ba", "a b", "aab", "é", "think", "."]), min_size=1, max_size=3),
)
def test_defined_exactly_where_grading_finds_an_answer_and_cut_as_tightly_as_can_be(pieces, answers):
    said = Pieces(*pieces)
    found = align(said.ids, answers, said.decode)
    assert (found is not None) == grade(said.decode(said.ids), answers, "english").contains
    if found is None:
        return
    end = len(found.lead_in) + len(found.answer)
    assert said.ids[:end] == found.lead_in + found.answer
    assert found.answer
    if "<" not in said.decode(said.ids):  # where no thought is, the rule is one line of Python for either end

        def contains(start, end):
            return grade(said.decode(said.ids[start:end]), answers, "english").contains

        assert end == min(k for k in range(1, len(said.ids) + 1) if contains(0, k))
        assert len(found.lead_in) == max(j for j in range(end) if contains(j, end))
