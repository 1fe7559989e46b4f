"""REAP (Lasby et al., arXiv:2510.13999): llm-compressor chooses the experts that go.

Its own checkpoint is not kept. It renames matrices (Mixtral's w1) and forgets
`n_routed_experts`: neither loads. So what stays is written anew from the source."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.manifests import PruneManifest
from evaluator.checkpoints.shapes import expert_field
from evaluator.core.errors import InputError
from quantising.methods.base import Modifier, Settings, recipe_of
from quantising.methods.llm_compressor import Modifiers


class Reap(Modifiers):
    name = "reap"
    help = "llm-compressor's REAP: removes experts of a mixture (--experts 0.25)"
    takes_group = False
    takes_experts = True
    manifest = PruneManifest
    passes = 2

    def check(self, checkpoint: Checkpoint, config: Settings) -> None:
        import torch

        from pruning.model.decoder import Decoder

        super().check(checkpoint, config)
        Decoder(checkpoint, torch.device("cpu"))
        file = checkpoint.config_file
        if checkpoint.pruned is not None:
            raise InputError(f"{file}: method reap needs a model that is not pruned")
        if not checkpoint.is_mixture:
            raise InputError(f"{file}: the model has no experts to remove")
        of, count = _experts(checkpoint, config)
        used = checkpoint.settings["num_experts_per_tok"]
        if not 0 < count <= of - used:
            raise InputError(
                f"experts: {config.experts} removes {count} of {of} experts: one must"
                f" go, and by {file} each token needs {used}"
            )

    def recipe(self, checkpoint: Checkpoint, config: Settings) -> str:
        of, count = _experts(checkpoint, config)
        # It rounds the product down, and 0.29 * 100 is a little less than 29.
        settings = {"sparsity": (count + 0.5) / of}
        return recipe_of([Modifier("REAPPruningModifier", settings)], config)

    def outcome(
        self, source: Checkpoint, folder: Path, config: Settings
    ) -> dict[str, Any]:
        """Also writes what stays in place of what `write` left."""
        import torch

        from pruning.structured.experts import share_gone, slices, taken_out
        from pruning.structured.write import write

        of, count = _experts(source, config)
        removed = taken_out(source, Checkpoint(folder), count)
        for file in folder.glob("*.safetensors*"):
            file.unlink()
        kept, stored = slices(source, removed), source.stored_config
        write(source, kept, {**stored, str(expert_field(stored)): of - count}, folder)
        gone = next(name for name, part in kept.items() if part is None)
        most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        return {
            "pattern": removed.unit,
            "sparsity": config.experts,
            "measured_sparsity": share_gone(source, kept),
            "allocation": "uniform",
            "layer_sparsity": (config.experts,) * len(removed.gone),
            "matrices": (),
            "removed": removed,
            "seed": config.seed,
            "device": "cuda" if torch.cuda.is_available() else "cpu",
            "dtype": source.tensors[gone].dtype,
            "compute_dtype": source.dtype,
            "peak_memory_bytes": most * 1024,
        }


def _experts(checkpoint: Checkpoint, config: Settings) -> tuple[int, int]:
    """How many a layer has, and how many of them go."""
    of = checkpoint.settings[str(expert_field(checkpoint.settings))]
    assert config.experts is not None
    return of, int(of * config.experts + 1e-9)
