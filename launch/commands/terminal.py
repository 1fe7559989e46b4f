"""The two consoles that commands write to, and JSON in place of the first.

Text may come from a checkpoint, a data set or a model. A question mark replaces each
character that would control the terminal or change the direction of text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment

if TYPE_CHECKING:
    from rich.table import Table

# Control characters except the end of a line; lone surrogates, which have no encoding;
# and the marks that override or isolate the direction of text in Unicode.
_NOT_SHOWN = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]"
)
_JOINERS = "\u200c\u200d"  # Indic and Persian spelling needs them


class SafeConsole(Console):
    """A console that sends only its own control characters to a terminal."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield (
                segment
                if segment.control
                else Segment(shown(segment.text), segment.style)
            )


def shown(text: str) -> str:
    """A text that is safe for a terminal."""
    return _NOT_SHOWN.sub("?", text)


console = SafeConsole()
errors = SafeConsole(stderr=True, soft_wrap=True)
closing: list[str] = []  # lines of stdout after everything else, also after an error


def only_json(wanted: bool) -> bool:
    """Keep stdout for JSON: what is meant for people goes to stderr."""
    console.stderr = wanted
    return wanted


AsJson = Annotated[
    bool,
    typer.Option(
        "--json", callback=only_json, help="print JSON; all other text goes to stderr"
    ),
]


def print_json(document: object) -> None:
    from launch.documents import line_of

    print(line_of(document), flush=True)


def printed(text: str) -> None:
    """Print a foreign text. Spells out the characters that would control the
    terminal."""
    safe = "\n\t" + _JOINERS
    spelled = (
        (
            each
            if each in safe or not unicodedata.category(each).startswith("C")
            else ascii(each)[1:-1]
        )
        for each in text
    )
    print("".join(spelled))


def warn(text: str, console: Console = console) -> None:
    console.print(
        f"[yellow]warning:[/yellow] {escape(text)}", highlight=False, soft_wrap=True
    )


def print_error(text: str) -> None:
    errors.print(f"[red]error:[/red] {escape(text)}", highlight=False)


def print_plain(text: str) -> None:
    """Print one line as it is, however long: without markup, colours and wrapping."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def empty_table(
    columns: Iterable[str], texts: Collection[str], between: int = 0
) -> Table:
    """An empty table of 80 characters: columns in `texts` may wrap, others are
    numbers on one line."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(box=SIMPLE_HEAD, padding=(0, between), pad_edge=False)
    for name in columns:
        made.add_column(
            name,
            overflow="fold",
            justify="left" if name in texts else "right",
            no_wrap=name not in texts,
        )
    return made
