"""The bundled task: its texts never change, its answers are unambiguous, its three
streams never share a name."""

import hashlib
import json
from itertools import product
from typing import get_args

import pytest

from evaluator.tasks import gazetteer
from evaluator.tasks.gazetteer import (
    LANGUAGES,
    build_passage,
    gazetteer_items,
    gazetteer_passages,
)

# Published numbers rest on these texts. A change of this digest is a new task: give it
# a new name.
GOLDEN_SHA256 = "7a506e485e77662bfd96716d48a371e0459a24080c2c227d9a30653a235235f2"


@pytest.fixture(scope="module")
def items():
    return {language: gazetteer_items(language) for language in LANGUAGES}


def test_texts_never_change(items):
    rows = []
    for language in LANGUAGES:
        for item in items[language]:
            row = item.task, language, item.item_id, item.context, item.question
            rows.append((*row, item.answers, item.cluster))
    written = json.dumps(rows, ensure_ascii=False).encode("utf-8")
    assert hashlib.sha256(written).hexdigest() == GOLDEN_SHA256
    assert (len(items), {len(pool) for pool in items.values()}) == (9, {300})
    assert gazetteer_items("korean", 20) == items["korean"][:20]
    with pytest.raises(ValueError, match="klingon"):
        gazetteer_items("klingon")


def test_words_belong_to_one_stream():
    for stream, language, index in product(
        get_args(gazetteer.Stream), LANGUAGES, range(60)
    ):
        for fact in build_passage(language, stream, index).facts:
            assert {gazetteer.word_stream(word) for word in fact.subject.split()} == {
                stream
            }


@pytest.mark.parametrize("language", LANGUAGES)
def test_calibration_is_disjoint_from_items(items, language):
    texts = list(gazetteer_passages(language, start=0, count=128))
    assert len(set(texts)) == 128
    assert texts[5:7] == list(gazetteer_passages(language, start=5, count=2))
    assert not set(texts) & {item.context for item in items[language]}
