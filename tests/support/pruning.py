"""Random checkpoints of every architecture that is pruned, and text for them."""

import random
import warnings
from pathlib import Path
from typing import Any

import torch

from pruning.config import CalibrationConfig, PruneConfig
from tests.support.models import byte_level_tokenizer, draw_weights

WORDS = 100
VOCABULARY = 400
LENGTH = 32  # tokens of a calibration passage
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "bos_token_id": None,
    "eos_token_id": 0, "pad_token_id": 1,
}  # fmt: skip
ARCHITECTURES = ("qwen3", "mistral", "phi3", "llama", "qwen2", "gemma2", "gemma3_text")
MIXTURES = ("qwen3_moe", "mixtral", "olmoe")
MORE = (
    "olmo2",
    "olmo3",
    "smollm3",
    "granite",
    "glm",
    "glm4",
    "qwen3_5_text",
    "gemma4_text",
    *MIXTURES,
)
_TYPES = ["sliding_attention", "sliding_attention", "full_attention"]


def config(name: str, **changes: Any) -> Any:
    import transformers as t

    eight_experts = {"num_experts": 8, "num_experts_per_tok": 2}
    rope = {
        "rope_type": "default",
        "rope_theta": 10_000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [2, 1, 1],
    }
    kinds: dict[str, tuple[Any, dict[str, Any]]] = {
        "qwen3": (t.Qwen3Config, {"head_dim": 24, "tie_word_embeddings": True}),
        "mistral": (t.MistralConfig, {"head_dim": 16, "sliding_window": 12, "tie_word_embeddings": False}),
        "phi3": (t.Phi3Config, {"original_max_position_embeddings": 256, "sliding_window": 20}),
        "llama": (t.LlamaConfig, {"tie_word_embeddings": False}),
        "qwen2": (t.Qwen2Config, {"tie_word_embeddings": True}),
        "gemma2": (t.Gemma2Config, {"head_dim": 16, "sliding_window": 12}),
        "gemma3_text": (t.Gemma3TextConfig, {"head_dim": 16, "sliding_window": 12, "layer_types": _TYPES}),
        "olmo2": (t.Olmo2Config, {}),
        "olmo3": (t.Olmo3Config, {"sliding_window": 12, "layer_types": _TYPES}),
        "smollm3": (t.SmolLM3Config, {"no_rope_layers": [1, 0, 1]}),
        "granite": (t.GraniteConfig, {
            "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.3}),
        "glm": (t.GlmConfig, {"head_dim": 16}),
        "glm4": (t.Glm4Config, {"head_dim": 16}),
        "qwen3_5_text": (t.Qwen3_5TextConfig, {
            "head_dim": 32, "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_key_heads": 2,
            "linear_num_value_heads": 4, "rope_parameters": rope,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"]}),
        "gemma4_text": (t.Gemma4TextConfig, {
            "head_dim": 16, "global_head_dim": 32, "num_global_key_value_heads": 1, "attention_k_eq_v": True,
            "sliding_window": 12, "layer_types": _TYPES, "hidden_size_per_layer_input": 0}),
        "qwen3_moe": (t.Qwen3MoeConfig, {
            **eight_experts, "head_dim": 24, "moe_intermediate_size": 32, "mlp_only_layers": [1],
            "norm_topk_prob": True}),
        "mixtral": (t.MixtralConfig, {
            "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32, "sliding_window": 12}),
        "olmoe": (t.OlmoeConfig, {**eight_experts, "intermediate_size": 32, "clip_qkv": 2.0}),
    }  # fmt: skip
    kind, own = kinds[name]
    return kind(**(_SHAPE | own | changes))


def build(
    name: str,
    directory: Path,
    dtype: torch.dtype = torch.bfloat16,
    seed: int = 0,
    **changes: Any,
) -> None:
    """Write a random checkpoint; `max_shard_size` among the changes cuts it into
    shards."""
    from transformers import AutoModelForCausalLM

    shard = changes.pop("max_shard_size", "5GB")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = AutoModelForCausalLM.from_config(
            config(name, **changes), dtype=torch.float32
        )
        draw_weights(model, seed, spread=0.2, table_spread=0.2)
        model.to(dtype).save_pretrained(directory, max_shard_size=shard)
        tokenizer().save_pretrained(directory)


def build_gemma3(directory: Path) -> None:
    """Write a random Gemma 3 with a tower for images beside that for text."""
    import transformers

    settings = transformers.Gemma3Config(
        text_config=config("gemma3_text").to_dict(),
        vision_config={"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
                       "image_size": 28, "patch_size": 14},
        mm_tokens_per_image=4,
    )  # fmt: skip
    transformers.Gemma3ForConditionalGeneration(settings).to(
        torch.bfloat16
    ).save_pretrained(directory)
    tokenizer().save_pretrained(directory)


def tokenizer() -> Any:
    """Byte-level BPE, which the library loads for every architecture; each word of
    `lines` is one or two tokens."""
    words = " ".join(f"w{i}" for i in range(WORDS))
    return byte_level_tokenizer(
        [words], vocabulary=VOCABULARY, eos="<eos>", pad="<pad>"
    )


def lines(count: int, seed: int = 0, shortest: int = 9, longest: int = 24) -> list[str]:
    """Passages of differing length."""
    draw = random.Random(seed)
    return [
        " ".join(
            f"w{draw.randrange(WORDS)}" for _ in range(draw.randint(shortest, longest))
        )
        for _ in range(count)
    ]


def job(
    source: Path,
    texts: Path | str | None,
    method: str = "wanda",
    samples: int = 12,
    **fields: Any,
) -> PruneConfig:
    """By half unless a pattern is given. `texts`: a file of lines, another source,
    or None for no calibration."""
    calibration = None
    if texts is not None:
        named = texts if isinstance(texts, str) else f"text:{texts}"
        calibration = CalibrationConfig(
            source=named, samples=samples, sequence_length=LENGTH
        )
    half = {} if "pattern" in fields else {"sparsity": 0.5}
    common: dict[str, Any] = {
        "source": source,
        "method": method,
        "calibration": calibration,
        "device": "cpu",
    }
    return PruneConfig(**{**common, **half, **fields})


def magnitude(source: Path, **fields: Any) -> PruneConfig:
    """The job that needs no text."""
    return job(source, None, "magnitude", **fields)


def weights(directory: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    found: dict[str, torch.Tensor] = {}
    for file in sorted(directory.glob("*.safetensors")):
        found |= load_file(file)
    return found
