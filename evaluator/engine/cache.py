"""Keys and values that are rounded as vLLM rounds them when it writes them to an
8-bit cache.

vLLM divides by a scale, which is 1 unless the checkpoint has one, and clips to the
largest number. Its CPU kernel then drops the digits that do not fit, so it rounds
towards zero; a test compares the bits. CUDA rounds to the nearest float8 (untested
here)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evaluator.engine.config import AUTO_CACHE

if TYPE_CHECKING:
    import torch

# vLLM's name: torch's
FLOAT8 = {
    "fp8": "float8_e4m3fn",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
}


def rounded(values: torch.Tensor, dtype: str, scale: float = 1.0) -> torch.Tensor:
    """Keys or values after a cache of `dtype`, which is a key of FLOAT8; their own
    dtype and shape stay."""
    import torch

    kind: torch.dtype = getattr(torch, FLOAT8[dtype])
    scaled = values.float() / scale
    largest = torch.finfo(kind).max
    kept = scaled.clamp(-largest, largest).to(kind)
    if values.device.type == "cpu":
        # from zero; one bit pattern lower is the next number towards it
        away = kept.float().abs() > scaled.abs()
        kept = (kept.view(torch.uint8) - away.to(torch.uint8)).view(kind)
    return (kept.float() * scale).to(values.dtype)


def new_cache(dtype: str) -> Any:
    """An empty cache of transformers that rounds what is written, so that every
    reader gets rounded numbers."""
    from transformers import DynamicCache

    if dtype == AUTO_CACHE:
        return DynamicCache()

    class Rounded(DynamicCache):  # type: ignore[misc]  # transformers is not followed by mypy
        def update(
            self, key_states: Any, value_states: Any, *args: Any, **more: Any
        ) -> Any:
            kept = [rounded(each, dtype) for each in (key_states, value_states)]
            return super().update(*kept, *args, **more)

    return Rounded()
