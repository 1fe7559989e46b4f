"""VLLMEngine and what it must notice: its own wrong scores, checkpoints that it must not
serve, weights that did not arrive, and steps that fail."""

import pytest
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from evaluator.core.errors import EngineError, InputError
from evaluator.engine.base import FixedSource
from evaluator.engine.config import EngineConfig
from evaluator.engine.vllm.engine import VLLMEngine
from tests.support.engines import (
    answers,
    assert_all_right,
    both_runners,
    runs_v2,
    serving,
)
from tests.support.models import collapse, load_model, save_tiny_model
from tests.support.requests import generation, scoring

pytestmark = both_runners

CONFIG = EngineConfig(max_model_len=128, max_num_seqs=8)
BY_PROMPT = CONFIG.model_copy(update={"scoring": "prompt_logprobs"})
ASKED = [
    scoring("many", (20, 21, 22), (30, 31, 9, 77)),
    scoring("one", (20, 21, 22), (30,)),
    # all 128
    scoring("full", range(20, 144), (30, 31, 9, 77)),
    generation("greedy", (20, 21, 22), 5),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("one") / "model", "qwen3_untied")


def loaded(checkpoint, config=CONFIG):
    """The report of an engine's start, and of a swap; its answers are right."""
    engine = VLLMEngine(config)
    try:
        reports = engine.load(checkpoint), engine.load(checkpoint)
        assert engine.stats().requests == 0  # the check's own are not counted
        for _ in range(2):  # the second time the prefix cache could answer
            assert_all_right(engine, load_model(checkpoint), ASKED)
    finally:
        engine.close()
    return reports


def score_other_tokens(patch):
    if runs_v2():
        from evaluator.engine.vllm.v2 import scores

        right = scores._ranked
        patch.setattr(
            scores, "_ranked", lambda logits, tokens: right(logits, (tokens + 1) % 384)
        )
    else:
        from evaluator.engine.vllm.v1 import one_step

        tables = one_step._tables
        patch.setattr(
            one_step,
            "_tables",
            lambda raw, tokens: tables(raw, [(token + 1) % 384 for token in tokens]),
        )


def rank_another_token(patch):
    """Each rank in one step is right where it is counted, and is reported for another
    token."""
    from evaluator.engine.vllm.requests import InFlight

    right = InFlight.response

    def changed(self):
        answer = right(self)
        if self.report_from is None or self.ranks is None:
            return answer
        return replace(answer, ranks=(*answer.ranks[1:], *answer.ranks[:1]))

    patch.setattr(InFlight, "response", changed)


@pytest.mark.parametrize(
    ("wrong", "how"),
    [
        (score_other_tokens, "nats per token"),
        pytest.param(rank_another_token, "log ratio", marks=pytest.mark.more),
    ],
)
def test_wrong_forced_scores_are_replaced(checkpoint, monkeypatch, wrong, how):
    wrong(monkeypatch)
    started, swapped = loaded(checkpoint)
    assert started.notes == swapped.notes
    (note,) = started.notes
    assert how in note
    assert note.endswith(
        "scores are computed by prompt log-probabilities instead, which is slower"
    )
    assert started.scoring == "prompt_logprobs"
    assert started.setup["scoring"] == "by prompt log-probabilities"
    assert started.setup["self-check"] == "failed"


def test_right_forced_scores_are_kept(checkpoint):
    for report in loaded(checkpoint):
        assert (report.scoring, report.notes) == ("forced", ())
        assert report.setup["scoring"] == "in one step"
        assert report.setup["runner"] == ("V2" if runs_v2() else "V1")
        assert report.setup["self-check"] == "passed"


@pytest.mark.more
def test_unwritten_ranks_end_engine(checkpoint, monkeypatch):
    """Those of prompt log-probabilities."""
    from evaluator.engine.vllm.requests import InFlight

    right = InFlight.response

    def unwritten(self):
        answer = right(self)
        return replace(answer, ranks=(0,) * len(answer.ranks))

    monkeypatch.setattr(InFlight, "response", unwritten)
    with pytest.raises(
        EngineError, match="prompt log-probabilities hold a rank of 0 in a vocabulary"
    ):
        loaded(checkpoint, BY_PROMPT)


def test_vllm_ranks_end_engine(checkpoint, monkeypatch):
    """vLLM counts the tokens that are at least as likely. A checkpoint without ties
    ranks alike by either rule."""
    if runs_v2():
        from vllm.v1.worker.gpu.sample import logprob

        from evaluator.engine.vllm.v2 import kernels

        class Kernel:
            def __getitem__(self, grid):
                return self.launch

            def launch(self, output, logits, _stride, tokens, *_, **__):
                places = tokens.clamp(0, logits.shape[1] - 1).long()[:, None]
                output.copy_((logits >= logits.gather(1, places)).sum(-1))

        # an engine replaces it; afterwards it is back
        monkeypatch.setattr(logprob, "_ranks_kernel", logprob._ranks_kernel)
        monkeypatch.setattr(kernels, "strict_ranks_kernel", Kernel())
    else:
        from evaluator.engine.vllm.v1 import sampler

        monkeypatch.setattr(
            sampler, "_strict_ranks", lambda scores, own: (scores >= own).sum(-1)
        )
    with pytest.raises(
        EngineError,
        match="cannot be trusted: of planted tokens, a token of rank 1 got 384",
    ):
        loaded(checkpoint)


@pytest.mark.more
def test_nan_logits_are_errors(tmp_path, monkeypatch):
    broken = collapse(save_tiny_model(tmp_path / "broken", "qwen3"))
    monkeypatch.setattr(VLLMEngine, "_verify", lambda *_: ())  # NaN is not NaN
    with serving(broken, CONFIG) as engine:
        found = answers(engine, ASKED)
    assert len(found) == len(ASKED)
    for answer in found.values():
        assert answer.status == "engine_error"
        assert "NaN" in (answer.error or "")


@pytest.fixture(scope="module")
def running(checkpoint):
    with serving(checkpoint, CONFIG) as engine:
        yield engine


@pytest.fixture
def engine(running, checkpoint):
    running.load(checkpoint)
    return running


def test_ranks_of_ties_are_strict(engine, tmp_path):
    """And equal tokens are listed by their ids."""
    tied = save_tiny_model(tmp_path / "tied", "qwen3_untied", 3)
    tensors = load_file(tied / "model.safetensors")
    tensors["lm_head.weight"][100:200] = tensors["lm_head.weight"][50]
    save_file(tensors, tied / "model.safetensors", metadata={"format": "pt"})
    engine.load(tied)
    asked = [scoring(token, (20, 21, 22), (token,)) for token in range(40, 220, 5)]
    asked.append(generation("g", (20, 21, 22), 1, top_logprobs=60))
    found = answers(engine, asked)
    model = load_model(tied)
    listed = found.pop("g")
    pairs = list(zip(listed.top_logprobs[0], listed.top_ids[0], strict=True))
    assert pairs == sorted(pairs, key=lambda pair: (-pair[0], pair[1]))
    from tests.support.engines import rank_bounds

    for request in asked[:-1]:
        (lowest,), _ = rank_bounds(model, request)
        assert found[request.request_id].ranks == (lowest,)


def test_other_architecture_is_refused(engine, tmp_path):
    """And the engine goes on."""
    other = save_tiny_model(tmp_path / "mistral", "mistral")
    with pytest.raises(
        InputError,
        match=r"cannot be swapped into an engine built for .*: config.json: ",
    ):
        engine.load(other)
    assert answers(engine, [generation("g", (20, 21), 3)])["g"].status == "ok"


def test_missing_weights_are_noticed(engine, checkpoint, tmp_path, monkeypatch):
    from evaluator.engine.vllm import worker as worker_module

    other = save_tiny_model(tmp_path / "other", "qwen3_untied", 5)
    old = list(load_file(checkpoint / "model.safetensors").items())
    monkeypatch.setattr(worker_module, "_read", lambda files: old)
    with pytest.raises(
        EngineError,
        match=r"after loading, model.* in the engine is not that of the files",
    ):
        engine.load(other)
    with pytest.raises(
        EngineError, match="before a checkpoint was loaded, or after it failed"
    ):
        list(engine.run(FixedSource([])))
    monkeypatch.undo()
    assert not engine.load(checkpoint).swapped


def test_failing_step_ends_engine(engine, checkpoint, monkeypatch):
    def broken():
        raise RuntimeError("the device is gone\nwith details")

    monkeypatch.setattr(engine._started.llm.engine_core, "get_output", broken)
    with pytest.raises(
        EngineError, match=r"vLLM died in a step: RuntimeError: the device is gone$"
    ):
        list(engine.run(FixedSource([generation("g", (20,), 3)])))
    monkeypatch.undo()
    assert not engine.load(checkpoint).swapped


def _keep_old_weights(worker, files):
    """In the second worker: whatever is to be read from now on, `files` are."""
    from evaluator.engine.vllm import worker as worker_module

    read = worker_module._read
    if worker.rank == 1:
        worker_module._read = lambda _: read(files)


@pytest.mark.more  # two processes with an engine each
def test_two_workers_equal_transformers(tmp_path, monkeypatch):
    """Before and after a swap; weights that did not arrive at the second are
    noticed."""
    # there may be fewer cores than workers
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    pair = [save_tiny_model(tmp_path / str(seed), "qwen3", seed) for seed in range(2)]
    asked = [scoring(f"s{n}", (20,) * n, (30, 31)) for n in (1, 33, 64)]
    asked += [generation(f"g{n}", (20,) * n, 12) for n in (1, 33, 64)]
    config = CONFIG.model_copy(update={"tensor_parallel": 2})
    with serving(pair[0], config) as engine:
        for checkpoint in (*pair, pair[0]):
            # every matrix of both workers was compared
            assert engine.load(checkpoint).notes == ()
            assert_all_right(engine, load_model(checkpoint), asked)
        old = [str(pair[0] / "model.safetensors")]
        engine._started.llm.collective_rpc(_keep_old_weights, args=(old,))
        with pytest.raises(
            EngineError, match=r"is not that of the files \(worker 1 of 2\)$"
        ):
            engine.load(pair[1])
