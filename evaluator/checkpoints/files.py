"""Checks of a checkpoint directory before a read: ordinary files, small
descriptions, no code.

A checkpoint is untrusted data. Links are followed, because the hub's cache consists
of links. They must lead to regular files, since a pipe or a device may never end.
`read_ahead` loads the next checkpoint's files into the page cache."""

import hashlib
import json
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

import psutil

from evaluator.core.errors import Document, InputError, need_regular
from evaluator.core.liveness import HEARTBEAT

_CHUNK = 1 << 20


def digest_of_file(file: Path) -> str:
    """sha256, hexadecimal, of a file's bytes."""
    digest = hashlib.sha256()
    with file.open("rb", buffering=0) as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            HEARTBEAT.beat()
    return digest.hexdigest()


def write_json(file: Path, value: Document) -> None:
    """As transformers writes its own descriptions."""
    file.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


_LARGEST_JSON = 2**28  # bytes; the largest vocabularies take a tenth
_LONGEST_NAME = 255  # bytes, of every file system in use
_STATED = (".safetensors", ".json", ".jinja", ".model", ".txt")

# of each file its size in bytes, and when it was last written in ns
FileStates = Mapping[str, tuple[int, int]]

# Fields of config.json that transformers takes for the implementation of a layer. With
# a slash it is a repository of the hub, whose code would be fetched and run.
_IMPLEMENTATIONS = ("attn_implementation", "experts_implementation")


def check_files(checkpoint: Path) -> None:
    """Raises InputError for an adapter, anything but a regular file, and a JSON file
    larger than any description."""
    # peft or nobody would apply it
    if (adapter := checkpoint / "adapter_config.json").exists():
        raise InputError(
            f"{adapter}: an adapter is not applied: merge it into its model's weights,"
            " or remove it"
        )
    inside = checkpoint.glob("additional_chat_templates/*")
    for file in sorted([*checkpoint.iterdir(), *inside]):
        need_regular(file)
        # A link that leads nowhere is a missing file, for those who look for it.
        size = file.stat().st_size if file.exists() else 0
        if file.suffix == ".json" and size > _LARGEST_JSON:
            raise InputError(
                f"{file}: has {size:,} bytes; at most {_LARGEST_JSON:,} are read"
            )


def file_states(checkpoint: Path) -> FileStates:
    """The state of the files that decide answers, from the directory alone."""
    states = {}
    for path in sorted(checkpoint.iterdir()):
        if path.suffix in _STATED:
            # a link that leads nowhere, or gone since it was listed
            with suppress(OSError):
                state = path.stat()
                states[path.name] = (state.st_size, state.st_mtime_ns)
    return states


def changed_file(before: FileStates, now: FileStates) -> str | None:
    """The first file, by name, that was changed, added or removed."""
    changed = dict(before.items() ^ now.items())
    return min(changed, default=None)


def check_no_code(file: Path, config: Document) -> None:
    """Raises InputError for a configuration (`file` holds it) that names code on the
    hub for one of its layers."""
    waiting = [config]
    while waiting:  # parts of a model too (`text_config`)
        for name, value in waiting.pop().items():
            if name.strip("_").removesuffix("_internal") in _IMPLEMENTATIONS:
                wanted = value.values() if isinstance(value, dict) else (value,)
                if any(isinstance(each, str) and "/" in each for each in wanted):
                    raise InputError(
                        f"{file}: field {name!r} is {value!r}: code from the hub is"
                        " not run"
                    )
            elif isinstance(value, dict):
                waiting.append(value)


def is_inside(name: str) -> bool:
    """Whether a relative name in a file stays within the file's own directory."""
    parts = PurePosixPath(name).parts
    return bool(parts) and all(map(is_plain, parts))


def is_plain(name: str) -> bool:
    """Whether a name can be that of a file in a directory that is known, and of none
    elsewhere."""
    return (
        PurePosixPath(name).name == name
        and name not in ("", "..")
        and len(name.encode("utf-8", "replace")) <= _LONGEST_NAME
    )


_SHARE = 0.5  # of the available memory: reading ahead must not evict used pages


def read_ahead(checkpoint: Path) -> threading.Thread | None:
    """Read safetensors in a background thread; None if absent, above half of memory,
    or without posix_fadvise."""
    files = sorted(checkpoint.glob("*.safetensors"))
    size = sum(file.stat().st_size for file in files)
    fits = size <= _SHARE * psutil.virtual_memory().available
    if not files or not fits or not hasattr(os, "posix_fadvise"):
        return None

    def advise() -> None:
        for file in files:
            with suppress(OSError), file.open("rb", buffering=0) as opened:
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)

    thread = threading.Thread(target=advise, name="read-ahead", daemon=True)
    thread.start()
    return thread
