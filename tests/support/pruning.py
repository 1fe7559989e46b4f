"""Random checkpoints of every architecture that is pruned, and text for them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch

from tests.support.models import byte_level_tokenizer, draw_weights

WORDS = 100
VOCABULARY = 400
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": 1,
}
ARCHITECTURES = ("qwen3", "mistral", "phi3", "llama", "qwen2", "gemma2", "gemma3_text")


def config(name: str, **changes: Any) -> Any:
    import transformers as t

    kind, own = {
        "qwen3": (t.Qwen3Config, {"head_dim": 24, "tie_word_embeddings": True}),
        "mistral": (t.MistralConfig, {"head_dim": 16, "sliding_window": 12, "tie_word_embeddings": False}),
        "phi3": (t.Phi3Config, {"original_max_position_embeddings": 256, "sliding_window": 20}),
        "llama": (t.LlamaConfig, {"tie_word_embeddings": False}),
        "qwen2": (t.Qwen2Config, {"tie_word_embeddings": True}),
        "gemma2": (t.Gemma2Config, {"head_dim": 16, "sliding_window": 12}),
        "gemma3_text": (
            t.Gemma3TextConfig,
            {"head_dim": 16, "sliding_window": 12, "layer_types": ["sliding_attention"] * 2 + ["full_attention"]},
        ),
    }[name]
    return kind(**(_SHAPE | own | changes))


def build(name: str, directory: Path, dtype: torch.dtype = torch.bfloat16, seed: int = 0, **changes: Any) -> None:
    """Write a random checkpoint; `max_shard_size` among the changes cuts it into shards."""
    from transformers import AutoModelForCausalLM

    shard = changes.pop("max_shard_size", "5GB")
    model = AutoModelForCausalLM.from_config(config(name, **changes), dtype=torch.float32)
    draw_weights(model, seed, spread=0.2, table_spread=0.2)
    model.to(dtype).save_pretrained(directory, max_shard_size=shard)
    tokenizer().save_pretrained(directory)


def build_gemma3(directory: Path) -> None:
    """Write a random Gemma 3 with a tower for images beside that for text."""
    import transformers

    settings = transformers.Gemma3Config(
        text_config=config("gemma3_text").to_dict(),
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 28,
            "patch_size": 14,
        },
        mm_tokens_per_image=4,
    )
    transformers.Gemma3ForConditionalGeneration(settings).to(torch.bfloat16).save_pretrained(directory)
    tokenizer().save_pretrained(directory)


def tokenizer() -> Any:
    """Byte-level BPE, which the library loads for every architecture; each word of `lines` is one or two tokens."""
    words = " ".join(f"w{i}" for i in range(WORDS))
    return byte_level_tokenizer([words], vocabulary=VOCABULARY, eos="<eos>", pad="<pad>")


def lines(count: int, seed: int = 0, shortest: int = 9, longest: int = 24) -> list[str]:
    """Passages of differing length."""
    draw = random.Random(seed)
    return [" ".join(f"w{draw.randrange(WORDS)}" for _ in range(draw.randint(shortest, longest))) for _ in range(count)]


def weights(directory: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    found: dict[str, torch.Tensor] = {}
    for file in sorted(directory.glob("*.safetensors")):
        found |= load_file(file)
    return found
