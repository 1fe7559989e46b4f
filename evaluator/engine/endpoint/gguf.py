"""A GGUF file: what it states of itself, and whether its tokens are those of the base.

Token ids come from the base's tokenizer and go to the server as they are. So what
counts is that each id is the same token in both. Else the file's own tokenizer poses
the questions."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from evaluator.core.errors import InputError, one_line

_PADDING = ("[PAD", "<pad", "<unused", "<|unused", "<|reserved", "UNUSED")
_TOKENS = "tokenizer.ggml.tokens"
_ENDS = tuple(f"tokenizer.ggml.{end}_token_id" for end in ("eos", "eot", "eom"))
_MAGIC = b"GGUF"
_SHOWN = 3  # different tokens in an error


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    file_type: str  # "Q4_1"
    parameters: int
    positions: int | None  # that the model was made for
    tokens: tuple[str, ...]
    ends: frozenset[int]  # tokens that end an answer


def read_header(file: Path) -> Header:
    """Raises InputError for a file that is no whole GGUF, and without the package."""
    if find_spec("gguf") is None:
        raise InputError(f"{file}: to read it, pip install 'resurface[gguf]'")
    from gguf import GGUFReader, LlamaFileType

    try:
        with file.open("rb") as stream:
            magic = stream.read(len(_MAGIC))
    except OSError as error:
        raise InputError(f"{file}: {one_line(error)}") from error
    if magic != _MAGIC:
        raise InputError(f"{file}: is no GGUF file: it does not begin with GGUF")
    names = ["general.architecture", "general.file_type", "split.count", _TOKENS]
    names += _ENDS
    try:
        reader = GGUFReader(str(file))
        values = {
            name: field.contents()
            for name, field in reader.fields.items()
            if name in names or name.endswith(".context_length")
        }
    except Exception as error:  # of a damaged file it raises whatever numpy raises
        raise InputError(
            f"{file}: is damaged or cut off: its {file.stat().st_size:,} bytes are not"
            " what its header states; copy or convert it again"
        ) from error
    if values.get("split.count") not in (None, 0, 1):
        raise InputError(
            f"{file}: is one of several parts; join them with llama-gguf-split --merge"
        )
    architecture, tokens = values.get("general.architecture"), values.get(_TOKENS)
    if not isinstance(architecture, str) or not isinstance(tokens, list):
        raise InputError(f"{file}: has no architecture or no tokens (tokenizer.ggml)")
    number = values.get("general.file_type")
    file_type = "unknown"
    if isinstance(number, int):
        try:
            file_type = LlamaFileType(number).name.removeprefix("MOSTLY_")
        except ValueError:
            file_type = f"file type {number}"
    positions = values.get(f"{architecture}.context_length")
    return Header(
        file_type=file_type,
        parameters=sum(int(tensor.n_elements) for tensor in reader.tensors),
        positions=positions if isinstance(positions, int) else None,
        tokens=tuple(tokens),
        ends=frozenset(values[name] for name in _ENDS if name in values),
    )


def other_tokens(header: Header, tokenizer: Any) -> str:
    """How many tokens of the base's tokenizer have another id in the file, and the
    first ones; empty: none."""
    different = []
    for text, number in tokenizer.get_vocab().items():
        inside = number < len(header.tokens)
        stated = header.tokens[number] if inside else "no token"
        if number in tokenizer.added_tokens_decoder:
            # llama.cpp's converter writes blanks in those
            text = text.replace("\u2581", " ") if " " in stated else text
        if stated != text and not text.startswith(_PADDING):
            different.append((number, text, stated))
    different.sort()
    named = "; ".join(
        f"{number} is {text!r} and {stated!r}"
        for number, text, stated in different[:_SHOWN]
    )
    return f"{len(different)} tokens are not the base's: {named}" if different else ""


def own_tokenizer(file: Path) -> Any:
    """The file's tokenizer, as transformers makes it: not always exactly. Raises
    InputError."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            str(file.parent), gguf_file=file.name, local_files_only=True
        )
    except Exception as error:  # whatever a parser raises
        raise InputError(
            f"{file}: transformers cannot read its tokenizer: {one_line(error)}"
        ) from error
