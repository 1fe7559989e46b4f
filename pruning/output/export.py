"""A pruned checkpoint on disk: complete under its own name, or absent.

Shards are copied byte for byte and only the pruned matrices are written over, in place
and one at a time. The export holds the lease of a directory `OUT.partial` beside OUT,
and works in the lease's folder. config.json has a name that nothing loads until all is
synced; then one rename of the folder makes the checkpoint appear. A killed export
leaves a directory that does not load. The next one to the same OUT takes over the lease,
which removes that folder.
"""

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.files import digest_of_file, file_states
from evaluator.checkpoints.manifests import JobManifest, to_json
from evaluator.checkpoints.tensors import INDEX, PROVEN, Proof, digests
from evaluator.core.errors import InputError, JobError
from evaluator.core.lease import Lease
from evaluator.core.liveness import HEARTBEAT

ManifestT = TypeVar("ManifestT", bound=JobManifest)
_SUFFIX = ".partial"
# What goes along with weights and config.json. No other weights, no model card: it
# describes the dense model.
_NAMES = {
    *("generation_config.json", "preprocessor_config.json", "processor_config.json"),
    *(
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "tekken.json",
    ),
    *("vocab.json", "vocab.txt", "merges.txt"),
}
_BEGINNINGS = (
    *("tokenizer.model.", "chat_template", "additional_chat_templates/"),
    *("LICENSE", "LICENCE", "NOTICE", "USE_POLICY"),
)
_ENDINGS = (".model", ".tiktoken")


def companions(checkpoint: Checkpoint) -> list[str]:
    """Names, relative to the checkpoint, of the files that are copied besides
    weights and config.json."""
    directory = checkpoint.path
    chosen = []
    for file in (*directory.iterdir(), *directory.glob("additional_chat_templates/*")):
        name = str(file.relative_to(directory))
        named = name in _NAMES or name.startswith(_BEGINNINGS)
        if file.is_file() and (named or name.endswith(_ENDINGS)):
            chosen.append(name)
    if checkpoint.index is not None:
        chosen.append(INDEX)
    return sorted(chosen)


def source_files(checkpoint: Checkpoint) -> dict[str, str]:
    """sha256 of each file of the dense checkpoint that the job reads or copies."""
    found = dict(checkpoint.prove().files)
    for name in ("config.json", *companions(checkpoint)):
        found[name] = digest_of_file(checkpoint.path / name)
    return dict(sorted(found.items()))


def _need_own_files(checkpoint: Checkpoint) -> None:
    """Raises InputError if a file to copy is a link, other than within the checkpoint
    or into the hub's cache.

    The weights may be links: they are read, and the new checkpoint gets files of its
    own.
    """
    home = checkpoint.path.resolve()
    blobs = (
        home.parents[1] / "blobs"
        if len(home.parents) > 1 and home.parent.name == "snapshots"
        else home
    )
    copied = [
        checkpoint.path / name for name in ("config.json", *companions(checkpoint))
    ]
    for file in (*copied, *checkpoint.path.glob("*_manifest.json")):
        target = file.resolve()
        if not (target.is_relative_to(home) or target.is_relative_to(blobs)):
            raise InputError(
                f"{file}: is a link to {target}, which would be copied; put the file"
                " itself there"
            )


def check_place(checkpoint: Checkpoint, out: Path) -> None:
    """Raises InputError if a file to copy lies elsewhere, or `out` is a bad place or
    has too little space."""
    _need_own_files(checkpoint)
    source, target = checkpoint.path.resolve(), out.resolve()
    if target == source or source in target.parents:
        raise InputError(
            f"out: {out} is inside the source checkpoint {checkpoint.path}"
        )
    if target in source.parents:
        raise InputError(f"out: {out} holds the source checkpoint {checkpoint.path}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(
            f"out: {out} exists and holds no checkpoint that this command has made; name"
            " another place, or remove it"
        )
    if out.name in ("", ".."):
        raise InputError(f"out: {out} has no name of its own; name a directory in it")
    # the finished directory could not be renamed onto it
    if out.is_symlink() or out.is_mount():
        raise InputError(
            f"out: {out} is a symbolic link or a mount point; name a directory"
            " inside it"
        )
    ancestor = next(
        parent for parent in (target.parent, *target.parent.parents) if parent.exists()
    )
    if not ancestor.is_dir() or not os.access(ancestor, os.W_OK):
        raise InputError(f"out: {ancestor} is not a directory that can be written")
    free, size = (
        shutil.disk_usage(ancestor).free,
        sum(shard.stat().st_size for shard in checkpoint.shards),
    )
    if free < size:
        raise InputError(
            f"out: no space left at {ancestor}: {size} bytes are needed, {free} are"
            " free"
        )


@dataclass(eq=False)
class Export:
    """One checkpoint being written. Made by `open_export`."""

    _checkpoint: Checkpoint
    partial: Path
    _out: Path

    def copy_weights(self) -> None:
        """Copy every shard and their index, byte for byte."""
        for file in filter(None, (*self._checkpoint.shards, self._checkpoint.index)):
            shutil.copyfile(file, self.partial / file.name)
            HEARTBEAT.beat()

    def write(self, name: str, weight: Tensor) -> None:
        """Overwrite a dense matrix with its pruned version, which has the
        checkpoint's dtype and shape."""
        HEARTBEAT.beat()
        tensor = self._checkpoint.tensors[name]
        data = weight.contiguous().view(torch.uint8).numpy().reshape(-1).data
        if len(data) != tensor.size:
            raise JobError(
                f"tensor {name}: {len(data)} bytes cannot replace {tensor.size}"
            )
        with (self.partial / tensor.file.name).open("r+b") as file:
            file.seek(tensor.start)
            file.write(data)

    def finish(
        self, describe: Callable[..., ManifestT], *, more: Sequence[str] = ()
    ) -> ManifestT:
        """Add the other files and the manifest, and put all in place.

        `describe` gets the sha256 of the written `files` (no links) and of the
        `source_files`. `more`: files that are copied besides the companions, where the
        source has them, and config.json unless `partial` has its own. Raises JobError
        for weights that are not finite.
        """
        source, own = self._checkpoint.path, self.partial / "config.json"
        config = self.partial / f"config.json{_SUFFIX}"
        if own.exists():
            own.rename(config)
        else:
            shutil.copyfile(source / "config.json", config)
        for companion in (*companions(self._checkpoint), *more):
            # the shards have their index
            if companion != INDEX and (source / companion).is_file():
                (self.partial / companion).parent.mkdir(exist_ok=True)
                shutil.copyfile(source / companion, self.partial / companion)
        files = {
            str(file.relative_to(self.partial)): file
            for file in self.partial.rglob("*")
            if file.is_file() and not file.is_symlink()
        }
        files["config.json"] = files.pop(config.name)
        # no links to the source's
        shards = [file for name, file in files.items() if name.endswith(".safetensors")]
        try:
            of_shards, weights = digests(shards)
        except InputError as error:
            raise JobError(
                f"what was made of {source} cannot be used: {error}"
            ) from error
        made = {
            each: of_shards.get(each) or digest_of_file(files[each])
            for each in sorted(files)
        }
        manifest = describe(files=made, source_files=source_files(self._checkpoint))
        (self.partial / manifest.FILE).write_text(to_json(manifest), encoding="utf-8")
        for file in (*files.values(), self.partial / manifest.FILE):
            _sync(file)
        # Everything is on disk; only names are left to give.
        config.rename(own)
        _sync(self.partial)
        # onto an empty directory at most: `check_place` made sure
        self.partial.rename(self._out)
        _sync(self._out.parent)
        if shards:
            PROVEN[self._out.absolute()] = Proof(
                states=file_states(self._out),
                files=of_shards,
                weights=weights,
                written=True,
            )
        return manifest


def _sync(path: Path) -> None:
    HEARTBEAT.beat()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def open_export(checkpoint: Checkpoint, out: Path) -> Iterator[Export]:
    """A directory beside `out`, gone when the block ends. Raises InputError if the disk
    is full or another process writes `out`, LeaseLost if it has taken over meanwhile."""
    beside = out.with_name(f"{out.name}{_SUFFIX}")
    lease = None
    try:
        beside.mkdir(parents=True, exist_ok=True)
        lease = Lease(beside, content="checkpoint")
        partial = lease.folder / "checkpoint"
        partial.mkdir()
        yield Export(checkpoint, partial, out)
    except OSError as error:
        if lease is not None:
            lease.check()
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InputError(
                f"out: no space left at {out.parent} while the checkpoint was written"
            ) from error
        raise InputError(f"out: {out} cannot be written: {error}") from error
    finally:
        if lease is not None:
            lease.release()
        with suppress(OSError):  # another process writes there
            beside.rmdir()
