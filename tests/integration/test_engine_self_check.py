"""A real engine checks its forced scores when it starts: wrong ones are replaced,
right ones are remembered."""

import contextlib

import pytest
from msgspec.structs import replace

from evaluator.core.errors import EngineError
from evaluator.engine import self_check
from evaluator.engine.config import EngineConfig
from evaluator.engine.vllm.engine import VLLMEngine
from tests.support.engines import answers, both_runners, oracle_of, runs_v2
from tests.support.models import save_tiny_model
from tests.support.requests import generation, scoring

pytestmark = both_runners

CONFIG = EngineConfig(max_model_len=128, max_num_seqs=8)
ASKED = [
    scoring("many", (20, 21, 22), (30, 31, 9, 77)),
    scoring("one", (20, 21, 22), (30,)),
    # all 128
    scoring("full", range(20, 144), (30, 31, 9, 77)),
    generation("greedy", (20, 21, 22), 5),
]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "resurface" / "self-check"


def served(checkpoint, config=CONFIG):
    """The reports of a start and of a swap, and what was answered after both."""
    with contextlib.closing(VLLMEngine(config)) as engine:
        reports = engine.load(checkpoint), engine.load(checkpoint)
        assert engine.stats().requests == 0  # the check's own are not counted
        found, again = answers(engine, ASKED), answers(engine, ASKED)
        # the second time the prefix cache could answer
        for name, answer in again.items():
            assert (answer.token_ids, answer.ranks) == (
                found[name].token_ids,
                found[name].ranks,
            )
            assert answer.logprobs == pytest.approx(found[name].logprobs, abs=1e-4)
            assert (
                not answer.cached_tokens
                or answer.request_id == "greedy"
                or reports[0].scoring == "forced"
            )
        return *reports, found


def count_ties(patch):
    def counted(scores, values):
        return (scores >= values).sum(-1)

    class Kernel:
        def __getitem__(self, grid):
            return self.launch

        def launch(self, output, logits, _stride, tokens, *_, **__):
            output.copy_(
                counted(
                    logits,
                    logits.gather(
                        1, tokens.clamp(0, logits.shape[1] - 1).long()[:, None]
                    ),
                )
            )

    if runs_v2():
        from vllm.v1.worker.gpu.sample import logprob

        from evaluator.engine.vllm.v2 import kernels

        # an engine replaces it; afterwards it is back
        patch.setattr(logprob, "_ranks_kernel", logprob._ranks_kernel)
        patch.setattr(kernels, "strict_ranks_kernel", Kernel())
    else:
        from evaluator.engine.vllm.v1 import sampler

        patch.setattr(sampler, "_strict_ranks", counted)


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


def change_ranks(patch, change, *, forced):
    """Report other ranks of the scores in one step, or of those by prompt
    log-probabilities."""
    from evaluator.engine.vllm.requests import InFlight

    right = InFlight.response

    def changed(self):
        answer = right(self)
        concerned = self.report_from is not None and (self.ranks is not None) == forced
        return replace(answer, ranks=change(answer.ranks)) if concerned else answer

    patch.setattr(InFlight, "response", changed)


def unwritten(ranks):
    return (0,) * len(ranks)


def turned(ranks):
    """Each is right where it is counted, and is reported for another token."""
    return (*ranks[1:], *ranks[:1])


@pytest.mark.parametrize(
    ("scoring", "change", "named"),
    [
        pytest.param(
            "forced",
            unwritten,
            "a rank of 0 in a vocabulary of 384",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "prompt_logprobs",
            unwritten,
            "a rank of 0 in a vocabulary of 384",
            marks=pytest.mark.more,
        ),
        pytest.param(
            "forced",
            turned,
            r"a rank of \d+ where whole distributions have",
            marks=pytest.mark.more,
        ),
    ],
)
def test_nonsense_prompt_scores_end_engine(
    scoring, change, named, tmp_path, cache, monkeypatch
):
    """An engine whose prompt log probabilities are nonsense is not used."""
    change_ranks(monkeypatch, change, forced=False)
    with pytest.raises(EngineError, match=f"prompt log-probabilities hold {named}"):
        served(
            save_tiny_model(tmp_path / "model", "qwen3"),
            CONFIG.model_copy(update={"scoring": scoring}),
        )
    assert not cache.exists()


def test_vllm_ranks_end_engine(tmp_path, cache, monkeypatch):
    """vLLM counts the tokens that are at least as likely. A checkpoint without ties
    ranks alike by either rule."""
    count_ties(monkeypatch)
    with pytest.raises(
        EngineError,
        match="cannot be trusted: of planted tokens, a token of rank 1 got 384",
    ):
        served(save_tiny_model(tmp_path / "model", "qwen3"))
    assert not cache.exists()


@pytest.mark.more
def test_wrong_forced_ranks_are_replaced(tmp_path, cache, monkeypatch):
    change_ranks(monkeypatch, turned, forced=True)
    started, _, _ = served(save_tiny_model(tmp_path / "model", "qwen3"))
    assert started.notes[0].startswith("forced scores have a rank of ")
    assert started.scoring == "prompt_logprobs"


def test_wrong_forced_scores_are_replaced(tmp_path, cache, monkeypatch):
    checkpoint = save_tiny_model(tmp_path / "model", "qwen3", 0, eos_ids=(0,))
    expected = answers(oracle_of(checkpoint, CONFIG), ASKED)

    with monkeypatch.context() as broken:
        score_other_tokens(broken)
        started, swapped, found = served(checkpoint)
    assert started.notes == swapped.notes
    (note,) = started.notes
    assert note.startswith(
        "forced scores differ from prompt log-probabilities by up to "
    )
    assert note.endswith(
        "scores are computed by prompt log-probabilities instead, which is slower"
    )
    assert (started.scoring, started.setup["scoring"]) == (
        "prompt_logprobs",
        "by prompt log-probabilities",
    )
    assert started.setup["self-check"] == "failed"
    assert not cache.exists()
    for name, answer in found.items():
        assert answer.logprobs == pytest.approx(expected[name].logprobs, abs=1e-4)
        assert answer.token_ids == expected[name].token_ids

    started, swapped, found = served(checkpoint)
    assert started.notes == swapped.notes == ()
    assert (started.scoring, started.setup["scoring"]) == ("forced", "in one step")
    assert (started.setup["runner"], started.setup["self-check"]) == (
        "V2" if runs_v2() else "V1",
        "passed",
    )
    assert len(list(cache.iterdir())) == 1
    assert found["many"].ranks == expected["many"].ranks

    def asks_again(*_):
        raise AssertionError("a combination that has passed is asked again")

    monkeypatch.setattr(self_check, "questions", asks_again)
    assert served(checkpoint)[0].setup["self-check"] == "not needed"
