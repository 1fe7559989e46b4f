"""The questions that every run is asked, in the bundled model's tokens."""

from __future__ import annotations

import pytest

from launch.doctor.cases import PROMPT_TOKENS, cases_for
from launch.sweep.models import BUNDLED_MODEL


@pytest.mark.slow
def test_they_fit_and_cross_cache_blocks():
    asked = cases_for(BUNDLED_MODEL)
    lengths = {len(score.prompt_ids) for score in asked.scores}
    assert {1, 31, 32, 129, 256} <= lengths
    assert {len(score.continuation_ids) for score in asked.scores} >= {2, 33}
    assert all(score.continuation_ids for score in asked.scores)
    assert max(lengths) <= PROMPT_TOKENS
    names = [each.request_id for each in (*asked.exact, *asked.samples)]
    assert len(set(names)) == len(names) > 50
    assert len({sample.seed for sample in asked.samples}) == len(asked.samples)
    assert asked.searched
    assert asked.eos_ids
