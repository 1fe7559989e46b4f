"""Items for tests."""

from collections.abc import Sequence
from typing import Any

from evaluator.core.records import Item


def make_item(
    number: int = 0, answers: Sequence[str] | None = None, options: Sequence[str] = (), **changes: Any
) -> Item:
    said = (f"answer {number}",) if answers is None else tuple(answers)
    named = {"task": "t", "language": "english", "item_id": f"i{number}", "cluster": f"i{number}"}
    asked = {"context": "The Nile is a river.", "question": "What is the Nile?"}
    return Item(**{**named, **asked, **changes}, answers=said, options=tuple(options))
