"""Files that appear whole or not at all, and places that the user names."""

import multiprocessing
import os
import threading
from concurrent.futures import ProcessPoolExecutor

from evaluator.core.files import write_atomically


def test_named_link_stays(tmp_path):
    link, target = tmp_path / "link.csv", tmp_path / "there" / "target.csv"
    target.parent.mkdir()
    link.symlink_to(target)
    for content in (b"first", b"second"):
        write_atomically(link, content, named=True)
        assert link.is_symlink()
        assert target.read_bytes() == content
    write_atomically(link, b"of a run directory, whose links may be another's")
    assert (link.is_symlink(), target.read_bytes()) == (False, b"second")


def test_named_pipe_gets_the_bytes(tmp_path):
    pipe, link = tmp_path / "pipe", tmp_path / "link.csv"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link):
        writer = threading.Thread(
            target=write_atomically,
            args=(path, [b"a,", b"b\n"]),
            kwargs={"named": True},
        )
        writer.start()
        assert pipe.read_bytes() == b"a,b\n"
        writer.join()
        assert pipe.is_fifo()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link.csv", "pipe"]


def test_two_processes_write_one_path(tmp_path):
    """As `report` beside `gate`: each writes it whole."""
    path = tmp_path / "page"
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as processes:
        writers = [processes.submit(_write_often, path, text) for text in ("a", "b")]
        for writer in writers:
            writer.result()
    assert path.read_text() in ("a" * 9, "b" * 9)
    assert os.listdir(tmp_path) == ["page"]


def _write_often(path, text):
    for _ in range(200):
        write_atomically(path, (text * 9).encode())
