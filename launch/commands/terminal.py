"""The two consoles that commands write to."""

from __future__ import annotations

import unicodedata

from rich.console import Console

console = Console()
errors = Console(stderr=True, soft_wrap=True)
_JOINERS = "\u200c\u200d"  # Indic and Persian spelling needs them


def printed(text: str) -> None:
    """Print a text of others as it is, but for what would steer the terminal: that is spelled out."""
    shown = (character if _harmless(character) else ascii(character)[1:-1] for character in text)
    print("".join(shown))


def _harmless(character: str) -> bool:
    return character in "\n\t" or not unicodedata.category(character).startswith("C") or character in _JOINERS
