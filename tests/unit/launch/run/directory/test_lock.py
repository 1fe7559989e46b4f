"""Which paths can be run directories."""

from pathlib import Path

from evaluator.core.lease import FOLDER, Lease
from launch.run.directory.lock import need_place
from tests.support.sweeps import refused


def test_paths_of_any_length(tmp_path: Path) -> None:
    """A name has at most 255 bytes, a path of such names has no limit of its own."""
    need_place(tmp_path.joinpath(*["d" * 255] * 4))
    assert refused(need_place, tmp_path / ("d" * 256)).endswith(
        "--out: File name too long"
    )


def test_directory_without_results_is_free(tmp_path: Path) -> None:
    held = Lease(tmp_path)
    assert (tmp_path / FOLDER).exists()
    need_place(tmp_path)
    held.release()
    folder = tmp_path / "records" / "dense" / "xquad"
    # as where somebody removed the run while an engine's answers were written
    folder.mkdir(parents=True)
    need_place(tmp_path)
    for mine in (folder / "notes.txt", tmp_path / "notes"):
        mine.symlink_to(tmp_path / "records")
        assert "is not a run directory" in refused(need_place, tmp_path)
        mine.unlink()
