"""VLLMEngine with a model that is divided between two workers, on a CPU: what it
computes, swaps and verifies."""

import pytest

from evaluator.core.errors import EngineError
from evaluator.engine.config import EngineConfig
from evaluator.engine.vllm.engine import VLLMEngine
from tests.support.engines import answers, assert_alike, both_runners, oracle_of
from tests.support.models import save_tiny_model
from tests.support.requests import generation, scoring

pytestmark = [*both_runners, pytest.mark.more]  # two processes with an engine each

CONFIG = EngineConfig(max_model_len=128, max_num_seqs=8, tensor_parallel=2)
ASKED = [
    *(scoring(f"s{n}", (20,) * n, (30, 31)) for n in (1, 33, 64)),
    *(generation(f"g{n}", (20,) * n, 12) for n in (1, 33, 64)),
]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    return [save_tiny_model(folder / str(seed), "qwen3", seed) for seed in range(2)]


@pytest.fixture(scope="module")
def engine(checkpoints):
    with pytest.MonkeyPatch.context() as patch:
        # there may be fewer cores than workers
        patch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        engine = VLLMEngine(CONFIG)
        engine.load(checkpoints[0])
        yield engine
        engine.close()


def test_two_workers_equal_oracle(engine, checkpoints):
    """Two workers answer like the oracle before and after a swap."""
    for checkpoint in (*checkpoints, checkpoints[0]):
        # every matrix of both workers was compared
        assert engine.load(checkpoint).notes == ()
        ours, expected = (
            answers(engine, ASKED),
            answers(oracle_of(checkpoint, CONFIG), ASKED),
        )
        assert_alike(ours, expected)
        assert all(
            ours[name].ranks == answer.ranks for name, answer in expected.items()
        )


def _keep_old_weights(worker, files):
    """In the second worker: whatever is to be read from now on, `files` are."""
    from evaluator.engine.vllm import worker as worker_module

    read = worker_module._read
    if worker.rank == 1:
        worker_module._read = lambda _: read(files)


def test_missing_weights_of_second_worker(engine, checkpoints):
    """Weights that did not arrive at the second worker are noticed."""
    engine.load(checkpoints[0])
    old = [str(checkpoints[0] / "model.safetensors")]
    engine._started.llm.collective_rpc(_keep_old_weights, args=(old,))
    with pytest.raises(
        EngineError, match=r"in the engine is not that of the files \(worker 1 of 2\)$"
    ):
        engine.load(checkpoints[1])
