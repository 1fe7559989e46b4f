"""Tiny random checkpoints of the architectures that are served, for tests that need a
real model but no meaning. Each is a complete Hugging Face directory (config,
safetensors, byte-level BPE tokenizer), made in about a second and small enough for a
CPU. The weights are spread wide, so that next-token distributions are far from flat:
with a flat one, differences of 1e-6 between two implementations would already change
the greedy token.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file

Architecture = Literal["qwen3", "qwen3_untied", "mistral", "phi3"]

VOCABULARY = 384
EOS = "<|endoftext|>"
PAD = "<|pad|>"
_CORPUS = (
    "The town of Karo lies on the river Belu, and was founded in 1714 by Mira Tolen.",
    (
        "Context: Lake Onti is 48 kilometres long. Question: How long is Lake Onti?"
        " Answer in a few words: 48 kilometres"
    ),
    "Jezero Onti, озеро Онти, بحيرة أونتي, ঝিল, సరస్సు, 호수.",
)


def save_tiny_model(
    directory: Path,
    architecture: Architecture = "qwen3",
    seed: int = 0,
    *,
    eos_ids: tuple[int, ...] = (0,),
    dtype: str = "float32",
    max_position_embeddings: int = 2048,
    vocabulary: int = VOCABULARY,
    **changes: Any,
) -> Path:
    """Write a random checkpoint. `seed`: of the weights; `eos_ids`:
    generation_config.json's (the tokenizer's is 0); `vocabulary`: the model's, not
    the tokenizer's; `changes`: of its configuration."""
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    config = _config(architecture, max_position_embeddings, vocabulary, changes)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    draw_weights(model, seed, spread=0.2, table_spread=0.25)
    model.to(getattr(torch, dtype))
    model.generation_config = GenerationConfig(
        eos_token_id=list(eos_ids), pad_token_id=1
    )
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory)
    byte_level_tokenizer(
        _CORPUS * 3, vocabulary=VOCABULARY, eos=EOS, pad=PAD
    ).save_pretrained(directory)
    return directory


def draw_weights(model: Any, seed: int, *, spread: float, table_spread: float) -> None:
    """Normal weights with a standard deviation of `spread`, `table_spread` in
    embedding and head; norms near one."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:  # norm weights: near one, but not all equal
                parameter.copy_(1.0 + 0.1 * noise)
            else:
                parameter.copy_(
                    noise
                    * (table_spread if "embed" in name or "lm_head" in name else spread)
                )


def _config(
    architecture: Architecture,
    max_position_embeddings: int,
    vocabulary: int,
    changes: Mapping[str, Any],
) -> Any:
    from transformers import MistralConfig, Phi3Config, Qwen3Config

    shape: dict[str, Any] = {
        "vocab_size": vocabulary, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": max_position_embeddings,
        "bos_token_id": None, "eos_token_id": 0, "pad_token_id": 1, "tie_word_embeddings": architecture == "qwen3",
    }  # fmt: skip
    if architecture == "mistral":
        return MistralConfig(
            **{**shape, "head_dim": 32, "sliding_window": None, **changes}
        )
    if architecture == "phi3":
        return Phi3Config(
            **{
                **shape,
                "original_max_position_embeddings": max_position_embeddings,
                **changes,
            }
        )
    return Qwen3Config(**{**shape, "head_dim": 32, **changes})


def byte_level_tokenizer(
    texts: Iterable[str], *, vocabulary: int, eos: str, pad: str
) -> Any:
    """Byte-level BPE trained on `texts`: every text can be encoded. `eos` is id 0,
    `pad` id 1."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[eos, pad],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=eos, pad_token=pad
    )


def load_model(directory: Path) -> Any:
    """transformers' own model, in float32."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


def collapse(model: Path, norm: float = float("nan")) -> Path:
    """Make every logit of a saved model NaN: its last norm is this number, of which
    3e38 is a finite one."""
    weights = load_file(model / "model.safetensors")
    weights["model.norm.weight"] = torch.full_like(weights["model.norm.weight"], norm)
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    return model
