"""Items for tests, and what their records carry where a test asks an engine that
needs no checkpoint."""

from collections.abc import Sequence
from typing import Any

from evaluator.core.records import Format, Item, Origin, Record

ORIGIN = Origin(
    checkpoint="pruned", weights_digest="d1", base="dense", method="wanda", pattern="unstructured", sparsity=0.5,
    calibration="gazetteer",
)  # fmt: skip
STAMP: dict[str, Any] = {
    **{name: getattr(ORIGIN, name) for name in ORIGIN.__struct_fields__},
    "engine": "fake",
    "engine_version": "1",
    "dtype": "float32",
}


def stamped(item: Item, probe: str, format: Format = "open", **columns: Any) -> Record:
    """A record of an item, with the columns of STAMP unless others are given."""
    named = {"task": item.task, "language": item.language, "item_id": item.item_id}
    own = {"index": 0, "seed": 0, "status": "ok"}
    return Record(
        **{**STAMP, **named, **own, "probe": probe, "format": format, **columns}
    )


def make_item(
    number: int = 0,
    answers: Sequence[str] | None = None,
    options: Sequence[str] = (),
    **changes: Any,
) -> Item:
    said = (f"answer {number}",) if answers is None else tuple(answers)
    named = {
        "task": "t",
        "language": "english",
        "item_id": f"i{number}",
        "cluster": f"i{number}",
    }
    asked = {
        "context": f"The Nile is river {number}.",
        "question": f"Where is River {number}?",
    }
    return Item(**{**named, **asked, **changes}, answers=said, options=tuple(options))
