"""A checkpoint's tokenizer, and the token ids that end an answer."""

import hashlib
import json
from pathlib import Path
from typing import Any

from evaluator.core.errors import InputError, of_kind, one_line, parse

TOKENIZER = "tokenizer.json"
GENERATION = "generation_config.json"
# Every kind of white space beside scripts, digits and code: what a rebuilt tokenizer
# loses first.
PROBE = (
    "  Two  spaces,\ttabs\n\n  and\r\nlines.\u00a0\u3000 don't 3.14 1,234 x+=1;\n\tif"
    ' (a[0] != b): return "\\n"\n Zürich naïve İstanbul Ελλάδα Москва 北京 東京です'
    " 서울의 القاهرة ירושלים दिल्ली में ঢাকা తెలుగు กรุงเทพ አዲስ ١٢٣ १२३ \U0001f642"
    " \U0001f469\u200d\U0001f467 <b> ##x ▁ "
)
# all that decides token ids, prompts and the end of an answer
_FILES = (
    *(TOKENIZER, "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json"),
    *("vocab.json", "merges.txt", "vocab.txt", "added_tokens.json"),
    *("chat_template.jinja", "chat_template.json", GENERATION),
)
_PLAIN_TEXTS = ("When was Karo founded?", "Answer: 1701\n\nQuestion:")
_NAMED = (
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "sep_token",
    "cls_token",
    "mask_token",
)


def digest_of_files(checkpoint: Path) -> str:
    """Of a checkpoint's tokenizer, its chat template and its ends of answers: a pruned
    one has exact copies of its source's files."""
    files = hashlib.sha256()
    for path in (checkpoint / name for name in _FILES):
        content = path.read_bytes() if path.exists() else b"-"
        files.update(b"%d " % len(content) + content)
    return files.hexdigest()


def load_tokenizer(checkpoint: Path, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a checkpoint directory, from its own files alone: that of
    tokenizer.json. Raises InputError.

    transformers rebuilds some tokenizers by the class that tokenizer_config.json
    names. A result that differs from tokenizer.json is replaced by the file's own,
    with the special tokens of both. One that differs from SentencePiece's own program
    is refused."""
    # else transformers takes the path for the name of a model of the hub
    if not checkpoint.is_dir():
        raise InputError(f"{checkpoint}: no such checkpoint directory")
    from transformers import AutoTokenizer

    # An absolute path, as transformers treats some models by the name that is typed in
    # another way.
    where, file = str(checkpoint.absolute()), checkpoint / TOKENIZER
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            where, local_files_only=True, trust_remote_code=trust_remote_code
        )
        if file.is_file() and type(tokenizer).__module__.startswith("transformers."):
            tokenizer = _as_stated(tokenizer, file)
        elif type(tokenizer).__module__.startswith("transformers."):
            _check_pieces(tokenizer, checkpoint)
        ids = tokenizer("a", add_special_tokens=False)["input_ids"]
    except InputError:
        raise
    # A broken file raises whatever the parser below raises, up to a bare Exception of a
    # Rust library.
    except Exception as error:
        raise InputError(
            f"{checkpoint}: the tokenizer cannot be loaded: {one_line(error)}"
        ) from error
    if not ids:
        # Where the files are missing, transformers makes an empty tokenizer for some
        # architectures.
        raise InputError(
            f"{checkpoint}: the tokenizer has no vocabulary (are its files missing?)"
        )
    return tokenizer


def _check_pieces(tokenizer: Any, checkpoint: Path) -> None:
    """Raises InputError if SentencePiece makes other tokens with a checkpoint's
    *.model: transformers 5 passes over the flags of the file."""
    for file in sorted(checkpoint.glob("*.model")):
        try:
            import sentencepiece
        except ImportError:
            raise InputError(f"{file}: needs the package sentencepiece") from None
        try:
            pieces = sentencepiece.SentencePieceProcessor(model_file=str(file))
        except RuntimeError:  # a file of another kind, as tiktoken's
            continue
        # no prompt begins with a blank
        for text in (*_PLAIN_TEXTS, PROBE.lstrip()):
            stated = [
                tokenizer.unk_token if pieces.is_unknown(id) else pieces.id_to_piece(id)
                for id in pieces.encode(text)
            ]
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            made = tokenizer.convert_ids_to_tokens(ids)
            if made != stated:
                raise InputError(
                    f"{file}: of {one_line(text, 30)!r} transformers makes the tokens"
                    f" {made[:4]}..., SentencePiece {stated[:4]}...: put a"
                    f" {TOKENIZER} beside it, which transformers 4 writes"
                )


def _as_stated(tokenizer: Any, file: Path) -> Any:
    """The tokenizer, or the one that a tokenizer.json states, if they differ."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast as Fast

    if type(tokenizer).__init__ is Fast.__init__:  # reads the file
        return tokenizer
    stated = Tokenizer.from_file(str(file))
    if _is_alike(tokenizer, stated):
        return tokenizer
    named = {name: getattr(tokenizer, name, None) for name in _NAMED}
    known = {
        name: token
        for name, token in named.items()
        if token and stated.token_to_id(token) is not None
    }
    read = Fast.from_pretrained(tokenizer.name_or_path, local_files_only=True, **known)
    if not _is_alike(read, stated):
        raise InputError(f"{file}: transformers makes another tokenizer of it")
    return read


def _is_alike(tokenizer: Any, stated: Any) -> bool:
    """Whether a tokenizer has the rules of `stated`, and makes the same of a text in
    many scripts."""
    if not tokenizer.is_fast:
        return False
    sides = []
    for one in (tokenizer.backend_tokenizer, stated):
        parts = [
            part and part.__getstate__()
            for part in (one.normalizer, one.pre_tokenizer, one.decoder)
        ]
        try:
            ids = one.encode(PROBE).ids
            sides.append((parts, ids, one.decode(ids, skip_special_tokens=False)))
        except Exception:  # a bare one, of a text without an unknown token
            sides.append((parts, [], ""))
    return bool(sides[0] == sides[1])


def tokenise_alike(one: Any, other: Any) -> bool:
    """Whether two tokenizers make the same ids of every text, and the same texts of
    ids."""
    if not (one.is_fast and other.is_fast):
        return type(one) is type(other) and bool(one.get_vocab() == other.get_vocab())
    rules = [json.loads(each.backend_tokenizer.to_str()) for each in (one, other)]
    for each in rules:  # the last call's rules
        each.pop("truncation", None)
        each.pop("padding", None)
    return bool(rules[0] == rules[1])


def eos_ids_of(tokenizer: Any) -> frozenset[int]:
    """The tokenizer's own EOS, and `eos_token_id` of the checkpoint's
    generation_config.json, or else of its config.json. Raises InputError for one
    that is not an id or a list of ids."""
    ids: frozenset[int] = frozenset()
    if tokenizer.name_or_path:
        directory = Path(tokenizer.name_or_path)
        ids = stated_eos_ids(directory / GENERATION)
        ids = ids or stated_eos_ids(directory / "config.json")
    return ids if tokenizer.eos_token_id is None else ids | {tokenizer.eos_token_id}


def stated_eos_ids(file: Path) -> frozenset[int]:
    """`eos_token_id` of a JSON file; none where it or the file is missing. Raises
    InputError for what is no id or list of ids."""
    if not file.is_file():
        return frozenset()
    stated = of_kind(parse(file.read_bytes(), str(file)), dict, str(file))
    configured = stated.get("eos_token_id")
    if configured is None:
        return frozenset()
    ids = configured if isinstance(configured, list) else [configured]
    if not all(type(number) is int for number in ids):
        raise InputError(
            f"{file}: field 'eos_token_id' must be a token id or a list of"
            f" them, not {configured!r}"
        )
    return frozenset(ids)


def read_eos_ids(
    checkpoint: Path, *, trust_remote_code: bool = False
) -> frozenset[int]:
    """`eos_ids_of` a checkpoint directory. Raises InputError."""
    return eos_ids_of(load_tokenizer(checkpoint, trust_remote_code=trust_remote_code))
