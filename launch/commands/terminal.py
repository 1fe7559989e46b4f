"""The two consoles that commands write to."""

from __future__ import annotations

from rich.console import Console

console = Console()
errors = Console(stderr=True, soft_wrap=True)
