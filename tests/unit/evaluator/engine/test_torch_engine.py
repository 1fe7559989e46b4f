"""The oracle against transformers; what is kept of distributions and compared with
them, against formulas."""

import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from evaluator.checkpoints.info import inspect_checkpoint
from evaluator.checkpoints.tokenizer import load_tokenizer
from evaluator.engine.base import FixedSource, Reference
from evaluator.engine.config import EngineConfig
from evaluator.engine.distributions import RANKS, divergences_from, unusable
from evaluator.engine.torch_engine import TorchEngine
from tests.support.models import collapse, save_tiny_model
from tests.support.requests import generation, scoring
from tests.support.sweeps import refused
from tests.support.traps import lay_traps

PROMPT = (20, 30, 40, 50, 60)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return save_tiny_model(
        tmp_path_factory.mktemp("models") / "one", "qwen3", eos_ids=(0, 7)
    )


def loaded(checkpoint):
    engine = TorchEngine(EngineConfig(kind="torch", max_model_len=64))
    engine.load(checkpoint)
    return engine


@pytest.fixture(scope="module")
def engine(checkpoint):
    engine = loaded(checkpoint)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def model(checkpoint):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype="float32").eval()


def test_greedy_and_scores_equal_transformers(engine, model):
    """Greedy is that of generate and scores those of one forward pass."""
    answer = engine.answer(generation("g", PROMPT, 20))
    expected = model.generate(
        torch.tensor([PROMPT]), max_new_tokens=20, do_sample=False
    )[0, len(PROMPT) :]
    assert list(answer.token_ids) == expected.tolist()
    assert len(answer.logprobs) == len(answer.token_ids)
    continuation = (33, 200, 7, 380)
    answer = engine.answer(scoring("s", PROMPT, continuation))
    with torch.no_grad():
        rows = (
            model(torch.tensor([PROMPT + continuation]))
            .logits[0, len(PROMPT) - 1 : -1]
            .log_softmax(-1)
        )
    for step, token in enumerate(continuation):
        assert answer.logprobs[step] == pytest.approx(
            float(rows[step, token]), abs=1e-6
        )
        assert answer.ranks[step] == 1 + int((rows[step] > rows[step, token]).sum())
        assert answer.top_ids[step] == (int(rows[step].argmax()),)
        assert answer.top_logprobs[step][0] == pytest.approx(
            float(rows[step].max()), abs=1e-6
        )


def test_generation_stops_at_any_eos(engine, tmp_path):
    asked = [generation(n, (n, *PROMPT), 12) for n in (100, 200)]
    free = [engine.answer(request).token_ids for request in asked]
    ends = (free[0][4], free[1][6])
    stopping = TorchEngine(EngineConfig(kind="torch"))
    stopping.load(save_tiny_model(tmp_path / "stopping", "qwen3", eos_ids=ends))
    for request, ids in zip(asked, free, strict=True):
        length = 1 + min(ids.index(token) for token in ends if token in ids)
        assert length < 12
        assert stopping.answer(request).token_ids == ids[:length]


def test_samples_follow_seed_within_nucleus(engine):
    """Samples follow their seed and stay in the nucleus."""
    top = engine.answer(generation("t", PROMPT, 1, top_logprobs=384))
    mass, nucleus = 0.0, set()
    for token, logprob in zip(top.top_ids[0], top.top_logprobs[0], strict=True):
        if mass < 0.6:
            nucleus.add(token)
        mass += math.exp(logprob)

    def draw(seed):
        asked = generation("x", PROMPT, 1, temperature=1.0, top_p=0.6, seed=seed)
        return engine.answer(asked).token_ids[0]

    drawn = [draw(seed) for seed in range(20)]
    assert set(drawn) <= nucleus
    assert len(set(drawn)) > 1
    assert drawn == [draw(seed) for seed in range(20)]


def test_too_long_request_fails_alone(engine):
    prompts = {"long": PROMPT * 12, "fits": PROMPT}
    asked = [generation(name, prompt, 5) for name, prompt in prompts.items()]
    before = engine.stats()
    assert {r.request_id: r.status for r in engine.run(FixedSource(asked))} == {
        "long": "engine_error",
        "fits": "ok",
    }
    after = engine.stats()
    assert (
        after.requests - before.requests,
        after.prompt_tokens - before.prompt_tokens,
    ) == (1, 5)


def test_nan_is_error_code_not_run(tmp_path):
    """Numbers that are none are an error and code of a known architecture is not
    run."""
    engine = loaded(
        collapse(save_tiny_model(tmp_path / "broken", "qwen3", eos_ids=(0,)))
    )
    greedy = generation("greedy", PROMPT, 3)
    for asked in (scoring("score", PROMPT, (5, 6)), greedy):
        (answer,) = engine.run(FixedSource([asked]))
        assert (answer.request_id, answer.status, answer.ranks) == (
            asked.request_id,
            "engine_error",
            (),
        )
        assert "NaN" in answer.error
    checkpoint, marker = save_tiny_model(tmp_path / "code", "qwen3"), tmp_path / "run"
    lay_traps(checkpoint, marker)
    inspect_checkpoint(checkpoint)
    load_tokenizer(checkpoint)
    TorchEngine(EngineConfig(kind="torch")).load(checkpoint)
    assert not marker.exists()


def lacks_a_tensor(checkpoint):
    tensors = load_file(checkpoint / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, checkpoint / "model.safetensors", metadata={"format": "pt"})


def has_pickled_weights(checkpoint):
    # what was inspected
    (checkpoint / "model.safetensors").rename(checkpoint / "weights.safetensors")
    # what transformers would take in its place
    torch.save({}, checkpoint / "pytorch_model.bin")


def has_an_adapter(checkpoint):
    (checkpoint / "adapter_config.json").write_text(
        '{"base_model_name_or_path": "somebody/else"}'
    )


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lacks_a_tensor, "missing keys: model.norm.weight"),
        (has_pickled_weights, "transformers cannot load it"),
        (has_an_adapter, "adapter_config.json: an adapter is not applied"),
    ],
)
def test_incomplete_safetensors_are_refused(tmp_path, spoil, reason):
    """A model that is not wholly in its safetensors is refused."""
    checkpoint = save_tiny_model(tmp_path / "spoilt", "qwen3")
    spoil(checkpoint)
    assert reason in refused(TorchEngine(EngineConfig(kind="torch")).load, checkpoint)


TOLERANCE = 1e-5  # nats; shares and probabilities
CONTINUATION = (33, 200, 7, 380, 12)


def rows(seed, count=40, columns=500):
    return (
        torch.randn(count, columns, generator=torch.Generator().manual_seed(seed)) * 3
    )


def expected(base_TV, own_TV, ids):
    """Every measure by its definition, in float64."""
    p, q = (each.double().log_softmax(1) for each in (base_TV, own_TV))
    first_p, first_q = (
        each.argsort(dim=1, descending=True, stable=True)[:, :RANKS] for each in (p, q)
    )
    return [
        (
            float((p[t].exp() * (p[t] - q[t])).sum()),
            float((q[t].exp() * (q[t] - p[t])).sum()),
            float(torch.minimum(p[t].exp(), q[t].exp()).sum()),
            bool(first_p[t, 0] == first_q[t, 0]),
            float((first_p[t] == first_q[t]).double().mean()),
            float(p[t, ids[t]]),
            float(p[t].exp().max()),
        )
        for t in range(len(ids))
    ]


def check(found, wanted):
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one[:3] == pytest.approx(other[:3], abs=TOLERANCE)
        assert one.same_top is other[3]
        assert one[4:] == pytest.approx(other[4:], abs=TOLERANCE)


def test_divergences_equal_their_definitions(tmp_path):
    """Every measure is its definition also of equal and impossible rows."""
    base, own, ids = rows(1), rows(2), list(range(40))
    own[:20] = base[:20] + 0.1 * own[:20]  # nearly the same, and not at all
    path = str(tmp_path / "deeper" / "one.safetensors")
    assert divergences_from(Reference(path=path, keep=True), base, ids) == ()
    found = divergences_from(Reference(path=path, keep=False), own, ids)
    check(found, expected(base, own, ids))
    assert {each.same_top for each in found} == {True, False}
    assert not list(tmp_path.glob("**/.*"))  # nothing half-written stays
    base, ids = rows(1).bfloat16(), list(range(40))
    for top in (0, 8):
        path = str(tmp_path / f"{top}.safetensors")
        divergences_from(Reference(path=path, keep=True, top=top), base, ids)
        for each in divergences_from(
            Reference(path=path, keep=False, top=top), base, ids
        ):
            assert each[:5] == pytest.approx((0, 0, 1, True, 1), abs=1e-6)
            assert each.kld >= 0
    base, own = rows(1, 2), rows(2, 2)
    base[:, 7] = own[:, 7] = float("-inf")
    own[1, 9] = float("-inf")
    path = str(tmp_path / "one.safetensors")
    divergences_from(Reference(path=path, keep=True), base, [1, 2])
    one, other = divergences_from(Reference(path=path, keep=False), own, [1, 2])
    assert math.isfinite(one.kld)
    assert other.kld == math.inf
    assert math.isfinite(other.kld_reverse)


def test_top_tokens_give_bounds(tmp_path):
    """The likeliest alone give bounds and with all of them the whole."""
    base, ids = rows(1), list(range(40))
    own = base + 0.5 * rows(2)
    whole = expected(base, own, ids)
    last = None
    for top in (RANKS, 16, 100, 500, 900):
        path = str(tmp_path / f"{top}.safetensors")
        divergences_from(Reference(path=path, keep=True, top=top), base, ids)
        found = divergences_from(Reference(path=path, keep=False, top=top), own, ids)
        for one, other in zip(found, whole, strict=True):
            assert one.kld <= other[0] + TOLERANCE
            assert one.kld_reverse <= other[1] + TOLERANCE
            assert one.acceptance >= other[2] - TOLERANCE
            assert (one.same_top, one.agreement) == (other[3], pytest.approx(other[4]))
            assert one[5:] == pytest.approx(other[5:], abs=TOLERANCE)
        mean = sum(each.kld for each in found)
        assert last is None or mean >= last - TOLERANCE  # more tokens, a closer bound
        last = mean
    check(found, whole)
    # By hand, for one row and five tokens.
    p, q = base[0].double().softmax(0), own[0].double().softmax(0)
    kept = p.argsort(descending=True)[:RANKS]
    merged = [torch.cat((each[kept], (1 - each[kept].sum())[None])) for each in (p, q)]
    path = str(tmp_path / f"{RANKS}.safetensors")
    (first, *_) = divergences_from(
        Reference(path=path, keep=False, top=RANKS), own, ids
    )
    assert first.kld == pytest.approx(
        float((merged[0] * (merged[0] / merged[1]).log()).sum()), abs=TOLERANCE
    )
    assert first.acceptance == pytest.approx(
        float(torch.minimum(*merged).sum()), abs=TOLERANCE
    )


def test_unusable_references_give_no_divergence(tmp_path, checkpoints):
    """What a base kept of other tokens or without numbers is no divergence."""
    path = str(tmp_path / "one.safetensors")
    compare = Reference(path=path, keep=False)
    assert "are not there" in unusable(compare, (1, 2), 500)
    divergences_from(Reference(path=path, keep=True), rows(1, 2), (1, 2))
    assert unusable(compare, (1, 2), 500) is None
    assert unusable(Reference(path=path, keep=True), (9, 9), 4) is None
    assert "other tokens" in unusable(compare, (1, 3), 500)
    assert "500 columns, the vocabulary here has 512" in unusable(compare, (1, 2), 512)
    (tmp_path / "one.safetensors").write_bytes(b"half")
    assert "are not there" in unusable(compare, (1, 2), 500)
    broken = loaded(
        collapse(save_tiny_model(tmp_path / "broken", "qwen3", 0, eos_ids=(0,)))
    )
    assert broken.answer(score(tmp_path / "one", keep=True)).status == "engine_error"
    answer = loaded(checkpoints[0]).answer(score(tmp_path / "one", keep=False))
    assert answer.status == "engine_error"
    assert "NaN" in answer.error


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return [
        save_tiny_model(folder / str(seed), "qwen3", seed, eos_ids=(0,))
        for seed in (0, 1)
    ]


def score(path, keep, name="s", continuation=CONTINUATION, top=0):
    reference = Reference(path=str(path), keep=keep, top=top)
    return scoring(name, PROMPT, continuation, reference=reference)


def test_the_torch_engine_is_transformers(checkpoints, tmp_path):
    base, other = map(loaded, checkpoints)
    kept = base.answer(score(tmp_path / "one", keep=True))
    assert (kept.status, kept.divergences, len(kept.logprobs)) == (
        "ok",
        (),
        len(CONTINUATION),
    )
    answer = other.answer(score(tmp_path / "one", keep=False))
    logits = []
    for checkpoint in checkpoints:
        model = AutoModelForCausalLM.from_pretrained(
            checkpoint, dtype=torch.float32
        ).eval()
        with torch.no_grad():
            logits.append(
                model(torch.tensor([PROMPT + CONTINUATION])).logits[
                    0, len(PROMPT) - 1 : -1
                ]
            )
    check(answer.divergences, expected(*logits, CONTINUATION))
    assert answer.logprobs == other.answer(score(tmp_path / "none", keep=True)).logprobs
    for each in base.answer(score(tmp_path / "one", keep=False)).divergences:
        assert each[:4] == (0, 0, pytest.approx(1), True)
