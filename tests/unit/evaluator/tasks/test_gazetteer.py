"""The bundled task: its texts never change, and the generator makes them; its streams
never share a name."""

import hashlib
import json

from evaluator.tasks.gazetteer import (
    BUNDLED_PASSAGES,
    FILE,
    LANGUAGES,
    gazetteer_items,
    gazetteer_passages,
    gazetteer_text,
)
from tests.support import gazetteer

# Published numbers rest on these texts. A change of this digest is a new task: give it
# a new name.
GOLDEN_SHA256 = "7a506e485e77662bfd96716d48a371e0459a24080c2c227d9a30653a235235f2"


def test_texts_never_change():
    rows = []
    for language in LANGUAGES:
        for item in gazetteer_items(language):
            row = item.task, language, item.item_id, item.context, item.question
            rows.append((*row, item.answers, item.cluster))
    written = json.dumps(rows, ensure_ascii=False).encode("utf-8")
    assert hashlib.sha256(written).hexdigest() == GOLDEN_SHA256
    assert gazetteer_items("korean", 20) == gazetteer_items("korean")[:20]


def test_the_generator_makes_the_file():
    assert gazetteer.written() == FILE.read_text(encoding="utf-8")


def test_passages_are_disjoint():
    for language in LANGUAGES:
        texts = list(gazetteer_passages(language, count=BUNDLED_PASSAGES + 1))
        assert texts[0] == texts[-1]
        assert texts[5:7] == list(gazetteer_passages(language, start=5, count=2))
        items = {item.context for item in gazetteer_items(language)}
        assert len({*texts, *gazetteer_text(language), *items}) == 512 + 40 + 300
