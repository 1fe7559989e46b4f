"""Control pairs: claims with a known verdict, made by rule from a run's own items.
Pure.

A matcher that always answers no (or yes) gives plausible numbers. Control pairs
expose it:

    same        the reference answer itself; must match
    paraphrase  the reference in another form by one rule: the family name first
                ("Curie, Marie"), digits in other groups (1,500 and 1500, 15000 and
                15 000), without its article, in the other case; must match
    other       another item's reference in the language, with the same type of
                answer; neither contains the other; must not match

Control pairs are easier than models' answers. A matcher that passes may still
misjudge freer wording; a matcher that fails is useless. The choice of items and
rules depends on the items' ids alone."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from zlib import crc32

from evaluator.core.grading import alike, gradable
from evaluator.core.records import ControlKind, Item
from evaluator.core.text import ARTICLES, main_code
from evaluator.judging.matcher import Claim
from evaluator.tasks.answer_types import answer_type


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A claim with its known verdict."""

    language: str
    item_id: str
    kind: ControlKind
    claim: Claim


def controls_of(items: Iterable[Item], per_language: int) -> list[Control]:
    """The pairs of every possible kind from up to `per_language` gradable items of
    each language."""
    by_language: dict[str, list[Item]] = {}
    for item in items:
        if gradable(item.answers[:1], item.language):
            by_language.setdefault(item.language, []).append(item)
    controls = []
    # in an order that has nothing to do with the data set's own
    for language in sorted(by_language):
        drawn = sorted(
            by_language[language],
            key=lambda item: (crc32(item.item_id.encode()), item.item_id),
        )
        controls += _of_language(drawn, per_language)
    return controls


def paraphrases(answer: str, language: str) -> list[str]:
    """The answer in other forms of the same meaning, one for each rule that changes
    it."""
    found = (rule(answer, language) for rule in _RULES)
    return [each for each in found if each is not None and each != answer]


def _of_language(items: Sequence[Item], per_language: int) -> list[Control]:
    types: dict[str, list[int]] = {}
    for at, item in enumerate(items):
        types.setdefault(answer_type(item.answers[0], item.language), []).append(at)
    found: list[Control] = []
    for at, item in enumerate(items[:per_language]):
        forms = paraphrases(item.answers[0], item.language)
        typed = types[answer_type(item.answers[0], item.language)]
        start = typed.index(at)
        others = (items[other] for other in (*typed[start + 1 :], *typed[:start]))
        texts = (other.answers[0] for other in others)
        responses: dict[ControlKind, str | None] = {
            "same": item.answers[0],
            "paraphrase": (
                forms[crc32(item.item_id.encode()) % len(forms)] if forms else None
            ),
            "other": next((text for text in texts if not _is_answer(text, item)), None),
        }
        for kind, response in responses.items():
            if response is not None:
                claim = Claim(
                    question=item.question, answers=item.answers, response=response
                )
                found.append(
                    Control(
                        language=item.language,
                        item_id=item.item_id,
                        kind=kind,
                        claim=claim,
                    )
                )
    return found


def _is_answer(text: str, item: Item) -> bool:
    return any(alike(text, own, item.language) for own in item.answers)


def _family_name_first(answer: str, language: str) -> str | None:
    first, *rest = answer.split()
    if (
        len(rest) != 1
        or answer_type(answer, language) != "name"
        or _without_article(answer, language) is not None
    ):
        return None
    return f"{rest[0]}, {first}"


def _other_groups(answer: str, language: str) -> str | None:
    if answer_type(answer, language) != "number":
        return None
    if re.search(r"(?<![\d.,])\d{1,3}(,\d{3})+(?![\d.,])", answer):
        return re.sub(r"(?<=\d),(?=\d{3})", "", answer)
    long = re.search(r"(?<![\d.,])\d{4,15}(?![\d.,])", answer)
    return (
        None
        if long is None
        else answer.replace(long.group(), f"{int(long.group()):,}".replace(",", " "), 1)
    )


def _without_article(answer: str, language: str) -> str | None:
    articles = ARTICLES.get(main_code(language), ())
    return (
        next(
            (
                answer[len(each) :]
                for each in articles
                if answer.lower().startswith(each)
            ),
            None,
        )
        or None
    )


def _other_case(answer: str, _: str) -> str | None:
    other = answer.lower() if answer.isupper() else answer.upper()
    # ß and its like do not come back
    return other if other.lower() == answer.lower() else None


_RULES: Sequence[Callable[[str, str], str | None]] = (
    _family_name_first,
    _other_groups,
    _without_article,
    _other_case,
)
