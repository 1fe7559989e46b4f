"""The whole list of a visit, rehearsed on a CPU with tiny models."""

import subprocess

import pytest

from benchmarks.harness import environment, module_command
from tests.gpu.steps import TESTS, read, steps
from tests.support.engines import needs_vllm

pytestmark = [*needs_vllm, pytest.mark.more]


def test_every_step_runs_on_a_cpu(tmp_path):
    home, out = tmp_path / "home", tmp_path / ("long" * 30)  # sockets lie elsewhere
    home.mkdir()
    command = module_command("tests.gpu.visit", out, "--rehearse", "--until", 7200)
    own = environment(HOME=str(home), CUDA_VISIBLE_DEVICES="", TRITON_CACHE_DIR="")
    done = subprocess.run(command, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    names = [step.name for step in steps(out, out, tiny=True, gpu=False)]
    states = {name: card.state for name, card in read(out, names).items()}
    assert states == {name: "skipped" if name in TESTS else "passed" for name in names}
    written = ("doctor.md", "demo/report/index.html", "pass/pass-eager.json", "pass/pass-theirs.json")
    assert all((out / name).stat().st_size for name in written)
    assert list(home.iterdir()) == []
