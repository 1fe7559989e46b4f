"""The two consoles that commands write to.

Whatever is printed through them may come from a checkpoint, a data set or a model: what a terminal would take for an
order, or for an instruction to show text in another order than it has, is shown as a question mark.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

# Control characters but for the end of a line; lone surrogates, which no terminal can be sent; and the marks with which
# Unicode overrides or isolates the direction of text.
_NOT_SHOWN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
_JOINERS = "\u200c\u200d"  # Indic and Persian spelling needs them


class SafeConsole(Console):
    """A console that sends a terminal no control characters but its own."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(shown(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Nobody reads any more (`| head`, a `tee` that has ended): that ends no command, least of all a run at night.

        Rich would raise SystemExit, in whichever thread prints.
        """
        self.quiet = True


def shown(text: str) -> str:
    """A text as a terminal may be sent it."""
    return _NOT_SHOWN.sub("?", text)


console = SafeConsole()
errors = SafeConsole(stderr=True, soft_wrap=True)


def printed(text: str) -> None:
    """Print a text of others as it is, but for what would steer the terminal: that is spelled out."""
    spelled = (character if _harmless(character) else ascii(character)[1:-1] for character in text)
    print("".join(spelled))


def _harmless(character: str) -> bool:
    return character in "\n\t" or not unicodedata.category(character).startswith("C") or character in _JOINERS
