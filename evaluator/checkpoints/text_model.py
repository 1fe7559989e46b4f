"""The settings of a model's text part: some models keep them in a section of config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def text_model(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of config.json, and over them those of its `text_config`, which a model of several towers has."""
    text = config.get("text_config")
    return {**config, **(text if isinstance(text, Mapping) else {})}
