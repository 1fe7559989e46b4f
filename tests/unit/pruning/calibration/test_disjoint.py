"""What is asked about must not have been calibrated on."""

from __future__ import annotations

import pytest

from evaluator.core.errors import InputError
from pruning.calibration import Passage, check_disjoint, text_digest
from pruning.config import CalibrationConfig, PruneConfig
from pruning.output.manifest import read_manifest
from pruning.run import check, prune


def test_texts_are_equal_but_for_case_punctuation_and_white_space():
    assert text_digest("The  Caf\u00e9,\nopen.") == text_digest("the cafe\u0301 OPEN") != text_digest("the cafe open")
    assert text_digest(" ?!\n") == ""
    assert len(text_digest("\ud800")) == 64  # JSON lines may hold half of a surrogate pair


def test_the_first_passage_that_is_held_out_is_named():
    held_out = {text_digest("b"): "item 7"}
    check_disjoint([Passage("a", "f.txt", 0), Passage("?", "f.txt", 1)], held_out)
    with pytest.raises(InputError, match=r"^calibration.source: passage 2 of f.txt is also item 7; leave"):
        check_disjoint([Passage("a", "f.txt", 0), Passage("B.", "f.txt", 2)], held_out)


def job(source, calibration):
    return PruneConfig(
        source=source,
        method="wanda",
        sparsity=0.5,
        calibration=CalibrationConfig(source=calibration, samples=4),
        device="cpu",
    )


def test_files_are_held_against_it_before_and_sources_of_the_network_while_they_are_read(
    checkpoints, passages, tmp_path, monkeypatch
):
    source, out = checkpoints("qwen3"), tmp_path / "out"
    third = passages.read_text().splitlines()[2]
    held_out = {text_digest(third.upper() + "."): "the context of item 'x'"}
    with pytest.raises(InputError, match=r"passage 2 of .*passages.txt is also the context of item 'x'"):
        check(job(source, f"text:{passages}"), out, held_out=held_out)

    def rows(origin, **_):
        return (Passage(line, origin, row) for row, line in enumerate(passages.read_text().splitlines()))

    monkeypatch.setattr("pruning.calibration._hub", rows)
    check(job(source, "c4"), out, held_out=held_out)  # reads one passage
    with pytest.raises(InputError, match="passage 2 of c4:train:00000 is also"):
        prune(job(source, "c4"), out, held_out=held_out)
    assert not out.exists()
    assert prune(job(source, "c4"), out, held_out={text_digest("other"): "x"}).calibration is not None


def test_a_finished_checkpoint_is_held_against_it_by_its_manifest(checkpoints, passages, tmp_path):
    out, config = tmp_path / "out", job(checkpoints("qwen3"), f"text:{passages}")
    prune(config, out)
    manifest = read_manifest(out)
    assert manifest is not None
    assert manifest.calibration is not None
    held_out = {manifest.calibration.passages[3].text_digest: "the context of item 'y'"}
    for again in (check, prune):
        with pytest.raises(InputError, match=r"passage 3 of .* is also the context of item 'y'"):
            again(config, out, held_out=held_out)
    check(config, out, held_out={})
