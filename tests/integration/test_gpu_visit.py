"""Steps of a visit, rehearsed on a CPU with tiny models."""

import json
import subprocess

import pytest

from benchmarks.harness import environment, module_command
from tests.support.engines import needs_vllm

pytestmark = [*needs_vllm, pytest.mark.long]
STEPS = "imports,plain,window-full,prune,two-runs,pass,changes"


def test_steps_run_on_a_cpu(tmp_path):
    out = tmp_path / ("long" * 30)  # sockets lie elsewhere
    command = module_command("tests.gpu.visit", out, "--until", 7200, "--only", STEPS)
    own = environment(CUDA_VISIBLE_DEVICES="", TRITON_CACHE_DIR="")
    done = subprocess.run(command, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    names = ["model", *STEPS.split(",")]
    cards = [json.loads((out / f"{name}.json").read_bytes()) for name in names]
    assert {card["state"] for card in cards} == {"passed"}
    assert all(
        f"| {name} | passed |" in (out / "summary.md").read_text() for name in names
    )
    assert (out / "pass" / "pass-theirs.json").stat().st_size
