"""The memory of tables: it holds the comparison at hand, and not the items of all checkpoints."""

import gc
import tracemalloc

import pytest

from evaluator.metrics import TABLES, Inputs, Outcomes, inputs, reduce_records
from evaluator.store.outcomes import outcome_types
from tests.support.synthetic import frame_of, records_of

ITEMS = 200


@pytest.mark.more
def test_memory_does_not_grow_with_the_items_of_checkpoints_outside_the_comparison(monkeypatch, tmp_path):
    """With outcomes in files, six further checkpoints add a fraction of what they add with outcomes in memory."""
    monkeypatch.setattr(inputs, "_HELD_ROWS", 2 * ITEMS)  # a checkpoint and its base
    monkeypatch.setattr(inputs, "_HELD_PAIRS", ITEMS)
    one = reduce_records(frame_of(records_of("dense", "gazetteer", ITEMS, languages=("english",))))

    def kept(checkpoints, folder):
        tracemalloc.start()
        found = Outcomes()
        for number in range(checkpoints):
            own = one.assign(checkpoint=f"p{number}", base="p0" if number else None, weights_digest=f"{number}")
            found.add(own.astype(outcome_types()), folder and folder / f"{checkpoints}-{number}.parquet")
        given = Inputs(found)
        for name in ("accuracy", "fates", "rank"):
            assert len(TABLES[name].frame(given))
        gc.collect()
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return size

    kept(2, tmp_path)  # imports, and caches of numbers
    filed, held = (kept(9, folder) - kept(3, folder) for folder in (tmp_path, None))
    assert filed < held / 3
