"""The two consoles that commands write to, and JSON in place of the first.

Text may come from a checkpoint, a data set or a model. A question mark replaces each
character that would control the terminal or change the direction of text."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment

from evaluator.core.errors import HIDDEN

if TYPE_CHECKING:
    from rich.table import Table


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
    return HIDDEN.sub("?", text)


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
    print(HIDDEN.sub(_spelled, text))


def _spelled(match: re.Match[str]) -> str:
    return match[0] if match[0] == "\t" else ascii(match[0])[1:-1]


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
    numbers on one line, under a heading with a word a line."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(box=SIMPLE_HEAD, padding=(0, between), pad_edge=False)
    for name in columns:
        made.add_column(
            name if name in texts else name.replace(" ", "\n"),
            overflow="fold",
            justify="left" if name in texts else "right",
            no_wrap=name not in texts,
        )
    return made
