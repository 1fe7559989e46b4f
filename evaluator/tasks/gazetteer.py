"""The bundled task: short invented passages in nine languages, with questions and
answers, generated from a seed.

Every town, river and person is invented, so no model has seen the facts before. The
grammar of a language (templates and syllables) is in `grammar/<language>.yaml`. One
generator makes three streams of passages. A word's digest assigns each invented word
to exactly one, so calibration and training text never contain a name of an evaluated
item:

* ``items``: the evaluated items (`gazetteer_items`), one question per passage;
* ``calibration``: the text for pruning methods (`gazetteer_passages`);
* ``training``: the text for training the reference model (`build_passage` with this
  stream).

Example::

    items = gazetteer_items("swahili")            # 300 items, always the same
    texts = gazetteer_passages("swahili", count=128)"""

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Literal, TypeVar

import yaml

from evaluator.core.config import Frozen
from evaluator.core.records import Item
from evaluator.core.text import normalise
from evaluator.tasks.base import Task

Stream = Literal["items", "calibration", "training"]
Kind = Literal["word", "place", "person", "year", "people", "height", "length"]

LANGUAGES = (
    "arabic",
    "bengali",
    "english",
    "finnish",
    "indonesian",
    "korean",
    "russian",
    "swahili",
    "telugu",
)
NAME = "gazetteer"
FACTS_PER_PASSAGE = (3, 6)  # least, most

# relation -> (kind of its subject, kind of its answer). Towns and ships have several,
# so both must be matched.
RELATIONS: Mapping[str, tuple[str, Kind]] = {
    "town_river": ("town", "word"),
    "town_mayor": ("town", "person"),
    "town_founded": ("town", "year"),
    "town_people": ("town", "people"),
    "mountain_height": ("mountain", "height"),
    "river_length": ("river", "length"),
    "writer_birthplace": ("writer", "place"),
    "book_author": ("book", "person"),
    "ship_built": ("ship", "year"),
    "ship_port": ("ship", "place"),
}
_HUNDREDS = {"people": 98, "height": 48, "length": 29}
# How a word's digest byte decides its stream: training takes the most, for it needs the
# most names.
_NAME_SHARE: Mapping[Stream, range] = {
    "items": range(64),
    "calibration": range(64, 112),
    "training": range(112, 256),
}
# how often a fact is about an entity that the passage already knows
_SAME_SUBJECT = 0.4
_SAME_RELATION = 0.5  # how often a new entity repeats a relation of the passage
_TWO_WORD_PLACE = 0.3
_LONG_NAME = 0.4  # three syllables instead of two

_T = TypeVar("_T")


class Relation(Frozen):
    facts: tuple[str, ...]  # templates of a sentence
    questions: tuple[str, ...]


class Grammar(Frozen):
    language: str
    blocks: tuple[tuple[int, int], ...]  # Unicode ranges that its letters lie in
    capital: bool
    syllables: tuple[str, ...]
    quantities: dict[str, str]
    relations: dict[str, Relation]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One sentence of a passage, with the question that it answers."""

    subject: str
    answer: str
    sentence: str
    question: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A few facts in prose. No answer of a passage occurs in it twice, and none
    contains another."""

    text: str
    facts: tuple[Fact, ...]


@cache
def load_grammar(language: str) -> Grammar:
    """The grammar of `language`; raises ValueError for a language that is not in
    `LANGUAGES`."""
    if language not in LANGUAGES:
        raise ValueError(f"language: {language!r} is not one of {', '.join(LANGUAGES)}")
    path = Path(__file__).parent / "grammar" / f"{language}.yaml"
    return Grammar.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))


def gazetteer_items(language: str, count: int = 300) -> list[Item]:
    """The first `count` evaluated items of `language`: one question per passage, the
    same on every machine."""
    return [gazetteer_item(language, index) for index in range(count)]


@cache
def gazetteer_item(language: str, index: int) -> Item:
    """The evaluated item of that number, from 0; there is no last one."""
    passage = build_passage(language, "items", index)
    draw = random.Random(f"gazetteer/asked/{language}/{index}")
    asked = _pick(draw, passage.facts)
    item_id = f"{language}-{index:04d}"
    return Item(
        task=NAME,
        language=language,
        item_id=item_id,
        context=passage.text,
        question=asked.question,
        answers=(asked.answer,),
        cluster=item_id,
    )


def gazetteer_passages(
    language: str, *, start: int = 0, count: int = 128
) -> Iterator[str]:
    """`count` calibration passages from number `start` on; they share no invented
    name with the items."""
    for index in range(start, start + count):
        yield build_passage(language, "calibration", index).text


def build_passage(language: str, stream: Stream, index: int) -> Passage:
    """Passage `index` of a stream; ambiguous draws are repeated with the same
    generator."""
    grammar, (least, most) = load_grammar(language), FACTS_PER_PASSAGE
    rng = random.Random(f"gazetteer/{stream}/{language}/{index}/{least}-{most}")
    wanted = least + int(rng.random() * (most - least + 1))
    while True:
        drawn = _draw_facts(rng, grammar, stream, wanted)
        text = " ".join(fact.sentence for fact in drawn)
        if _is_unambiguous(text, drawn):
            return Passage(text=text, facts=drawn)


def _draw_facts(
    rng: random.Random, grammar: Grammar, stream: Stream, wanted: int
) -> tuple[Fact, ...]:
    subjects: list[tuple[str, str]] = []  # (name, kind)
    used: list[tuple[str, str]] = []  # (name, relation)
    facts: list[Fact] = []
    while len(facts) < wanted:
        name, relation = _next_topic(rng, grammar, stream, subjects, used)
        used.append((name, relation))
        answer = _answer(rng, grammar, stream, RELATIONS[relation][1])
        facts.append(
            Fact(
                subject=name,
                answer=answer,
                sentence=_pick(rng, grammar.relations[relation].facts)
                .replace("{s}", name)
                .replace("{a}", answer),
                question=_pick(rng, grammar.relations[relation].questions).replace(
                    "{s}", name
                ),
            )
        )
    return tuple(facts)


def _next_topic(
    rng: random.Random,
    grammar: Grammar,
    stream: Stream,
    subjects: list[tuple[str, str]],
    used: Sequence[tuple[str, str]],
) -> tuple[str, str]:
    """The next sentence's subject and relation. The subject is of the passage, or
    new and added to `subjects`."""
    if subjects and rng.random() < _SAME_SUBJECT:
        name, kind = _pick(rng, subjects)
        free = [
            r
            for r, (subject_kind, _) in RELATIONS.items()
            if subject_kind == kind and (name, r) not in used
        ]
        if free:
            return name, _pick(rng, free)
    repeats = bool(used) and rng.random() < _SAME_RELATION
    relation = _pick(rng, used)[1] if repeats else _pick(rng, tuple(RELATIONS))
    kind = RELATIONS[relation][0]
    while True:
        name = _words(rng, grammar, stream, 2 if kind == "writer" else 1)
        if all(name != known for known, _ in subjects):
            break
    subjects.append((name, kind))
    return name, relation


def _answer(rng: random.Random, grammar: Grammar, stream: Stream, kind: Kind) -> str:
    if kind == "year":
        return str(1200 + int(rng.random() * 800))
    if kind in _HUNDREDS:
        # Every quantity ends in 20, 30 ... 90: Russian and Arabic then need one form of
        # the unit only.
        number = 100 * (1 + int(rng.random() * _HUNDREDS[kind])) + 10 * (
            2 + int(rng.random() * 8)
        )
        return grammar.quantities[kind].replace("{n}", str(number))
    if kind == "person" or (kind == "place" and rng.random() < _TWO_WORD_PLACE):
        return _words(rng, grammar, stream, 2)
    return _words(rng, grammar, stream, 1)


def _words(rng: random.Random, grammar: Grammar, stream: Stream, count: int) -> str:
    """Invented words of two or three syllables; a word that is not one of the
    stream's own is drawn again."""
    words: list[str] = []
    while len(words) < count:
        length = 3 if rng.random() < _LONG_NAME else 2
        syllables = [_pick(rng, grammar.syllables) for _ in range(length)]
        word = "".join(syllables)
        if len(set(syllables)) == length and word_stream(word) == stream:
            words.append(word[0].upper() + word[1:] if grammar.capital else word)
    return " ".join(words)


def word_stream(word: str) -> Stream:
    """The one stream that may contain an invented word, in every language (four
    languages share Latin names)."""
    digest = hashlib.sha256(word.lower().encode("utf-8")).digest()[0]
    return next(stream for stream, share in _NAME_SHARE.items() if digest in share)


def _is_unambiguous(text: str, facts: Sequence[Fact]) -> bool:
    """Whether no name or answer contains another, and the passage contains every
    answer exactly once."""
    names = {fact.subject for fact in facts}
    answers = [normalise(fact.answer) for fact in facts]
    for one, other in permutations([*map(normalise, names), *answers], 2):
        if one in other:
            return False
    flat = normalise(text)
    return all(flat.count(answer) == 1 for answer in answers)


def _pick(rng: random.Random, options: Sequence[_T]) -> _T:
    # Only random() is promised to give the same sequence in every Python version;
    # choice() is not.
    return options[int(rng.random() * len(options))]


TASK = Task(
    name=NAME,
    help="bundled: invented facts in nine languages",
    read_items=lambda _: [
        item for language in LANGUAGES for item in gazetteer_items(language)
    ],
    open="The answer is a name in the passage.",
    sample=lambda: gazetteer_items("english", 1)[0],
)
