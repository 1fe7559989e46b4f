"""A tiny random model that thinks by chance."""

from pathlib import Path

from safetensors.torch import load_file, save_file

from evaluator.checkpoints.tokenizer import load_tokenizer
from tests.support.models import save_tiny_model

TEMPLATE = (
    "{% for each in messages %}<|turn|>{{ each.content }}<|turn|>{% endfor %}{% if"
    " enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{%"
    " else %}<think>{% endif %}"
)


def thinking_model(directory: Path, seed: int) -> Path:
    """A tiny random model whose likely tokens include the end of a thought."""
    save_tiny_model(directory, seed=seed, vocabulary=392)
    tokenizer = load_tokenizer(directory)
    tokenizer.add_tokens(["<|turn|>"], special_tokens=True)
    tokenizer.add_tokens(["<think>", "</think>"])
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(directory)
    file = directory / "model.safetensors"
    weights = load_file(file)
    weights["model.embed_tokens.weight"][
        tokenizer.convert_tokens_to_ids("</think>")
    ] *= 1.6
    save_file(weights, file, metadata={"format": "pt"})
    return directory
