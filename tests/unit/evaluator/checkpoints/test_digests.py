"""A file is read again where it may have changed, and only there."""

import hashlib
import os

from evaluator.checkpoints import files as digests
from evaluator.checkpoints.files import digest_of_file, digest_once


def test_a_file_is_read_once_until_it_changes(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(digests, "digest_of_file", lambda file: read.append(file.name) or digest_of_file(file))
    file, other = tmp_path / "a", tmp_path / "b"
    file.write_bytes(b"one")
    other.write_bytes(b"one")
    for _ in range(3):
        assert digest_once(file) == digest_once(other) == hashlib.sha256(b"one").hexdigest()
    assert read == ["a", "b"]
    file.write_bytes(b"two")
    os.utime(file, ns=(1, 1))  # whatever the file system's clock says
    assert digest_once(file) == hashlib.sha256(b"two").hexdigest()
    other.unlink()
    other.write_bytes(b"three")
    assert digest_once(other) == hashlib.sha256(b"three").hexdigest()
    assert read == ["a", "b", "a", "b"]
