"""The environment that the pruning benchmark makes for llm-compressor."""

import subprocess
from pathlib import Path

from benchmarks import prune_peer


def test_it_is_made_once_and_left_out_in_words_where_it_cannot_be(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(prune_peer.venv, "create", lambda folder, **_: folder.mkdir(parents=True, exist_ok=True))
    commands = []

    def pip(command, **_):
        commands.append(command)
        if len(commands) == 1:
            raise subprocess.CalledProcessError(1, command, stderr="Collecting\nERROR: no matching distribution\n")

    monkeypatch.setattr(prune_peer.subprocess, "run", pip)
    refused = prune_peer.environment()
    assert refused == "llmcompressor==0.14.0.1 cannot be installed: ERROR: no matching distribution"
    python = prune_peer.environment()
    assert isinstance(python, Path)
    assert python.is_relative_to(tmp_path)
    assert prune_peer.environment() == python
    assert len(commands) == 2  # what is there is not installed again
