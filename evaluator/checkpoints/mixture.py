"""Whether a model is a mixture of experts: each token passes a few of many feed-forward networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_FIELDS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_intermediate_size")


def expert_field(config: Mapping[str, Any]) -> str | None:
    """The field of config.json, or of its text_config, that says so; None for a model without experts."""
    text = config.get("text_config")
    for part in (config, text if isinstance(text, Mapping) else {}):
        for field in _FIELDS:
            if part.get(field):
                return field
    return None
