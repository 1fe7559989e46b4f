"""Makes the directory of a served model: its own description, the configuration and
tokenizer of its base. The directory is the user's cache's; a run only reads it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.files import digest_of_file
from evaluator.checkpoints.manifests import PruneManifest, QuantiseManifest
from evaluator.checkpoints.quantisation import BESIDE
from evaluator.checkpoints.served import (
    FILE,
    Abilities,
    Endpoint,
    ServedModel,
    check_file,
    read_served,
)
from evaluator.checkpoints.tensors import INDEX
from evaluator.checkpoints.tokenizer import (
    GENERATION,
    PROBE,
    eos_ids_of,
    load_tokenizer,
)
from evaluator.core.errors import EngineError, InputError
from evaluator.core.files import cache_folder, write_atomically
from evaluator.engine.endpoint import examine, gguf
from evaluator.engine.endpoint.client import Client
from evaluator.engine.endpoint.dialect import Dialect
from evaluator.engine.endpoint.engine import connected, prompts_of
from evaluator.engine.endpoint.llama import tokenised
from evaluator.engine.endpoint.llama_process import LlamaProcess, check_here
from evaluator.engine.endpoint.openai import OpenAI
from evaluator.engine.endpoint.slots import common
from evaluator.engine.endpoint.texts import check_texts

_COPIED = (".json", ".jinja", ".model", ".txt", ".tiktoken")
_LEFT_OUT = (
    *BESIDE,
    "config.json",
    INDEX,
    PruneManifest.FILE,
    QuantiseManifest.FILE,
    FILE,
)
_SHORT = 64  # tokens of context, where nothing is computed
_UNSTATED = 2**20  # tokens, of a server that does not tell its context
_PATIENCE_SECONDS = 20.0  # for a server's first answers


def prepare_gguf(file: Path, base: Path) -> Path:
    """The directory of a GGUF file, with the tokenizer of `base`. If that has other
    tokens, with the file's own. Raises InputError."""
    check_here()
    file = file.absolute()
    if not file.is_file():
        raise InputError(f"{file}: no such file")
    state = file.stat()
    # a copy may keep size and time
    kept = (state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino)
    folder = _folder(str(file), *map(str, kept), str(base))
    known = read_served(folder)
    header = gguf.read_header(file, weights=known is None)
    tokenizer = load_tokenizer(base)
    different = gguf.other_tokens(header, tokenizer)
    served = ServedModel(
        gguf=str(file),
        size=state.st_size,
        modified_ns=state.st_mtime_ns,
        changed_ns=state.st_ctime_ns,
        sha256=digest_of_file(file) if known is None else known.sha256,
        server="llama.cpp",
        model=file.name,
        context=header.positions,
        file_type=header.file_type,
        parameters=header.parameters,
        other_tokens=different,
        differences=tuple(gguf.differences(header, base, tokenizer)),
    )
    if not different:
        return _written(folder, served, base)
    if known is None:
        _write_tokenizer(folder, file, different)
    own = load_tokenizer(folder)
    ids = {"eos_token_id": own.eos_token_id, "bos_token_id": own.bos_token_id}
    _write(folder / GENERATION, {"eos_token_id": _ends(header, own, tokenizer)})
    sizes = {"vocab_size": len(header.tokens), "pad_token_id": None}
    return _written(folder, served, base, ids | sizes)


def _ends(header: gguf.Header, own: Any, base: Any) -> list[int]:
    """The tokens that end an answer by the file, or by its base: those that are in
    both."""
    names = base.convert_ids_to_tokens(sorted(eos_ids_of(base)))
    known = own.get_vocab()
    return sorted(header.ends | {known[name] for name in names if name in known})


def _write_tokenizer(folder: Path, file: Path, different: str) -> None:
    """The file's own tokenizer. Raises InputError if llama.cpp's makes other tokens of
    a text in many scripts."""
    tokenizer = gguf.own_tokenizer(file)
    ids = tuple(tokenizer(PROBE)["input_ids"])
    (stated,) = llama_tokens(file, [PROBE])
    if ids != stated:
        raise InputError(
            f"{file}: {different}; and its own tokenizer cannot be read exactly: of a"
            f" test text transformers makes {len(ids)} tokens, llama.cpp"
            f" {len(stated)}, other ones from token {common(ids, stated)}; serve it with llama-server"
            " and give the directory of its tokenizer (models: {name: {url: ...,"
            " tokenizer: DIR}}), or use the base that the file was made from"
        )
    tokenizer.save_pretrained(folder)


def other_texts(checkpoint: Path, texts: Sequence[str]) -> str:
    """How many texts a GGUF file's own tokenizer makes other tokens of than its
    directory's, and the first one; empty: none. Starts llama.cpp. Raises InputError."""
    served = read_served(checkpoint)
    assert served is not None
    assert served.gguf is not None
    check_file(served)
    tokenizer = load_tokenizer(checkpoint)
    different = [
        text
        for text, ids in zip(texts, llama_tokens(Path(served.gguf), texts), strict=True)
        if ids != tuple(tokenizer(text)["input_ids"])
    ]
    if not different:
        return ""
    return (
        f"the file's own tokenizer makes other tokens of {len(different)} of"
        f" {len(texts)} questions and answers, first of {different[0][:60]!r}"
    )


def llama_tokens(file: Path, texts: Sequence[str]) -> list[tuple[int, ...]]:
    """What llama.cpp's tokenizer makes of each text. Raises InputError."""

    async def ask(url: str) -> list[tuple[int, ...]]:
        client = Client(Endpoint(url=url), patience=_PATIENCE_SECONDS)
        try:
            return [await tokenised(client, text) or () for text in texts]
        finally:
            await client.close()

    try:
        server = LlamaProcess(file, _SHORT, 1, quiet=True)
        with contextlib.closing(server) as process:
            return asyncio.run(ask(process.url))
    except EngineError as error:
        raise InputError(str(error)) from error


def prepare_endpoint(endpoint: Endpoint, base: Path) -> Path:
    """The directory of what an endpoint serves now. Raises InputError for a server
    that does not answer, another one than before, and one without plain answers."""
    try:
        return asyncio.run(_prepare(endpoint, base))
    except EngineError as error:
        where = f"endpoint {endpoint.url[0]}"
        what = str(error).removeprefix(f"{where}: ")
        raise InputError(f"{where}: {what}") from error


async def _prepare(endpoint: Endpoint, base: Path) -> Path:
    tokenizer, vocabulary = load_tokenizer(base), Checkpoint(base).vocabulary
    client = Client(endpoint, patience=_PATIENCE_SECONDS)
    try:
        server = await connected(
            client, endpoint, endpoint.dialect, tokenizer, vocabulary
        )
        described = server.described
        prompts = prompts_of(tokenizer)
        parts = (described.server, described.model, described.file_type or "")
        folder = _folder(*endpoint.url, *parts, str(base))
        known = read_served(folder)
        # a tie may turn, and the digest shall not
        if known is not None and await examine.is_same(
            server, prompts, known.fingerprint
        ):
            answers = known.fingerprint
        else:
            answers = await examine.fingerprint(server, prompts)
        if not server.token_ids:
            examine.check_echo(tokenizer, prompts, answers)
        context = described.context
        if isinstance(server, OpenAI):
            longest = Checkpoint(base).longest or _UNSTATED
            context = await check_texts(server, longest)
        abilities = await _abilities(server, prompts, answers)
        planted: tuple[tuple[float, ...], ...] = ()
        if abilities.scores:
            planted = await examine.planted_scores(server, prompts, answers)
        served = ServedModel(
            endpoint=endpoint,
            server=described.server,
            model=described.model,
            dialect=server.name,
            context=context,
            file_type=described.file_type,
            parameters=described.parameters,
            differences=tuple(gguf.other_template(tokenizer, described.template)),
            fingerprint=answers,
            planted=planted,
            abilities=abilities,
        )
        return _written(folder, served, base)
    finally:
        await client.close()


async def _abilities(
    server: Dialect, prompts: examine.Prompts, answers: examine.Answers
) -> Abilities:
    """What all servers are able to do. Raises InputError if one has another model."""
    each = []
    servers = server.each()
    for one in servers:
        if len(servers) > 1 and not await examine.is_same(one, prompts, answers):
            raise InputError("its addresses serve different models")
        each.append(await examine.abilities_of(one, prompts))
    weakest = {
        name: (max if name == "why" else min)(
            getattr(abilities, name) for abilities in each
        )
        for name in Abilities.model_fields
    }
    return Abilities(**weakest)


def _folder(*parts: str) -> Path:
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return cache_folder() / "served" / digest


def _written(
    folder: Path, served: ServedModel, base: Path, own: Mapping[str, Any] | None = None
) -> Path:
    """Write a directory; `served.json` comes last. `own`: the configuration of the
    tokenizer that it has already; None: it gets the base's."""
    config = dict(Checkpoint(base).stored_config) | dict(own or {})
    config.pop("quantization_config", None)
    longest = Checkpoint(base).longest or _UNSTATED
    config["max_position_embeddings"] = min(longest, served.context or longest)
    for file in folder.glob("*") if own is None else ():
        # of an older base
        if file.suffix in _COPIED and file.name not in (FILE, "config.json"):
            file.unlink()
    for file in sorted(base.iterdir()) if own is None else ():
        if file.suffix in _COPIED and file.name not in _LEFT_OUT:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, folder / file.name)
    _write(folder / "config.json", config)
    _write(folder / FILE, served.model_dump(mode="json", exclude_defaults=True))
    return folder


def _write(file: Path, value: Any) -> None:
    write_atomically(file, (json.dumps(value, indent=2) + "\n").encode())
