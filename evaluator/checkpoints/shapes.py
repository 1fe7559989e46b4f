"""Where config.json keeps the settings of text and of experts.

Some models keep the settings of their text part in a section of config.json
(`text_model`). In a mixture of experts each token passes a few of many feed-forward
networks."""

from collections.abc import Mapping

from evaluator.core.errors import Document, Json

_FIELDS = (
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_intermediate_size",
)


def expert_field(config: Document) -> str | None:
    """The field with the number of experts, in config.json or its text_config; None
    for a model without experts."""
    settings = text_model(config)
    return next((field for field in _FIELDS if settings.get(field)), None)


def text_model(config: Document) -> Json:
    """The settings of config.json, and over them those of its `text_config`, which a
    model of several towers has."""
    text = config.get("text_config")
    return {**config, **(text if isinstance(text, Mapping) else {})}
