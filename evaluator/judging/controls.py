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
from zlib import crc32

from evaluator.core.grading import alike, gradable
from evaluator.core.records import ControlKind, Item
from evaluator.core.text import ARTICLES, main_code
from evaluator.judging.matcher import Claim
from evaluator.tasks.answer_types import answer_type

# what names a record or, by language, item id, kind and response, a control pair
Key = tuple[str | int, ...]


def controls_of(items: Iterable[Item], per_language: int) -> dict[Key, Claim]:
    """The pairs of every possible kind from up to `per_language` gradable items of
    each language."""
    by_language: dict[str, list[Item]] = {}
    for item in items:
        if gradable(item.answers[:1], item.language):
            by_language.setdefault(item.language, []).append(item)
    controls: dict[Key, Claim] = {}
    for _, of_language in sorted(by_language.items()):
        # in an order that has nothing to do with the data set's own
        of_language.sort(key=lambda item: (_checksum(item), item.item_id))
        for place, item in enumerate(of_language[:per_language]):
            # the next items first
            others = of_language[place + 1 :] + of_language[:place]
            for kind, response in _responses(item, others).items():
                controls[item.language, item.item_id, kind, response] = Claim(
                    question=item.question, answers=item.answers, response=response
                )
    return controls


def _checksum(item: Item) -> int:
    return crc32(item.item_id.encode())


def _responses(item: Item, others: Sequence[Item]) -> dict[ControlKind, str]:
    """The response of each kind that an item can have."""
    answer, language = item.answers[0], item.language
    responses: dict[ControlKind, str] = {"same": answer}
    forms = paraphrases(answer, language)
    if forms:
        responses["paraphrase"] = forms[_checksum(item) % len(forms)]
    kind = answer_type(answer, language)
    for other in others:
        text = other.answers[0]
        is_answer = any(alike(text, own, language) for own in item.answers)
        if answer_type(text, language) == kind and not is_answer:
            responses["other"] = text
            break
    return responses


def paraphrases(answer: str, language: str) -> list[str]:
    """The answer in other forms of the same meaning, one for each rule that changes
    it."""
    forms = [rule(answer, language) for rule in _RULES]
    return [form for form in forms if form is not None and form != answer]


def _family_name_first(answer: str, language: str) -> str | None:
    words = answer.split()
    is_name = len(words) == 2 and answer_type(answer, language) == "name"
    if not is_name or _without_article(answer, language) is not None:
        return None
    return f"{words[1]}, {words[0]}"


def _other_groups(answer: str, language: str) -> str | None:
    if answer_type(answer, language) != "number":
        return None
    if re.search(r"(?<![\d.,])\d{1,3}(,\d{3})+(?![\d.,])", answer):
        return re.sub(r"(?<=\d),(?=\d{3})", "", answer)
    long = re.search(r"(?<![\d.,])\d{4,15}(?![\d.,])", answer)
    if long is None:
        return None
    return answer.replace(long[0], f"{int(long[0]):,}".replace(",", " "), 1)


def _without_article(answer: str, language: str) -> str | None:
    for article in ARTICLES.get(main_code(language), ()):
        if answer.lower().startswith(article):
            return answer[len(article) :] or None
    return None


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
