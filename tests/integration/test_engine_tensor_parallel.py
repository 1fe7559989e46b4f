"""VLLMEngine with a model that is divided between two workers, on a CPU: what it
computes, swaps and verifies."""

import pytest

from evaluator.core.errors import EngineError
from evaluator.engine.base import Generate, Score
from evaluator.engine.config import EngineConfig
from evaluator.engine.vllm.engine import VLLMEngine
from tests.support.engines import answers, assert_alike, both_runners, oracle_of
from tests.support.models import save_tiny_model

pytestmark = [*both_runners, pytest.mark.more]  # two processes with an engine each

CONFIG = EngineConfig(max_model_len=128, max_num_seqs=8, tensor_parallel=2)
ASKED = [
    *(
        Score(request_id=f"s{n}", prompt_ids=(20,) * n, continuation_ids=(30, 31))
        for n in (1, 33, 64)
    ),
    *(
        Generate(request_id=f"g{n}", prompt_ids=(20,) * n, max_tokens=12)
        for n in (1, 33, 64)
    ),
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


def test_two_workers_answer_like_the_oracle_before_and_after_a_swap(
    engine, checkpoints
):
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
    from evaluator.engine.vllm.verify import weights

    read = weights._read
    if worker.rank == 1:
        weights._read = lambda _: read(files)


def test_weights_that_did_not_arrive_at_the_second_worker_are_noticed(
    engine, checkpoints
):
    engine.load(checkpoints[0])
    old = [str(checkpoints[0] / "model.safetensors")]
    engine._started.llm.collective_rpc(_keep_old_weights, args=(old,))
    with pytest.raises(
        EngineError, match=r"in the engine is not that of the files \(worker 1 of 2\)$"
    ):
        engine.load(checkpoints[1])
