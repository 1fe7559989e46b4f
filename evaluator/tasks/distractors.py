"""The wrong candidates beside a gold answer in a choice or a prompt. Pure.

Rule `any` draws from all answers of the language, like the paper (The Benchmark
Illusion, arXiv 2606.17609). `alike` prefers answers of the gold answer's kind and of
similar length: a year among names would give the answer away. `near` makes them of the
item and a gold answer that is a number: another number of the question, the other
sign, ten times or a tenth of it, one digit changed, off by one.

Every draw uses `random.Random(f"{seed}:{item_id}")`, so an item has the same candidates
in every run. A candidate is the gold option of another item. The strict grader
(`evaluator.core.grading`) tells it from the item's gold answers and from the other
candidates, either way: neither would be right if the other were the answer.
"""

import random
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import Literal, NamedTuple

from evaluator.core.errors import InputError, one_line
from evaluator.core.graders import GRADERS, numbers_in
from evaluator.core.grading import alike, gradable, grade
from evaluator.core.plain import plain
from evaluator.core.records import Item
from evaluator.tasks.answer_types import answer_type
from evaluator.tasks.loading import gold_option, is_excluded

DrawnOptions = Literal["any", "alike", "near"]  # the rules
DISTRACTORS = 3
UNRELATED = 4


@dataclass(frozen=True, slots=True)
class Options:
    """The candidates of one item in the order in which a prompt lists them."""

    texts: tuple[str, ...]
    gold: int  # index of the gold option


Form = tuple[frozenset[str], frozenset[str]]  # `number_form`


class Part(NamedTuple):
    """Some items of a pool, and their places in it."""

    items: list[Item]
    places: list[int]


@dataclass(frozen=True, slots=True)
class Rest:
    """A pool without the items at some places, which ascend."""

    pool: Sequence[Item]
    places: Sequence[int]

    def __len__(self) -> int:
        return len(self.pool) - len(self.places)

    def __getitem__(self, at: int) -> Item:
        skipped = range(len(self.places))
        before = bisect_right(skipped, at, key=lambda n: self.places[n] - n)
        return self.pool[at + before]


Pool = Sequence[Item] | Rest


class ByKind(NamedTuple):
    """The usable items of a language by the kind of their gold option. Numbers with the
    same signs beside them are a part of all numbers, and those of one form are a part
    of these. All are in the order of the pool."""

    kinds: Mapping[str, Sequence[Item]]
    signs: Mapping[frozenset[str], Part]
    forms: Mapping[Form, Part]


def by_kind(pool: Iterable[Item]) -> ByKind:
    """A pool as `choose_options` needs it for distractors like the answer."""
    kinds: dict[str, list[Item]] = {}
    signs: dict[frozenset[str], Part] = {}
    forms: dict[Form, Part] = {}
    for item in pool:
        if not is_excluded(item):
            kind = answer_type(gold_option(item), item.language)
            kinds.setdefault(kind, []).append(item)
    for place, item in enumerate(kinds.get("number", ())):
        form = number_form(gold_option(item))
        group = signs.setdefault(form[0], Part([], []))
        same = forms.setdefault(form, Part([], []))
        same.places.append(len(group.items))
        same.items.append(item)
        group.places.append(place)
        group.items.append(item)
    return ByKind(kinds, signs, forms)


def choose_options(
    item: Item,
    pool: Sequence[Item],
    seed: int,
    kinds: ByKind | None = None,
    *,
    near: bool = False,
) -> Options | None:
    """The gold option among three distractors from the pool (or as many as it has), or
    among the item's own options; None without a single distractor.

    With `kinds` (the pool `by_kind`), distractors resemble the answer as far as the
    pool allows: same kind and similar length, same kind, similar length, any; each
    group is drawn at random. Of numbers, those in the answer's form come first. Of an
    item's own options, all are used, without repetitions and gold answers. `near`: by
    that rule.
    """
    rng = random.Random(f"{seed}:{item.item_id}")
    if item.options:
        distractors = _own_distractors(item)
    elif near:
        distractors = near_numbers(item, rng)
    elif kinds is not None:
        distractors = _distinct(_like_the_answer(item, kinds, rng), item, DISTRACTORS)
    else:
        others = [other for other in pool if other.item_id != item.item_id]
        distractors = _distinct(_drawn([others], rng), item, DISTRACTORS)
    return _arranged(item, distractors, rng)


def choose_hard_options(item: Item, pool: Sequence[Item], seed: int) -> Options | None:
    """The gold option among hard distractors of the pool, even with own options."""
    rng = random.Random(f"{seed}:{item.item_id}")
    return _arranged(item, hard_distractors(item, pool), rng)


def _arranged(
    item: Item, distractors: Sequence[str], rng: random.Random
) -> Options | None:
    """The gold option and the distractors in an order drawn from `rng`."""
    if not distractors:
        return None
    texts = [gold_option(item), *distractors]
    order = list(range(len(texts)))
    rng.shuffle(order)
    return Options(texts=tuple(texts[number] for number in order), gold=order.index(0))


def unrelated_candidates(
    item: Item, pools: Mapping[str, Sequence[Item]], seed: int
) -> tuple[str, ...]:
    """Four answers, or fewer, of all other languages in `pools`, equally likely."""
    rng = random.Random(f"{seed}:{item.item_id}")
    others = [pool for language, pool in pools.items() if language != item.language]
    return _distinct(_drawn(others, rng), item, UNRELATED)


def hard_distractors(item: Item, pool: Sequence[Item]) -> tuple[str, ...]:
    """The three answers of the pool that look most like the gold option.

    Likeness is the Jaccard index of the sets of character trigrams of the normal
    forms (0 for texts without one); ties go to the earlier item of the pool."""
    wanted = _trigrams(gold_option(item))

    def likeness(other: Item) -> float:
        theirs = _trigrams(gold_option(other))
        shared = len(wanted & theirs)
        return shared / len(wanted | theirs) if shared else 0.0

    others = [
        other
        for other in pool
        if other.item_id != item.item_id and not is_excluded(other)
    ]
    # stable: ties stay in pool order
    ranked = sorted(others, key=likeness, reverse=True)
    return _distinct(ranked, item, DISTRACTORS)


def ambiguous(item: Item) -> str:
    """Why an item's own options decide nothing: a wrong one is a gold answer to the
    strict grader. Empty: none is."""
    for option in _own_distractors(item):
        if grade(option, item.answers, item.language)["exact_match"]:
            return (
                f"its wrong option {one_line(option, 60)!r} is the gold answer to the"
                " grader"
            )
    return ""


def _own_distractors(item: Item) -> tuple[str, ...]:
    """Compared as they are written: to a benchmark of numbers, `5` and `-5` are two
    options."""
    gold = set(map(_written, item.answers))
    distinct: dict[str, str] = {}
    for option in item.options:
        if _written(option) not in gold:
            distinct.setdefault(_written(option), option)
    return tuple(distinct.values())


def _written(text: str) -> str:
    return unicodedata.normalize("NFC", text).strip()


_DIGITS = re.compile(
    r"([-−+]?)([^\d+−-]*)(\d[\d.,'’٫٬\u00a0\u202f]*\d|\d)(.*)", re.DOTALL
)


def near_numbers(item: Item, rng: random.Random) -> tuple[str, ...]:
    """Three numbers in the gold option's form, none equal to a gold answer or to each
    other: one of each kind of mistake, kinds in random order, and further ones off by
    two or more where these are too few. Raises InputError for a gold option without
    digits, or whose first number is not the one that the grader reads."""
    gold = gold_option(item)

    def refused(why: str) -> InputError:
        return InputError(
            f"task {item.task!r}, item {item.item_id!r}: options: near: its gold option"
            f" {one_line(gold, 60)!r} {why}"
        )

    number, found = GRADERS["number"], _DIGITS.search(gold)
    written = found and numbers_in(found[3], item.language)
    if not found or not written:
        raise refused("is no number in digits")
    sign, before, body, behind = found.groups()
    value = written[0] * (-1 if sign in ("-", "−") and sign else 1)
    point, places = "", 0
    if separators := re.sub(r"\d", "", body):
        point = separators[-1] if value % 1 else ""
        places = len(body.rpartition(point)[2]) if point else 0
    group = separators[:1] if separators[:1] != point else ""

    def spelled(value: float) -> str:
        whole, _, rest = f"{abs(value):,.{places}f}".partition(".")
        digits = whole.replace(",", group)
        if extra := f"{abs(value):.6f}".rstrip("0").partition(".")[2]:
            rest = max(rest, extra, key=len)
        digits = digits.zfill(len(body) * body.startswith("0") * (not point))
        digits += f"{point or '.'}{rest}" if rest else ""
        return f"{'-' if value < 0 else ''}{before}{digits}{behind}"

    place = rng.choice([at for at, char in enumerate(body) if char.isdecimal()])
    digit = rng.choice([each for each in "123456789" if each != body[place]])
    changed = numbers_in(f"{body[:place]}{digit}{body[place + 1 :]}", item.language)
    others = numbers_in(f"{item.context}\n{item.question}", item.language)
    others = [each for each in others if value % 1 or not each % 1]
    one, tens = rng.choice((1, -1)), [value * 10]
    if value % 1 or not value % 10:  # else a tenth would be no whole number
        tens.insert(rng.randrange(2), value / 10)
    ways = [
        [-value],
        tens,
        [each * (-1 if value < 0 else 1) for each in changed],
        [value + one, value - one],
        rng.sample(others, len(others)),
    ]
    rng.shuffle(ways)
    texts: list[str] = []
    more = ([value + step] for step in range(2, 100))
    for way in chain(ways, more):
        if len(texts) == DISTRACTORS:
            break
        taken = replace(item, answers=(*item.answers, *texts))
        wrong = (text for text in map(spelled, way) if not number.is_right(text, taken))
        texts += [*wrong][:1]
    if len(texts) < DISTRACTORS:
        raise refused(f"has another number behind {body!r}, which the grader reads")
    return tuple(texts)


def similar_length(one: str, other: str) -> bool:
    """Whether the longer text has at most half as many characters more, or at most
    two; both in normal form."""
    short, long = sorted((len(plain(one, "")), len(plain(other, ""))))
    return long <= max(1.5 * short, short + 2)


@lru_cache(maxsize=65536)
def number_form(text: str) -> Form:
    """What stands beside the digits of a number: a currency, a sign for per cent, any
    word; and the words themselves."""
    signs, letters = set(), []
    for char in text:
        category = unicodedata.category(char)
        if category == "Sc" or char in "%٪‰":
            signs.add(char)
        letters.append(char if category[0] in "LM" else " ")
    words = frozenset("".join(letters).casefold().split())
    return frozenset(signs | {"word"} if words else signs), words


def _by_form(gold: str, pool: ByKind) -> Sequence[Pool]:
    """Numbers in the form of the gold one, with other words beside them, and with other
    signs: its unit would give it away."""
    form, none = number_form(gold), Part([], [])
    same, group = pool.forms.get(form, none), pool.signs.get(form[0], none)
    numbers = pool.kinds.get("number", ())
    return same.items, Rest(group.items, same.places), Rest(numbers, group.places)


def _like_the_answer(item: Item, pool: ByKind, rng: random.Random) -> Iterator[Item]:
    """The item itself may be among them: its option equals a gold answer, so no
    caller takes it."""
    gold = gold_option(item)
    kind = answer_type(gold, item.language)
    groups: list[Sequence[Pool]] = [[pool.kinds.get(kind, ())]]
    if kind == "number":
        groups = [[numbers] for numbers in _by_form(gold, pool)]
    groups.append([items for other, items in pool.kinds.items() if other != kind])
    for pools in groups:
        later = []
        for candidate in _drawn(pools, rng):
            if similar_length(gold, gold_option(candidate)):
                yield candidate
            else:
                later.append(candidate)
        yield from later


def _distinct(candidates: Iterable[Item], item: Item, count: int) -> tuple[str, ...]:
    """The first `count` gold options that grading tells from the item's gold answers
    and from each other."""
    taken: list[str] = []
    tried: set[str] = set()
    for candidate in candidates:
        if len(taken) == count:
            break
        golds = gradable(candidate.answers, candidate.language)
        if not golds or (text := golds[0]) in tried:
            continue
        tried.add(text)
        if not any(
            alike(text, other, item.language) for other in (*item.answers, *taken)
        ):
            taken.append(text)
    return tuple(taken)


def _drawn(pools: Sequence[Pool], rng: random.Random) -> Iterator[Item]:
    """The items of all pools in random order: a lazy Fisher-Yates shuffle, since the
    caller takes few of them."""
    moved: dict[int, int] = {}
    count = sum(map(len, pools))
    for place in range(count):
        other = rng.randrange(place, count)
        chosen = moved.get(other, other)
        moved[other] = moved.get(place, place)
        for pool in pools:
            if chosen < len(pool):
                yield pool[chosen]
                break
            chosen -= len(pool)


@lru_cache(maxsize=65536)
def _trigrams(text: str) -> frozenset[str]:
    characters = plain(text, "")
    return frozenset(
        characters[start : start + 3] for start in range(len(characters) - 2)
    )
