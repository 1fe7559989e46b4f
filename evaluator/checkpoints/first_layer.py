"""A checkpoint of one decoder layer, in which a whole one is tried."""

import re
from pathlib import Path

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.overlay import overlay
from evaluator.checkpoints.tensors import INDEX, SINGLE
from evaluator.core.errors import Document, Json

_LAYERS = "num_hidden_layers"
_LISTED = ("layer_types", "mlp_layer_types")  # with an entry for each layer
_LATER_LAYER = re.compile(r"(?:^|\.)layers\.[1-9][0-9]*\.")


def shortened(config: Document) -> Json:
    """A configuration with one decoder layer; the same one if it does not state
    their number."""
    short = dict(config)
    if _LAYERS in config:
        short[_LAYERS] = 1
        for name in _LISTED:
            if isinstance(config.get(name), list):
                short[name] = config[name][:1]
    return short


def first_layer(checkpoint: Path, directory: Path) -> Path:
    """Fill the empty `directory` with the checkpoint of one layer: everything but
    the layers after the first."""
    from safetensors.torch import save_file

    whole = Checkpoint(checkpoint)
    tensors = whole.tensors
    kept = [name for name in tensors if not _LATER_LAYER.search(name)]
    if _LAYERS not in whole.config or len(kept) == len(tensors):
        return checkpoint
    weights = {name: tensors[name].stored() for name in kept}
    overlay(checkpoint, directory, shortened(whole.config))
    for file in (*directory.glob("*.safetensors"), directory / INDEX):
        file.unlink(missing_ok=True)
    save_file(weights, directory / SINGLE, metadata={"format": "pt"})
    return directory
