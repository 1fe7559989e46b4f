"""Items for tests."""

from collections.abc import Sequence

from evaluator.core.records import Item


def make_item(
    number: int = 0,
    *,
    language: str = "english",
    answers: Sequence[str] | None = None,
    context: str = "The Nile is a river.",
    question: str = "What is the Nile?",
    options: Sequence[str] = (),
) -> Item:
    return Item(
        task="t",
        language=language,
        item_id=f"i{number}",
        context=context,
        question=question,
        answers=(f"answer {number}",) if answers is None else tuple(answers),
        cluster=f"i{number}",
        options=tuple(options),
    )
