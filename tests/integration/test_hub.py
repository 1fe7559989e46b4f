"""`resurface prune --push` as it is typed; the rest is in tests/unit/launch/trackers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.hub import TOKEN, Hub, hub_on_loopback, write_pruned
from tests.support.runs import command, environment

pytestmark = pytest.mark.slow


def asked(hub: Hub, home: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    own = {"HF_ENDPOINT": hub.address, "HF_TOKEN": TOKEN, "HF_HOME": str(home / "hf"), "HF_HUB_DISABLE_XET": "1"}
    direct = {"NO_PROXY": "*", "no_proxy": "*", "HF_HUB_OFFLINE": "0"}
    variables = environment() | own | direct
    return subprocess.run(command(*words), env=variables, capture_output=True, text=True, check=False)


def test_a_checkpoint_is_pushed_or_one_line_says_why_not(tmp_path: Path) -> None:
    push = ("prune", "--push", "org/name", "--out", write_pruned(tmp_path / "pruned"))
    with hub_on_loopback() as hub:
        hub.breaks = True
        broken = asked(hub, tmp_path, *push)
        assert not hub.files
        hub.breaks = False
        done = asked(hub, tmp_path, *push)
        assert "model.safetensors" in hub.files
    assert broken.returncode == 2
    assert broken.stderr.startswith("error: --push: 'org/name': the upload failed: Client error '413 ")
    assert broken.stderr.count("\n") == 1
    assert done.returncode == 0, done.stderr
    assert f"pushed: {hub.address}/org/name" in done.stdout
    assert TOKEN not in broken.stdout + broken.stderr + done.stdout + done.stderr
