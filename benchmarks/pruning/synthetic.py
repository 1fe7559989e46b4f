"""Random checkpoints with the shapes of real models, written tensor by tensor so that any size fits any machine.

Weights are normal with a standard deviation of 1 / sqrt(columns): activations stay finite through any number of layers.
    python -m benchmarks.pruning.synthetic 0.6b DIR

The tokenizer knows `WORDS` words of one token each: a passage of N words is N tokens, and the inputs of the first layer
span its width. (Inputs from text in 26 letters span 26 dimensions: Hessians are then nearly all damping, and float32
rounding decides which weights go.)"""

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Options, run_main

WORDS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int = 128
    vocabulary: int = 151_936
    # Spread of the logits (the final norm's weight). 1: next tokens are nearly equally likely, as in no language model.
    # 8: the likeliest has a probability of about 0.6, as in a trained one. What beam search has to do depends on it.
    logit_spread: float = 1.0
    tied: bool = True  # embedding and output head are one matrix


# parameters in brackets, embedding included
SHAPES = {
    "tiny": Shape(hidden=64, intermediate=128, layers=2, heads=2, kv_heads=1, head_dim=32, vocabulary=WORDS + 1),
    "60m": Shape(
        hidden=512, intermediate=1536, layers=12, heads=8, kv_heads=4, head_dim=64, vocabulary=32_000, logit_spread=8.0
    ),
    "0.2b": Shape(hidden=768, intermediate=2304, layers=12, heads=12, kv_heads=4, head_dim=64),  # 0.21 B
    "0.6b": Shape(hidden=1024, intermediate=3072, layers=28, heads=16, kv_heads=8, logit_spread=8.0),  # Qwen3-0.6B
    "1.7b": Shape(hidden=2048, intermediate=6144, layers=28, heads=16, kv_heads=8, logit_spread=8.0),  # Qwen3-1.7B
    "8b": Shape(
        hidden=4096, intermediate=12288, layers=36, heads=32, kv_heads=8, logit_spread=8.0, tied=False
    ),  # Qwen3-8B
}


def tensors_of(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "model.embed_tokens.weight", (shape.vocabulary, shape.hidden)
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        yield prefix + "self_attn.q_proj.weight", (query, shape.hidden)
        yield prefix + "self_attn.k_proj.weight", (key, shape.hidden)
        yield prefix + "self_attn.v_proj.weight", (key, shape.hidden)
        yield prefix + "self_attn.o_proj.weight", (shape.hidden, query)
        yield prefix + "self_attn.q_norm.weight", (shape.head_dim,)
        yield prefix + "self_attn.k_norm.weight", (shape.head_dim,)
        yield prefix + "mlp.gate_proj.weight", (shape.intermediate, shape.hidden)
        yield prefix + "mlp.up_proj.weight", (shape.intermediate, shape.hidden)
        yield prefix + "mlp.down_proj.weight", (shape.hidden, shape.intermediate)
        yield prefix + "input_layernorm.weight", (shape.hidden,)
        yield prefix + "post_attention_layernorm.weight", (shape.hidden,)
    yield "model.norm.weight", (shape.hidden,)
    if not shape.tied:
        yield "lm_head.weight", (shape.vocabulary, shape.hidden)


def write_checkpoint(directory: Path, shape: Shape, seed: int = 0) -> Path:
    """A bfloat16 checkpoint in one safetensors file; one tensor is in memory at a time."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config

    directory.mkdir(parents=True, exist_ok=True)
    header, offset = {}, 0
    for name, dimensions in tensors_of(shape):
        size = 2 * math.prod(dimensions)
        header[name] = {"dtype": "BF16", "shape": dimensions, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    generator = torch.Generator().manual_seed(seed)
    with (directory / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, dimensions in tensors_of(shape):
            final = name == "model.norm.weight"
            tensor = torch.full(dimensions, shape.logit_spread if final else 1.0, dtype=torch.bfloat16)
            if len(dimensions) > 1:
                tensor.normal_(std=dimensions[1] ** -0.5, generator=generator)
            file.write(tensor.view(torch.uint8).numpy().data)
    Qwen3Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=40_960,
        architectures=["Qwen3ForCausalLM"],
        dtype="bfloat16",
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=None,
    ).save_pretrained(directory)
    known = {"<eos>": 0} | {f"w{i}": i + 1 for i in range(min(WORDS, shape.vocabulary - 1))}
    backend = Tokenizer(models.WordLevel(vocab=known, unk_token="<eos>"))  # noqa: S106
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>").save_pretrained(directory)  # noqa: S106
    return directory


def write_passages(file: Path, count: int, tokens: int, seed: int = 0) -> Path:
    """`count` lines of `tokens` random words."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    lines = (torch.randint(0, WORDS, (tokens,), generator=generator).tolist() for _ in range(count))
    file.write_text("".join(" ".join(f"w{number}" for number in line) + "\n" for line in lines))
    return file


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("directory", type=Path)
    arguments = parser.parse_args()
    write_checkpoint(arguments.directory, SHAPES[arguments.shape])


if __name__ == "__main__":
    run_main(main)
