"""The checkpoints that the doctor's runs load, and the comparison of our pruning
masks with the published algorithm."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.overlay import overlay
from evaluator.checkpoints.tokenizer import load_tokenizer
from launch.doctor.results import RunResult
from launch.sweep.compress import SOURCES
from pruning.calibration import load as load_calibration
from pruning.config import CalibrationConfig, PruneConfig
from pruning.run import prune

RATIO = 0.5
_CALIBRATION = CalibrationConfig(source="gazetteer", samples=18, sequence_length=128)


def prunings(dense: Path, scratch: Path) -> RunResult:
    """Write the checkpoint of twins to `scratch/tied`, and prune `dense` into
    `scratch/pruned` with Wanda on the CPU.

    `shares`: the share of each matrix's weights that only one of two sides pruned. They
    compare Wanda on the CPU with the published algorithm. With a GPU, they also compare
    Wanda and SparseGPT there with the CPU.
    """
    write_twins(dense, scratch / "tied")
    pruned = _prune(dense, scratch / "pruned", "wanda", "cpu")
    shares = {"plain": differing(masks_of(pruned), plain_wanda(dense))}
    if torch.cuda.is_available():
        shares["gpu_wanda"] = differing(
            masks_of(_prune(dense, scratch / "gpu", "wanda", "cuda")), masks_of(pruned)
        )
        sides = (
            masks_of(_prune(dense, scratch / device, "sparsegpt", device))
            for device in ("cuda", "cpu")
        )
        shares["gpu_sparsegpt"] = differing(*sides)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    # limited by CUDA_VISIBLE_DEVICES
    facts = {"device": device, "gpus": str(torch.cuda.device_count())}
    return RunResult(dtype="float32", facts=facts, shares=shares)


def write_twins(source: Path, target: Path) -> Path:
    """Copy a checkpoint with tied embeddings; each odd token gets the embedding, so
    the logit, of the one before it."""

    def twins(name: str, tensor: Tensor) -> Tensor:
        if name.endswith("embed_tokens.weight"):
            pairs = len(tensor) // 2
            tensor[1 : 2 * pairs : 2] = tensor[0 : 2 * pairs : 2].clone()
        return tensor

    return _rewritten(source, target, Checkpoint(source).config, twins)


def write_divisible(source: Path, target: Path) -> Path:
    """Copy a checkpoint so that two workers can share it: each query head gets its
    own copy of its keys and values."""
    config = Checkpoint(source).config
    queries, keys, size = (
        config[name]
        for name in ("num_attention_heads", "num_key_value_heads", "head_dim")
    )

    def copied(name: str, tensor: Tensor) -> Tensor:
        if not name.endswith(("k_proj.weight", "v_proj.weight")):
            return tensor
        heads = tensor.reshape(keys, size, -1).repeat_interleave(queries // keys, dim=0)
        return heads.reshape(queries * size, -1).contiguous()

    return _rewritten(
        source, target, {**config, "num_key_value_heads": queries}, copied
    )


def _rewritten(
    source: Path, target: Path, config: Any, changed: Callable[[str, Tensor], Tensor]
) -> Path:
    target.mkdir(parents=True)
    overlay(source, target, config)
    for file in target.glob("*.safetensors"):
        tensors = {
            name: changed(name, tensor) for name, tensor in load_file(file).items()
        }
        file.unlink()  # the program's own files may be read-only
        save_file(tensors, file, metadata={"format": "pt"})
    return target


def masks_of(checkpoint: Path) -> dict[str, Tensor]:
    """The zero weights of each matrix in the layers."""
    return {
        name: tensor == 0
        for file in sorted(checkpoint.glob("*.safetensors"))
        for name, tensor in load_file(file).items()
        if ".layers." in name and tensor.dim() == 2
    }


def differing(
    one: Mapping[str, Tensor], other: Mapping[str, Tensor]
) -> dict[str, float]:
    """The share of each matrix's weights that only one side pruned; 1 for a matrix
    that one side lacks."""
    return {
        name: (
            float((one[name] != other[name]).float().mean())
            if name in one and name in other
            else 1.0
        )
        for name in sorted(one.keys() | other.keys())
    }


def _prune(dense: Path, out: Path, method: str, device: str) -> Path:
    config = PruneConfig(
        source=dense,
        method=method,
        sparsity=RATIO,
        calibration=_CALIBRATION,
        device=device,
    )
    prune(config, out, sources=SOURCES)
    return out


def plain_wanda(dense: Path) -> dict[str, Tensor]:
    """Wanda's masks, plainly: the model in memory, each sequence through all of it
    for each layer, stable sorts."""
    from transformers import AutoModelForCausalLM

    calibration = load_calibration(_CALIBRATION, load_tokenizer(dense), 0, SOURCES)
    model: Any = AutoModelForCausalLM.from_pretrained(dense, dtype="float32").eval()
    masks: dict[str, Tensor] = {}
    for index, layer in enumerate(model.model.layers):
        names = {
            module: name
            for name, module in layer.named_modules()
            if isinstance(module, nn.Linear)
        }
        squares = _observed(model, list(names), calibration.sequences)
        for module, name in names.items():
            score = module.weight.data.abs() * squares[module].sqrt()
            order = score.sort(dim=1, stable=True).indices[
                :, : int(score.shape[1] * RATIO)
            ]
            mask = torch.zeros_like(score, dtype=torch.bool).scatter_(1, order, True)
            module.weight.data[mask] = 0
            masks[f"model.layers.{index}.{name}.weight"] = mask
    return masks


def _observed(
    model: Any, modules: Sequence[nn.Module], prompts: Sequence[Sequence[int]]
) -> dict[nn.Module, Tensor]:
    """The mean over sequences of each input's summed squares, for each module."""
    squares: dict[nn.Module, Tensor] = {}

    def see(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        new = inputs[0][0].pow(2).sum(dim=0) / len(prompts)
        squares[module] = squares[module] + new if module in squares else new

    hooks = [module.register_forward_pre_hook(see) for module in modules]
    with torch.no_grad():
        for ids in prompts:
            model(input_ids=torch.tensor([list(ids)]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return squares
