"""Items for tests."""

from evaluator.core.records import Item


def make_item(
    number=0,
    *,
    language="english",
    answers=None,
    context="The Nile is a river.",
    question="What is the Nile?",
    options=(),
):
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
