"""The exceptions of `pruning`.

PruneError                    a pruning job failed; the text is one complete line
`-- PruneInputError           something that the user can mend (file, field and value are named): exit code 2
"""

from __future__ import annotations


class PruneError(Exception):
    """Base of everything that pruning raises for a user to read."""


class PruneInputError(PruneError):
    """A file, field or value is wrong. The message names all three."""
