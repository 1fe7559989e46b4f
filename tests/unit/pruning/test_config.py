"""A job that is sent to another process finds its files there, and is the same job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pruning.config import CalibrationConfig, PruneConfig
from pruning.output.manifest import read_manifest
from pruning.run import check, prune
from tests.support import pruning as tiny


def test_only_files_have_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    config = CalibrationConfig(source="text:./a.txt,/b.txt")
    assert config.files == [("a.txt", Path("a.txt")), ("/b.txt", Path("/b.txt"))]
    assert config.absolute().files == [("a.txt", tmp_path / "a.txt"), ("/b.txt", Path("/b.txt"))]
    assert config.absolute().absolute().files == config.absolute().files
    assert CalibrationConfig(source="wikipedia:en,sw").absolute().files == []


@pytest.mark.parametrize("nothing", [{"sparsity": 0.0}, {"pattern": "0:4"}])
def test_where_nothing_goes_nothing_is_repaired(nothing: dict[str, Any]) -> None:
    wanted = {"source": "model", "method": "wanda", "calibration": {"source": "text:a.txt"}}
    assert PruneConfig(**wanted, **nothing).weights_pattern.ratio == 0
    with pytest.raises(ValidationError, match="repair: 'least_squares' means nothing at a sparsity of 0"):
        PruneConfig(**wanted, **nothing, repair="least_squares")


def test_a_job_of_relative_paths_is_done_elsewhere_and_known_again_here(
    checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    (here / "model").symlink_to(checkpoints("qwen3"))
    (here / "text.txt").write_text("\n".join(tiny.lines(8)), encoding="utf-8")
    calibration = CalibrationConfig(source="text:text.txt", samples=8, sequence_length=32)
    config = PruneConfig(source=Path("model"), method="wanda", sparsity=0.5, calibration=calibration, device="cpu")
    monkeypatch.chdir(here)
    sent = config.absolute()
    monkeypatch.chdir(elsewhere)
    prune(sent, here / "out")
    monkeypatch.chdir(here)
    check(config, Path("out"))  # another job's checkpoint would be refused
    manifest = read_manifest(Path("out"))
    assert manifest is not None
    assert manifest.calibration is not None
    assert manifest.config["calibration"]["source"] == manifest.calibration.source == "text:text.txt"
    assert manifest.calibration.files.keys() == {"text.txt"}
    assert {passage.origin for passage in manifest.calibration.passages} == {"text.txt"}
