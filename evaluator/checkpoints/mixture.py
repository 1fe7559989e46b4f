"""Whether a model is a mixture of experts: each token passes a few of many feed-forward networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evaluator.checkpoints.text_model import text_model

_FIELDS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_intermediate_size")


def expert_field(config: Mapping[str, Any]) -> str | None:
    """The field of config.json, or of its text_config, that says so; None for a model without experts."""
    settings = text_model(config)
    return next((field for field in _FIELDS if settings.get(field)), None)
