"""Random checkpoints with the shapes of real models, written tensor by tensor so
that any size fits any machine.

Weights are normal with a standard deviation of 1 / sqrt(columns): activations stay
finite through any number of layers.
    python -m benchmarks.pruning.synthetic 0.6b DIR

The tokenizer is the bundled model's, so that a task's prompts have many different
tokens. Passages are random pieces of its vocabulary: the inputs of the first layer
span up to 2,500 dimensions. Those of text in 26 letters span 26: Hessians are then
nearly all damping, and float32 rounding decides which weights go."""

import dataclasses
import math
import random
import shutil
from pathlib import Path
from typing import Any

from benchmarks.harness import Options, run_main
from evaluator.checkpoints.tokenizer import load_tokenizer
from launch.sweep.models import BUNDLED_MODEL


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """Sizes, by the names of transformers' Qwen3Config."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int = 128
    vocab_size: int = 151_936
    tie_word_embeddings: bool = True  # embedding and output head are one matrix
    # Spread of the logits (the final norm's weight). 1: next tokens are nearly equally
    # likely, as in no language model. 8: the likeliest has a probability of about 0.6,
    # as in a trained one. What beam search has to do depends on it.
    logit_spread: float = 1.0

    def config(self) -> Any:
        from transformers import Qwen3Config

        sizes = dataclasses.asdict(self)
        del sizes["logit_spread"]
        kind = {
            "architectures": ["Qwen3ForCausalLM"],
            "dtype": "bfloat16",
            "max_position_embeddings": 40_960,
        }
        return Qwen3Config(
            **sizes, **kind, bos_token_id=None, eos_token_id=0, pad_token_id=None
        )


# parameters in brackets, embedding included
SHAPES = {
    "tiny": Shape(64, 128, 2, 2, 1, head_dim=32, vocab_size=4096),
    "60m": Shape(512, 1536, 12, 8, 4, head_dim=64, vocab_size=32_000, logit_spread=8.0),
    "0.2b": Shape(768, 2304, 12, 12, 4, head_dim=64),  # 0.21 B
    "0.6b": Shape(1024, 3072, 28, 16, 8, logit_spread=8.0),  # Qwen3-0.6B
    "1.7b": Shape(2048, 6144, 28, 16, 8, logit_spread=8.0),  # Qwen3-1.7B
    # Qwen3-8B
    "8b": Shape(4096, 12288, 36, 32, 8, logit_spread=8.0, tie_word_embeddings=False),
}


def tensors_of(shape: Shape) -> dict[str, tuple[int, ...]]:
    """The dimensions of each tensor."""
    import torch
    from transformers import Qwen3ForCausalLM

    with torch.device("meta"):
        model = Qwen3ForCausalLM(shape.config())
    return {
        name: tuple(parameter.shape) for name, parameter in model.named_parameters()
    }


def write_checkpoint(directory: Path, shape: Shape) -> Path:
    """A bfloat16 checkpoint in one safetensors file; one tensor is in memory at a
    time."""
    import torch

    from pruning.structured.write import write_safetensors

    directory.mkdir(parents=True, exist_ok=True)
    tensors = tensors_of(shape)
    device = "cuda" if torch.cuda.is_available() else "cpu"  # 8 B take minutes there
    generator = torch.Generator(device).manual_seed(0)

    def drawn(name: str, dimensions: tuple[int, ...]) -> memoryview:
        final = name == "model.norm.weight"
        tensor = torch.full(
            dimensions,
            shape.logit_spread if final else 1.0,
            dtype=torch.bfloat16,
            device=device,
        )
        if len(dimensions) > 1:
            tensor.normal_(std=dimensions[1] ** -0.5, generator=generator)
        return tensor.cpu().view(torch.uint8).numpy().data

    sizes = {
        name: ("BF16", dimensions, 2 * math.prod(dimensions))
        for name, dimensions in tensors.items()
    }
    write_safetensors(
        directory / "model.safetensors",
        sizes,
        (drawn(*each) for each in tensors.items()),
    )
    shape.config().save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(BUNDLED_MODEL / name, directory / name)
    return directory


def pieces(tokenizer: Any) -> list[str]:
    """What tokens stand for, where that is text, and not the white space at its end."""
    texts = (
        tokenizer.decode([number], skip_special_tokens=True).rstrip()
        for number in range(len(tokenizer))
    )
    return sorted(
        {text for text in texts if text and text.isprintable() and "\ufffd" not in text}
    )


def write_passages(file: Path, model: Path, count: int, tokens: int) -> Path:
    """`count` lines of random pieces of the model's vocabulary, of `tokens` tokens
    or more each."""
    texts, draw = pieces(load_tokenizer(model)), random.Random(0)
    # some are merged
    lines = ("".join(draw.choices(texts, k=2 * tokens)) for _ in range(count))
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return file


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("directory", type=Path)
    arguments = parser.parse_args()
    write_checkpoint(arguments.directory, SHAPES[arguments.shape])


if __name__ == "__main__":
    run_main(main)
