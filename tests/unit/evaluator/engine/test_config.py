"""The registry of engines, and configurations that name one."""

import subprocess
import sys

import pytest
from pydantic import ValidationError

from evaluator.engine import ENGINES
from evaluator.engine.base import FixedSource, Score
from evaluator.engine.config import EngineConfig, EngineKind, build_engine
from evaluator.engine.fake import FakeEngine, FakeLM


def test_an_engine_is_added_by_registering_one_object(tmp_path):
    lm = FakeLM()
    toy = EngineKind(name="toy", help="a toy", build=lambda config: FakeEngine(lm.answer, room=config.max_num_seqs))
    with ENGINES.temporarily(toy):
        engine = build_engine(EngineConfig(kind="toy", max_num_seqs=3))
        engine.load(tmp_path)
        source = FixedSource([Score(request_id="a", prompt_ids=(1, 2), continuation_ids=(3, 4))])
        assert [response.token_ids for response in engine.run(source)] == [(3, 4)]
    assert "toy" not in ENGINES


def test_an_unknown_engine_is_refused_with_the_nearest_name():
    with pytest.raises(ValidationError, match="unknown engine 'vlm'; did you mean 'vllm'"):
        EngineConfig(kind="vlm")


def test_a_scoring_belongs_to_the_engines_that_know_it():
    assert EngineConfig(scoring="prompt_logprobs").kind == "vllm"
    with pytest.raises(ValidationError, match="scoring 'prompt_logprobs' is a way of engine vllm, not of torch"):
        EngineConfig(kind="torch", scoring="prompt_logprobs")


@pytest.mark.parametrize("graphs", [True, False, None])
def test_compiling_brings_its_own_graphs(graphs):
    assert EngineConfig(compile=True, cuda_graphs=graphs).compile
    with pytest.raises(ValidationError, match="cuda_graphs: 'full': compile: true has graphs of its own"):
        EngineConfig(compile=True, cuda_graphs="full")


def test_importing_the_registry_imports_nothing_heavy():
    code = "import sys, evaluator.engine; print({'torch', 'vllm', 'transformers', 'ray'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
