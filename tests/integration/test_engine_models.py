"""What pruning, quantising and smaller dtypes leave is served as transformers computes
it: sparse weights, experts, smaller models, quantised weights and caches."""

import random
import shutil
from itertools import product
from statistics import mean, median
from typing import get_args

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.tokenizer import load_tokenizer
from evaluator.core.files import cache_folder
from evaluator.engine.base import Reference, Score
from evaluator.engine.cache import FLOAT8, rounded
from evaluator.engine.config import EngineConfig
from evaluator.engine.processor import instruction_sets
from evaluator.engine.vllm.arguments import cache_dtypes
from evaluator.engine.vllm.engine import VLLMEngine
from evaluator.engine.vllm.schemes import cpu_dtypes
from pruning.methods.patterns import read_numbers
from pruning.output.job import Job
from pruning.run import prune
from pruning.verify import examine
from quantising.config import QuantiseConfig
from quantising.run import quantise as quantise_by
from tests.support import pruning as tiny
from tests.support.engines import (
    answers,
    assert_all_right,
    both_runners,
    oracle_of,
    random_tokens,
    rows_of,
    serving,
)
from tests.support.models import load_model, save_tiny_model
from tests.support.quantised import quantise, rounding_inputs
from tests.support.requests import generation, scoring

pytestmark = both_runners
long = pytest.mark.long
more = pytest.mark.more

CONFIG = EngineConfig(max_model_len=256, max_num_seqs=16)
# of a size that vLLM's kernels have
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
# Of what is pruned: qwen3 is served in test_engine_oracle; vLLM's code of qwen3_5_text
# needs torchvision; gemma2 differs; smollm3 has none.
MIXTURES = ("qwen3_moe", "mixtral", "olmoe")  # each gets an engine of its own
SWAPPED = (
    *("llama", "qwen2", "mistral", "phi3", "gemma3_text"),
    *("olmo2", "olmo3", "granite", "glm", "glm4"),
)


def pruned_by(method, dense, target):
    passages = target.with_suffix(".txt")
    passages.write_text("\n".join(tiny.lines(12)) + "\n", encoding="utf-8")
    prune(tiny.job(dense, passages, method), target)
    return target


def questions():
    draw = random.Random(0)
    asked = []
    for number, length in enumerate((1, 5, 17, 33, 64, 90)):
        prompt, *options = (
            random_tokens(draw, n, tiny.VOCABULARY) for n in (length, 1, 2, 4)
        )
        asked.append(generation(f"greedy {number}", prompt, 12))
        asked += [scoring(f"{number} {o}", prompt, o) for o in options]
    return asked


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("qwen3_moe", marks=more),
        *(pytest.param(name, marks=long) for name in (*SWAPPED, *MIXTURES[1:])),
    ],
)
def test_pruned_checkpoint_is_served(name, tmp_path):
    """It is swapped in, or gets an engine of its own."""
    changes = {"clip_qkv": None} if name == "olmoe" else {}
    dense = tmp_path / "dense"
    tiny.build(name, dense, torch.float32, **HEADS, **changes)
    pruned = pruned_by("wanda", dense, tmp_path / "pruned")
    engine = VLLMEngine(CONFIG)
    for number, checkpoint in enumerate((dense, pruned)):
        report = engine.load(checkpoint)
        assert report.scoring == "forced"
        assert report.swapped == (number > 0 and name not in MIXTURES)
        # experts cannot be compared
        assert bool(report.notes) == (name in MIXTURES)
        assert_all_right(engine, load_model(checkpoint), questions())
    engine.close()


@pytest.mark.more
@pytest.mark.parametrize("name", ["qwen3", pytest.param("gemma3_text", marks=long)])
def test_smaller_model_is_served(name, tmp_path):
    """Without some of its layers."""
    tiny.build(name, tmp_path / "dense", torch.float32, head_dim=32)
    checkpoint = pruned_by("layers", tmp_path / "dense", tmp_path / "layers")
    assert examine(checkpoint).problems == []
    with serving(checkpoint, CONFIG) as engine:
        assert_all_right(engine, load_model(checkpoint), questions())


def first_gone(checkpoint, sequences, of):
    """The quarter of the first layer's experts with the lowest saliency: the mean of
    gate x norm of the output, over the tokens that are sent to an expert."""
    model = load_model(checkpoint)
    experts, sums, counts = model.model.layers[0].mlp.experts, [0.0] * of, [0] * of

    def look(_, arguments):
        hidden_TH, chosen_TK, gates_TK = arguments
        for token, place in product(*map(range, chosen_TK.shape)):
            number = int(chosen_TK[token, place])
            gate, up = (experts.gate_up_proj[number] @ hidden_TH[token]).chunk(2)
            output = experts.down_proj[number] @ (torch.nn.functional.silu(gate) * up)
            sums[number] += float(gates_TK[token, place] * output.norm())
            counts[number] += 1

    experts.register_forward_pre_hook(look)
    with torch.no_grad():
        for ids in sequences:
            model(torch.tensor([list(ids)]))
    saliency = [total / max(1, n) for total, n in zip(sums, counts, strict=True)]
    return tuple(sorted(sorted(range(of), key=saliency.__getitem__)[: of // 4]))


@pytest.mark.skipif(
    not list(cache_folder().glob("llm-compressor-*/installed")),
    reason="llm-compressor has no environment here",
)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("qwen3_moe", marks=more),
        *(pytest.param(name, marks=long) for name in MIXTURES[1:]),
    ],
)
def test_fewer_experts_are_served(name, tmp_path):
    """llm-compressor chooses those that go."""
    changes = {"clip_qkv": None} if name == "olmoe" else {}
    dense, out, passages = tmp_path / "dense", tmp_path / "out", tmp_path / "texts.txt"
    tiny.build(name, dense, torch.float32, **HEADS, **changes)
    passages.write_text("\n".join(tiny.lines(12)) + "\n", encoding="utf-8")
    calibration = tiny.job(dense, passages).calibration
    config = QuantiseConfig(
        source=dense, method="reap", experts=0.25, calibration=calibration
    )
    removed = quantise_by(config, out).removed
    assert {len(read_numbers(gone)) for gone in removed.gone} == {removed.of // 4}
    sequences = Job(config, out, {}, {}).calibrate(load_tokenizer(dense)).sequences
    assert read_numbers(removed.gone[0]) == first_gone(dense, sequences, removed.of)
    assert examine(out).problems == []
    engine = VLLMEngine(CONFIG)
    engine.load(out)
    assert_all_right(engine, load_model(out), questions())
    engine.close()


@pytest.mark.more
def test_head_only_equals_named_embedding(tmp_path):
    """A tied matrix under the output head's name alone: built, and swapped in place."""
    engine = VLLMEngine(CONFIG)
    for seed in (0, 1):
        named = save_tiny_model(tmp_path / f"named{seed}", seed=seed)
        headed = shutil.copytree(named, tmp_path / f"head{seed}")
        tensors = load_file(headed / "model.safetensors")
        tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
        save_file(tensors, headed / "model.safetensors", metadata={"format": "pt"})
        assert engine.load(headed).swapped is bool(seed)
        assert_all_right(engine, load_model(named), [scoring("s", (5, 9, 2), (7, 4))])
    engine.close()


@pytest.mark.more
def test_bfloat16_models_have_float32_logits(tmp_path):
    """Tokens that bfloat16 would round to one logit keep ranks of their own, also
    after a swap."""
    pair = [
        save_tiny_model(tmp_path / str(seed), "qwen3", seed, dtype="bfloat16")
        for seed in (0, 1)
    ]
    draw = random.Random(4)
    asked = [
        scoring(n, (20 + n,) * 9, draw.sample(range(8, 384), 30)) for n in range(2)
    ]
    config = CONFIG.model_copy(update={"dtype": "bfloat16"})
    with serving(pair[0], config) as engine:
        for checkpoint in (*pair, pair[0]):
            assert engine.load(checkpoint).setup["logits"] == "float32"
            off = distances(load_model(checkpoint), answers(engine, asked), asked)
            assert max(off) <= 0.25
            values = [
                value
                for answer in answers(engine, asked).values()
                for value in answer.logprobs
            ]
            assert len(set(values)) == len(values)


def distances(model, found, asked):
    """Nats between scores and transformers' own."""
    off = []
    for request in asked:
        ids = request.continuation_ids
        rows = rows_of(model, request.prompt_ids, ids)
        own = rows.gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()
        values = found[request.request_id].logprobs
        off += [abs(a - b) for a, b in zip(values, own, strict=True)]
    return off


# Nats per token, in the mean, and in the median. Products of float8 or int8 are exact in
# float32, and only an input that lies between two values may be rounded to either. In
# bfloat16 every layer's inputs are rounded once more before that; the model's logits
# are far apart (tests/support/models.py), so that it shows.
QUANTISED = {"float32": (0.1, 0.01, 1e-5), "bfloat16": (1.0, 0.25, 0.25)}


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dense")
    return save_tiny_model(folder / "m", "qwen3_untied", dtype="bfloat16")


def scores(count):
    draw = random.Random(1)
    return [
        scoring(f"s{n}", random_tokens(draw, 10 + 7 * n), random_tokens(draw, 4))
        for n in range(count)
    ]


@pytest.mark.parametrize(
    ("layout", "dtype"),
    [
        # most machines without a GPU serve FP8
        pytest.param("fp8", "bfloat16", marks=more),
        pytest.param("fp8", "float32", marks=long),
        *(
            pytest.param(layout, dtype, marks=long)
            for layout, dtype in (
                ("w8a8", "float32"),
                *((name, "bfloat16") for name in ("w8a8", "w4a16", "gptq", "awq")),
            )
        ),
    ],
)
def test_quantised_equals_dequantised_weights(layout, dtype, dense, tmp_path):
    """Each gets an engine of its own, also with a sparsity_config that vLLM itself
    refuses."""
    checkpoint = quantise(dense, tmp_path / "q", layout, twin=tmp_path / "twin")
    config = CONFIG.model_copy(update={"dtype": dtype})
    quantisation = Checkpoint(checkpoint).quantisation
    served = cpu_dtypes(quantisation, instruction_sets())
    if served is not None and dtype not in served:
        pytest.skip("not served here")
    model, asked = load_model(tmp_path / "twin"), scores(6)
    if layout not in ("gptq", "awq"):
        rounding_inputs(model, layout)
    with serving(checkpoint, config) as engine:
        before = answers(engine, asked)
        off = distances(model, before, asked)
        largest, usual, middle = QUANTISED[dtype]
        assert max(off) <= largest
        assert mean(off) <= usual
        assert median(off) <= middle
        if layout == "fp8":
            other = save_tiny_model(tmp_path / "o", "qwen3_untied", 1, dtype="bfloat16")
            zeros = {"format": "dense", "targets": ["Linear"]}
            zeros["sparsity_structure"] = "2:4"
            pruned = quantise(
                other, tmp_path / "oq", layout, config={"sparsity_config": zeros}
            )
            assert not engine.load(pruned).swapped
            assert answers(engine, asked)["s0"].logprobs != before["s0"].logprobs
            assert not engine.load(checkpoint).swapped
            assert answers(engine, asked)["s0"].logprobs == before["s0"].logprobs


ON_A_CPU = cache_dtypes(on_cpu=True)
# A difference of 1e-7 may round a number to its neighbour, an eighth away (e4m3) or a
# quarter (e5m2).
FLIPPED = {"fp8": 0.05, "fp8_e4m3": 0.05, "fp8_e5m2": 0.3}


def asked_of_cache():
    """Answers and scores after prompts of their own, and after one that they share."""
    draw = random.Random(1)
    shared = random_tokens(draw, 75)
    for number in range(10):
        prompt = random_tokens(draw, 40 + number)
        if number % 2:
            prompt = shared + prompt[:number]
        yield scoring(f"s{number}", prompt, random_tokens(draw, 1 + number))
        yield generation(f"g{number}", prompt, 8)


@pytest.mark.more
@pytest.mark.parametrize("kv_cache", ON_A_CPU[1:])
def test_float8_cache_equals_oracle(tmp_path, kv_cache):
    """Scores, answers and distributions, which the engine compares token by token."""
    checkpoint = save_tiny_model(tmp_path / "model", "qwen3")
    exact = CONFIG.model_copy(update={"dtype": "float32"})
    config = exact.model_copy(update={"kv_cache": kv_cache})
    base, oracle = oracle_of(checkpoint, exact), oracle_of(checkpoint, config)
    asked = list(asked_of_cache())
    for request in [each for each in asked if isinstance(each, Score)]:
        path = str(tmp_path / request.request_id)
        kept = replace(
            request, reference=Reference(path=path, keep=True, base=str(checkpoint))
        )
        assert base.answer(kept).status == "ok"
        compare = Reference(path=path, keep=False, base=str(checkpoint))
        asked.append(
            replace(request, request_id=f"r{request.request_id}", reference=compare)
        )
    with serving(checkpoint, config) as engine:
        assert not engine._started.dialect.one_step
        found = answers(engine, asked)
    off: list[float] = []
    for request in asked:
        answer, expected = found[request.request_id], oracle.answer(request)
        assert answer.status == "ok"
        for place, (own, their) in enumerate(
            zip(answer.logprobs, expected.logprobs, strict=True)
        ):
            if answer.token_ids[place] == expected.token_ids[place]:
                off.append(abs(own - their))
        for one, other in zip(answer.divergences, expected.divergences, strict=True):
            off.append(abs(one.kld - other.kld))
            assert one.reference_logprob == pytest.approx(
                other.reference_logprob, abs=1e-6
            )
    assert len(off) > 200
    assert median(off) < 1e-5
    assert max(off) < FLIPPED[kv_cache]


@pytest.mark.parametrize("kv_cache", ON_A_CPU[1:])
def test_float8_bits_equal_oracle(kv_cache):
    from vllm import _custom_ops as kernels

    heads, width, block = 3, 32, 32
    values_THD = (
        torch.randn(block, heads, width) * torch.logspace(-4, 3, block)[:, None, None]
    )
    blocks = torch.zeros(1, heads, 2 * block, width, dtype=torch.uint8)
    keys, cached = blocks.chunk(2, dim=2)
    settings = {"k_scale": 0.5, "v_scale": 0.37, "kv_cache_dtype": kv_cache}
    kernels.cpu_attn_reshape_and_cache(
        values_THD, values_THD, keys, cached, torch.arange(block), "vec", **settings
    )
    written_HTD = cached[0].contiguous().view(getattr(torch, FLOAT8[kv_cache]))
    written_THD = written_HTD.float().transpose(0, 1) * 0.37
    assert torch.equal(written_THD, rounded(values_THD, kv_cache, 0.37))


def test_cache_dtypes_are_vllms():
    """A CPU's engine starts with the others too, and computes nonsense."""
    from vllm.config.cache import CacheDType
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    assert {*ON_A_CPU} <= {*CPUAttentionBackend.supported_kv_cache_dtypes}
    assert {*cache_dtypes(on_cpu=False)} <= {*get_args(CacheDType)}
