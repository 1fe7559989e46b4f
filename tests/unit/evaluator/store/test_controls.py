"""What matchers said of control pairs survives, and belongs to the weights that said it."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from evaluator.core.errors import InputError
from evaluator.judging.controls import controls_of
from evaluator.judging.matcher import Verdict
from evaluator.store.controls import (
    ControlStore,
    key_of,
    read_controls,
    read_fit_only,
    read_posed,
    unanswered,
    write_fit_only,
)
from evaluator.store.schema import CONTROLS
from tests.support.synthetic import write_run

YES, FAILED = (
    Verdict(verdict=True, probability=0.9, status="ok"),
    Verdict(verdict=None, probability=None, status="engine_error"),
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path, 4, ("dense",), languages=("english", "arabic"))


def test_what_was_said_is_read_back_and_only_the_rest_is_asked(run):
    pairs = controls_of(read_posed(run)["gazetteer"], 4)
    assert {each.kind for each in pairs} == {"same", "paraphrase", "other"}
    said = {key_of(each): YES for each in pairs[1:]} | {key_of(pairs[-1]): FAILED}
    store = ControlStore(run, "judge", "digest")
    assert store.read("gazetteer") == {}
    path = store.write("gazetteer", said)
    assert path == run / "controls" / "judge" / "gazetteer.parquet"
    assert pq.read_table(path).schema.equals(CONTROLS)
    assert store.read("gazetteer") == said
    assert unanswered(pairs, said) == [pairs[0], pairs[-1]]
    assert ControlStore(run, "judge", "other weights").read("gazetteer") == {}
    frame = read_controls(run)
    assert frame["verdict"].isna().sum() == 1
    assert set(frame["matcher"]) == {"judge"}


def test_a_run_without_controls_has_none(run):
    assert read_controls(run) is None
    assert not read_fit_only(run)


def test_a_damaged_file_is_named(run):
    path = ControlStore(run, "judge", "digest").write("gazetteer", {})
    path.write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"gazetteer\.parquet: cannot be read as Parquet"):
        read_controls(run)


def test_who_has_a_vote_is_kept_until_it_is_said_otherwise(run):
    write_fit_only(run, False)
    assert not (run / "controls").exists()
    write_fit_only(run, True)
    assert read_fit_only(run)
    write_fit_only(run, False)
    assert not read_fit_only(run)
    (run / "controls" / "panel.json").write_text('{"fit_only": "yes"}')
    with pytest.raises(InputError, match=r"panel\.json: field 'fit_only' must be true or false, is 'yes'"):
        read_fit_only(run)
    write_fit_only(run, False)  # what was kept is not asked
    assert not read_fit_only(run)
