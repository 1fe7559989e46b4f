"""The whole list of a GPU's half hour, rehearsed on a CPU with tiny models."""

import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest

from benchmarks.harness import environment, module_command
from tests.gpu.steps import TESTS, VARIANTS, read, steps
from tests.support.engines import needs_vllm

pytestmark = [*needs_vllm, pytest.mark.more]
NEED_A_GPU = {*TESTS, *list(VARIANTS)[1:], "tests"}
MEASURED = {"doctor", "host", "pass", "prune", "score", "swap"}


@pytest.fixture
def out():
    folder = Path(tempfile.mkdtemp())
    yield folder
    shutil.rmtree(folder)


def test_the_whole_list_runs_and_leaves_a_card_of_each_step(out, tmp_path):
    home, programs = tmp_path / "home", tmp_path / "bin"
    home.mkdir()
    programs.mkdir()
    (programs / "nvidia-smi").write_text("#!/bin/sh\necho no driver\nexit 9\n")  # also where a GPU answers
    (programs / "nvidia-smi").chmod(0o755)
    variables = environment(HOME=str(home))
    variables |= {"PATH": f"{programs}:{variables['PATH']}"}
    variables.pop("TRITON_CACHE_DIR", None)
    command = module_command("tests.gpu.night", "--out", out, "--tiny")
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    names = [step.name for step in steps(out, shape="tiny", tiny=True, gpu=False)]
    cards = read(out, names)
    assert list(cards) == names
    for name, card in cards.items():
        assert card.state == ("skipped" if name in NEED_A_GPU else "passed"), card
        assert (card.reason is None) == (name not in NEED_A_GPU)
        assert (out / f"{name}.log").exists() == (name not in NEED_A_GPU)
        assert (card.result is None) == (name not in MEASURED), card
    assert (out / "night.md").read_text().count("| skipped | 0 | no NVIDIA GPU answers") == len(NEED_A_GPU)
    assert (out / "pass.dmon.log").read_text() == "no driver\n"
    assert (out / "doctor.md").read_text().startswith("# doctor")
    with tarfile.open(out / "kernels.tar.gz") as archive:
        assert archive.getnames()[0] == "."
    assert not (out / "night.tmp").exists()
    assert not list(home.iterdir())
