"""A served model as a checkpoint directory: what stands behind a URL, or in a GGUF file.

The directory has the configuration and the tokenizer of the model that it was made
from, and `served.json` in place of weights. The engine `endpoint` serves it. All that
reads a checkpoint's tokenizer, positions or vocabulary reads it like any other.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, ValidationError, field_validator

from evaluator.core.config import Frozen
from evaluator.core.errors import InputError, one_line, read_bytes

FILE = "served.json"
Dialect = Literal["auto", "vllm", "llama", "openai"]
# a server's share of the questions that it may answer at a time
CONCURRENCY = 16


class Endpoint(Frozen):
    """Where a model is served. The key is in the environment variable `key_env`, and
    nowhere else."""

    # of one model: several share its work
    url: Annotated[
        tuple[str, ...],
        BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
    ] = Field(min_length=1)
    model: str = ""  # its name there; empty: the only one
    dialect: Dialect = "auto"
    key_env: str | None = None
    # A directory with its tokenizer; None: that of the base.
    tokenizer: str | None = None
    concurrency: int = Field(default=CONCURRENCY, ge=1, le=1024)  # requests at a time
    # seconds until an answer is whole; None: 120, and one for each of its tokens
    timeout: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    # of a run over all its calls; None: no limit
    max_requests: int | None = Field(default=None, ge=1)
    max_tokens: int | None = Field(default=None, ge=1)  # of prompts and longest answers

    @field_validator("url")
    @classmethod
    def _are_addresses(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.netloc:
                raise ValueError(f"{url!r} is no address; write http://HOST:PORT")
            if "@" in parts.netloc:
                raise ValueError("an address holds no password; use key_env: VARIABLE")
            if parts.query or parts.fragment or "?" in url:
                raise ValueError(
                    "an address holds no ?query, which is written down; use key_env:"
                    " VARIABLE"
                )
            parts.port  # noqa: B018  (raises ValueError for no number)
        return tuple(url.rstrip("/").removesuffix("/v1") for url in urls)


class Abilities(Frozen):
    """What a server was found able to do."""

    token_ids: bool  # it takes prompts as token ids
    # It reports raw log-probabilities, also those of given tokens.
    scores: bool
    why: str = ""  # it has no usable ones
    ranks: bool  # and the token's rank in the vocabulary
    distributions: bool  # and those of all tokens
    top: int  # likeliest tokens that it reports of a step, at most
    samplers: bool = True  # it obeys top_k and min_p
    seeds: bool  # equal seeds draw equal samples, others do not
    repeats: bool  # the same request has the same answer, to the last bit
    cache: bool  # it reports the prompt tokens that its cache had


class ServedModel(Frozen):
    """`served.json`."""

    endpoint: Endpoint | None = None  # None: a GGUF file
    gguf: str | None = None  # its absolute path
    size: int = 0  # of the file, in bytes
    modified_ns: int = 0
    changed_ns: int = 0  # of its inode
    sha256: str = ""
    server: str = ""  # "llama.cpp b7300"
    model: str = ""  # as the server names it
    dialect: str = "llama"
    context: int | None = None  # tokens of a request; None: the server does not tell
    file_type: str | None = None  # "Q4_K_M"
    parameters: int | None = None
    # Where a file's tokens differ from its base's, so that it has its own tokenizer;
    # empty: nowhere.
    other_tokens: str = ""
    # from its base, beside weights: a line each
    differences: tuple[str, ...] = ()
    # the greedy answers to fixed prompts, in token ids
    fingerprint: tuple[tuple[int, ...], ...] = ()
    # log-probabilities after each prompt (examine.py); of a server without scores none
    planted: tuple[tuple[float, ...], ...] = ()
    abilities: Abilities | None = None

    @property
    def digest(self) -> str:
        """Of a file its bytes'; of an endpoint that of its description and answers. An
        address may change."""
        if self.gguf is not None:
            return self.sha256
        parts = [self.server, self.model, self.file_type, self.fingerprint]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    @property
    def method(self) -> str:
        return "served" if self.gguf is None else "gguf"


def read_served(directory: Path) -> ServedModel | None:
    """What a directory's served.json states; None: it has none. Raises InputError."""
    file = directory / FILE
    if not file.exists():
        return None
    try:
        return ServedModel.model_validate_json(read_bytes(file))
    except ValidationError as error:
        raise InputError(f"{file}: {one_line(error)}") from error


def check_file(served: ServedModel) -> None:
    """Raises InputError if a GGUF file is gone, or is another one than before."""
    if served.gguf is None:
        return
    file = Path(served.gguf)
    try:
        state = file.stat()
    except OSError as error:
        raise InputError(f"{file}: {one_line(error)}") from error
    found = (state.st_size, state.st_mtime_ns, state.st_ctime_ns)
    if found != (served.size, served.modified_ns, served.changed_ns):
        raise InputError(f"{file}: was replaced while the run went on")
