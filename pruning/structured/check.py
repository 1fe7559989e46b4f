"""Whether parts can be taken out of a model, before anything heavy starts."""

from __future__ import annotations

from pruning.model.decoder import Decoder
from pruning.patterns import Removed
from pruning.structured.cut import first_cut, slices
from pruning.structured.settings import check_built


def check(decoder: Decoder, removed: Removed) -> None:
    """Raises InputError for a share of which nothing would go, and for a model that cannot be built without it."""
    cut = first_cut(decoder, removed)
    check_built(decoder, cut, slices(decoder, cut))
