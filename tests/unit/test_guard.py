"""A test that is not marked slow, as these are not, can start neither an engine nor Ray."""

import subprocess
import sys

import pytest

from evaluator.engine.config import EngineConfig
from evaluator.engine.vllm.engine import VLLMEngine
from tests.support.guard import Guard, StartedError
from tests.support.models import save_tiny_model
from tests.support.runs import environment


def test_no_engine_is_built(tmp_path):
    with pytest.raises(StartedError, match="a vLLM engine was started by a test that is not marked slow"):
        VLLMEngine(EngineConfig()).load(save_tiny_model(tmp_path / "tiny"))


@pytest.mark.parametrize("module", ["ray", "vllm"])
def test_commands_find_neither_ray_nor_vllm(module):
    done = subprocess.run(
        [sys.executable, "-c", f"import {module}"], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.stderr.endswith(f"RuntimeError: a command of a test that is not marked slow imports {module}\n")


def test_what_is_imported_later_is_guarded_once(monkeypatch):
    class Ray:
        @staticmethod
        def init():
            return "started"

    monkeypatch.setitem(sys.modules, "ray", Ray)
    guard = Guard()
    guard.next_test(slow=False)
    guard.next_test(slow=False)
    with pytest.raises(StartedError, match="Ray was started"):
        Ray.init()
    guard.next_test(slow=True)
    assert Ray.init() == "started"
