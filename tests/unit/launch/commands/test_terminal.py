"""What a terminal is sent of texts that come from checkpoints, data sets and models, and a run's last line."""

import io

import pytest
from rich.table import Table

from evaluator.store.run_json import Failure
from launch.commands.running import summary
from launch.commands.terminal import SafeConsole, shown

ESCAPE = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x9b1m\x08\x7f"


def printed(*things, terminal=False, **options):
    written = io.StringIO()
    console = SafeConsole(file=written, width=80, force_terminal=terminal, color_system=None)
    for thing in things:
        console.print(thing, **options)
    return written.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("soft", [False, True])
def test_no_order_reaches_a_terminal(terminal, soft):
    table = Table(title=ESCAPE)
    table.add_column(ESCAPE)
    table.add_row(ESCAPE)
    text = printed(ESCAPE, table, {"key": ESCAPE}, terminal=terminal, soft_wrap=soft)
    assert "red" in text
    assert not set(text) & set("\x1b\x07\x08\x7f\x9b")


def test_the_consoles_own_orders_do_also_in_a_live_display():
    written = io.StringIO()
    console = SafeConsole(file=written, force_terminal=True, color_system="standard")
    console.print("[red]error:[/red] a\x1b[32mb", highlight=False)
    assert written.getvalue() == "\x1b[31merror:\x1b[0m a?[32mb\n"
    with console.status("working on \x1b[5mname"):
        pass
    assert "working on ?[5mname" in written.getvalue()
    assert "\x1b[?25l" in written.getvalue()  # the cursor is hidden
    # A name that is no Unicode can be printed.
    written = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    SafeConsole(file=written).print(b"\xff.yaml".decode("utf-8", "surrogateescape"))
    written.flush()
    assert written.buffer.getvalue() == b"?.yaml\n"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("a\x00b", "a?b"),
        ("a\rb", "a?b"),
        ("half \ud800", "half ?"),
        ("\u202egpj.exe\u202c", "?gpj.exe?"),
        ("two\nlines", "two\nlines"),
        ("నది بحر 河 é 👩\u200d💻 \u200f", "నది بحر 河 é 👩\u200d💻 \u200f"),  # joiners and marks that scripts need
    ],
)
def test_what_is_shown(text, seen):
    assert shown(text) == seen


def test_the_last_line_names_the_first_checkpoints_once_each_and_counts_the_rest():
    def failure(checkpoint, reason="no"):
        return Failure(checkpoint=checkpoint, stage="load", reason=reason)

    told = summary([failure("a", "one\ntwo"), failure("a", "later")])
    assert told == "1 checkpoint, wholly or in part: a (load: one two)"
    told = summary([failure(name) for name in "abcde"])
    assert told == "5 checkpoints, wholly or in part: a (load: no), b (load: no), c (load: no), and 2 more"
