"""The rows of an engine that are idle in a sweep."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from evaluator.core.errors import ResurfaceError
from tests.support import rows
from tests.support.devices import vllm_serves_cpus

# used, waiting: of the steps on two checkpoints, a second each
STREAMS = [(2, 0), (4, 3), (3, 0), (2, 1), (4, 0), (1, 0)], [(4, 0), (2, 0), (0, 0)]


def noted(path: Path) -> Path:
    """A self-check, then two streams. A swap takes three seconds."""
    began, lines = 0.0, [{"used": 1, "waiting": 0, "rows": 4}]
    for stream in STREAMS:
        lines.append({})
        lines += [{"used": u, "waiting": w, "rows": 4} for u, w in stream]
    text = ""
    for line in lines:
        seconds = 1.0 if line else 3.0
        times = {"began": began, "ended": began + seconds}
        text += json.dumps(line | times) + "\n"
        began += seconds
    path.write_text(text)
    return path


def test_idle_rows_have_kinds(tmp_path: Path) -> None:
    count, streams = rows.read(noted(tmp_path / "notes"))
    assert (count, [len(steps) for steps in streams]) == (4, [6, 3])
    assert rows.shares(count, streams, 1.0) == {
        # of 6 + 3 + 2 seconds
        "idle": 21 / 44,
        "start": 2 / 44,
        "stream": 2 / 44,
        "drain": 5 / 44,
        "swap": 12 / 44,
        "held": 1 / 44,
    }
    with pytest.raises(ResurfaceError, match="less than 30 s"):
        rows.shares(count, streams, 30.0)


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.skipif(not vllm_serves_cpus(), reason="needs vLLM's CPU build")
def test_sweep_keeps_rows_busy() -> None:
    """From shard to shard and from task to task. Only a swap drains the engine."""
    sizes = "--checkpoints", "2", "--tasks", "2", "--items", "90", "--last", "0"
    command = [sys.executable, "-m", "tests.support.rows", *sizes]
    done = subprocess.run(
        command, cwd=rows.ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["stream"] < 0.02
    assert 0 < found["swap"] < found["idle"]
