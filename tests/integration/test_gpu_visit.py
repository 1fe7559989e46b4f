"""The list of a visit, rehearsed on a CPU with tiny models: one step of each kind,
or all of them."""

import subprocess

import pytest

from benchmarks.harness import environment, module_command
from tests.gpu.steps import TESTS, read, steps
from tests.support.engines import needs_vllm

pytestmark = needs_vllm
KINDS = "imports,plain,window-full,prune,two-runs,pass"


@pytest.mark.parametrize(
    "only",
    [
        pytest.param(KINDS, marks=pytest.mark.more),
        pytest.param("", marks=pytest.mark.long),
    ],
)
def test_steps_run_on_a_cpu(only, tmp_path):
    home, out = tmp_path / "home", tmp_path / ("long" * 30)  # sockets lie elsewhere
    home.mkdir()
    command = module_command(
        "tests.gpu.visit", out, "--rehearse", "--until", 7200, "--only", only
    )
    own = environment(HOME=str(home), CUDA_VISIBLE_DEVICES="", TRITON_CACHE_DIR="")
    done = subprocess.run(command, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    names = (
        ["model", *only.split(",")]
        if only
        else [step.name for step in steps(out, out, tiny=True, gpu=False)]
    )
    states = {name: card.state for name, card in read(out, names).items()}
    assert states == {name: "skipped" if name in TESTS else "passed" for name in names}
    written = ["pass/pass-eager.json", "pass/pass-theirs.json"]
    written += [] if only else ["doctor.md", "demo/report/index.html"]
    assert all((out / name).stat().st_size for name in written)
    assert {path.name for path in home.iterdir()} <= {".ray"}
