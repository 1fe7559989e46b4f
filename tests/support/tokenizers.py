"""Fast tokenizers made from the real vocabularies in the shared data, for tests that
skip where these are absent."""

import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
NAMES = ("qwen", "mistral", "phi3")

# The pre-tokenisation of Qwen2 and Qwen3 (their tokenizer.json).
_QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Chat templates like those of Qwen3, Mistral and Phi-3, in our own words.
TEMPLATES = {
    "qwen": """
{%- if messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}
{%- for message in messages if message.role != 'system' %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}""",
    "mistral": """
{{- bos_token }}
{%- for message in messages %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns must alternate') }}{%- endif %}
{%- if message.role == 'user' %}{{- '[INST] ' + message.content + ' [/INST]' }}
{%- else %}{{- ' ' + message.content + eos_token }}{%- endif %}
{%- endfor %}""",
    "phi3": """
{%- for message in messages %}{{- '<|' + message.role + '|>\\n' + message.content + '<|end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{%- else %}{{- eos_token }}{%- endif %}""",
}


def absent(name: str) -> bool:
    return not (SHARED / f"{name}_tokenizer").is_dir()


@cache
def real_tokenizer(name: str) -> Any:
    """`qwen` (byte-level BPE, no BOS), `mistral` (SentencePiece, BOS) or `phi3`
    (SentencePiece as BPE, no BOS)."""
    from transformers import LlamaTokenizer, PreTrainedTokenizerFast

    folder = SHARED / f"{name}_tokenizer"
    if name == "phi3":
        return PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    if name == "qwen":
        from tokenizers.normalizers import NFC
        from transformers.convert_slow_tokenizer import TikTokenConverter

        converter = TikTokenConverter(
            vocab_file=str(folder / "qwen.tiktoken"), pattern=_QWEN_PATTERN
        )
        tokenizer = converter.converted()
        tokenizer.normalizer = NFC()
        return PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    with tempfile.TemporaryDirectory() as made:
        shutil.copy(folder / "tokenizer.model", made)
        (Path(made) / "tokenizer_config.json").write_text(
            json.dumps({"add_bos_token": True}), encoding="utf-8"
        )
        return LlamaTokenizer.from_pretrained(made)
