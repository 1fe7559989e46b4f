"""Random checkpoints of every architecture that is pruned, and text for them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch

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
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * 0.2 if parameter.dim() > 1 else 1 + 0.1 * noise)
    model.to(dtype).save_pretrained(directory, max_shard_size=shard)
    tokenizer().save_pretrained(directory)


def tokenizer() -> Any:
    """Byte-level BPE, which the library loads for every architecture; each word of `lines` is one or two tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<eos>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([" ".join(f"w{i}" for i in range(WORDS))], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>", pad_token="<pad>")


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
