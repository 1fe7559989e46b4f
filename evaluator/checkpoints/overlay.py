"""A directory with links to a checkpoint's files and one more tensor.

It is served where vLLM reads a tied matrix under another name than the files have. The
user's own files stay unchanged."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.files import write_json
from evaluator.checkpoints.fit import check_fit
from evaluator.checkpoints.shapes import text_model
from evaluator.checkpoints.tensors import INDEX, write_index
from evaluator.core.errors import Document

_ADDED = "resurface-tied.safetensors"


@contextmanager
def served_directory(checkpoint: Checkpoint) -> Iterator[Path]:
    """The directory that an engine loads for a checkpoint: the checkpoint itself, or
    an overlay."""
    head_only = _head_only(checkpoint)
    if not head_only:
        yield checkpoint.path
        return
    with tempfile.TemporaryDirectory(prefix="resurface-overlay-") as folder:
        directory = overlay(checkpoint.path, Path(folder), checkpoint.stored_config)
        _add(directory, head_only)
        yield directory


def _head_only(checkpoint: Checkpoint) -> Mapping[str, str]:
    """`Fit.head_only`. Most checkpoints have a matrix as large as the vocabulary
    that is not an output head."""
    rows = text_model(checkpoint.config).get("vocab_size")
    tables = []
    for tensor in checkpoint.tensors.values():
        if len(tensor.shape) == 2 and tensor.shape[0] == rows:
            tables.append(tensor.name)
    if len(tables) != 1 or "head" not in tables[0]:
        return {}
    return check_fit(checkpoint).head_only


def _add(directory: Path, copies: Mapping[str, str]) -> None:
    """Write tensors once more, each under a new name (`copies`: new -> old), beside
    the files of an overlay."""
    from safetensors.torch import save_file

    tensors = Checkpoint(directory).tensors
    homes = {name: tensor.file.name for name, tensor in tensors.items()}
    weights = {new: tensors[old].stored() for new, old in copies.items()}
    save_file(weights, directory / _ADDED, metadata={"format": "pt"})
    (directory / INDEX).unlink(missing_ok=True)  # a link
    write_index(directory, homes | dict.fromkeys(copies, _ADDED), 0)


def overlay(checkpoint: Path, directory: Path, config: Document) -> Path:
    """Fill the empty `directory` with links to the files of `checkpoint`, and a
    config.json that holds `config`."""
    for file in checkpoint.iterdir():
        if file.name != "config.json" and file.is_file():
            (directory / file.name).symlink_to(file.resolve())
    write_json(directory / "config.json", config)
    return directory
