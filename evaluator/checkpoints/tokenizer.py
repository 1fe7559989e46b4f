"""A checkpoint's tokenizer, and the token ids that end an answer."""

import json
from pathlib import Path
from typing import Any

from evaluator.core.errors import InputError, of_kind, one_line, parse


def load_tokenizer(checkpoint: Path, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a checkpoint directory, from its own files alone. Raises InputError."""
    if not checkpoint.is_dir():  # else transformers takes the path for the name of a model of the hub
        raise InputError(f"{checkpoint}: no such checkpoint directory")
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(checkpoint), local_files_only=True, trust_remote_code=trust_remote_code
        )
    # A broken file raises whatever the parser below raises, up to a bare Exception of a Rust library.
    except Exception as error:
        raise InputError(f"{checkpoint}: the tokenizer cannot be loaded: {one_line(error)}") from error
    if not tokenizer("a", add_special_tokens=False)["input_ids"]:
        # Where the files are missing, transformers makes an empty tokenizer for some architectures.
        raise InputError(f"{checkpoint}: the tokenizer has no vocabulary (are its files missing?)")
    return tokenizer


def tokenise_alike(one: Any, other: Any) -> bool:
    """Whether two tokenizers make the same ids of every text, and the same texts of ids."""
    if not (one.is_fast and other.is_fast):
        return type(one) is type(other) and bool(one.get_vocab() == other.get_vocab())
    rules = [json.loads(each.backend_tokenizer.to_str()) for each in (one, other)]
    for each in rules:  # the last call's rules
        each.pop("truncation", None)
        each.pop("padding", None)
    return bool(rules[0] == rules[1])


def eos_ids_of(tokenizer: Any) -> frozenset[int]:
    """The tokenizer's own EOS, and `eos_token_id` of the checkpoint's generation_config.json, or else of its
    config.json. Raises InputError for one that is not an id or a list of ids."""
    own = frozenset() if tokenizer.eos_token_id is None else frozenset({tokenizer.eos_token_id})
    for name in ("generation_config.json", "config.json") if tokenizer.name_or_path else ():
        file = Path(tokenizer.name_or_path) / name
        if file.is_file():
            configured = of_kind(parse(file.read_bytes(), str(file)), dict, str(file)).get("eos_token_id")
            if configured is None:
                continue
            ids = configured if isinstance(configured, list) else [configured]
            if not all(isinstance(number, int) for number in ids):
                raise InputError(
                    f"{file}: field 'eos_token_id' must be a token id or a list of them, not {configured!r}"
                )
            return own | frozenset(ids)
    return own


def read_eos_ids(checkpoint: Path, *, trust_remote_code: bool = False) -> frozenset[int]:
    """`eos_ids_of` a checkpoint directory. Raises InputError."""
    return eos_ids_of(load_tokenizer(checkpoint, trust_remote_code=trust_remote_code))
