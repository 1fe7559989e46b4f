"""What is no longer there, and what to use instead: one table for commands, options,
keys of YAML and registered names.

The lookup of an unknown name asks it first (`errors.unknown`).
"""

from collections.abc import Mapping

# A name as it was typed or written -> a sentence that names the replacement.
REMOVED: Mapping[str, str] = {
    "screen": "a run grows by `items:`; `resurface gate` judges it"
}
