"""A benchmark does the same work in two ways or more, which are timed in turn.

    compare("score", {"ours": Side(...), "theirs": Side(...)}, rounds=5, agree=...)

prints a table and, as its last line, JSON with a `ratio`. After one warm-up each, the
sides run in turn (ours, theirs, ours, ...). The ratio is the median of the ratios of
neighbours: a machine whose speed drifts does not tilt it. A side that fails, or whose
results are not ours, gets no ratio; the others go on, and the exit code is 1.

A benchmark runs in a process with `Options`. A side's process answers in lines of JSON:

    with Child("ours", module_command("benchmarks.serving.sides", "ours", "score",
    file)) as ours:
        result = ours.round()
    command = module_command("benchmarks.pruning.prune", "--job", work)
    measured = Child("recipe", command).only()
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Self

from rich.console import Console
from rich.table import Table

from evaluator.core.errors import Document, InputError, Json, ResurfaceError, json_text

# what every child is started with
from evaluator.core.isolated import environment as environment


def module_command(module: str, *arguments: object) -> list[str]:
    """The command for `environment()`. `-P`: the working directory is no place to
    look for modules."""
    return [sys.executable, "-P", "-m", module, *map(str, arguments)]


class Options(argparse.ArgumentParser):
    """A benchmark's options. Its help is a module's docstring; `parse_args` raises
    InputError for what is wrong, which `run_main` makes one line without a usage
    text."""

    def __init__(self, description: str | None) -> None:
        super().__init__(
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        raise InputError(message)


def count(text: str) -> int:
    """The value of an option that counts: at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a count of at least 1")
    return int(text)


def settings(text: str) -> Json:
    """The value of an option that holds settings: a JSON object."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object")
    return value


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    left: int = 1,
) -> None:
    """The first `left` columns are aligned to the left. A None is an empty cell."""
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < left else "right")
    for row in rows:
        table.add_row(*("" if each is None else str(each) for each in row))
    Console().print(table)


def run_main(main: Callable[[], None]) -> None:
    """Run the `main` of a benchmark. An error that is raised for a user to read
    becomes one line on stderr, and exit code 2 where the user can mend it, 1
    elsewhere."""
    try:
        main()
    except ResurfaceError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2 if isinstance(error, InputError) else 1) from None


def serve(work: Callable[[], Document], *, cold: Callable[[], object]) -> None:
    """A side's process, as `Child` expects it. `cold` is called before each round,
    off the clock."""
    print("{}", flush=True)
    for _ in sys.stdin:
        cold()
        started = time.perf_counter()
        answer = {**work(), "seconds": time.perf_counter() - started}
        print(json.dumps(answer), flush=True)


class Child:
    """A side's process, kept for all rounds: it does one round of its work per line
    it reads, and answers with one line of JSON. It says `{}` when it is ready."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        log: Path | None = None,
    ) -> None:
        """Waits for nothing, so that several start side by side. `log` keeps the
        process's stderr."""
        self.results: list[Json] = []  # of every round so far
        self._name = name
        self._first: Json | None = None
        self._errors = tempfile.TemporaryFile("w+") if log is None else log.open("w+")  # noqa: SIM115  (`__exit__`)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=env or environment(),
            cwd=cwd,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # closes its input and waits
        self._errors.close()

    def ready(self) -> Json:
        """What the process says first, for which this waits. Raises SystemExit, with
        the last line of its stderr, if it ends instead."""
        if self._first is None:
            self._first = self._answer()
        return self._first

    def only(self) -> Json:
        """The one answer of a process without rounds, which then ends."""
        with self:
            return self.ready()

    def round(self) -> Json:
        """One round of the work; returns its result. Raises SystemExit if the
        process ends instead."""
        self.ready()
        assert self._process.stdin is not None
        # of a process that has ended, `_answer` says why
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write("round\n")
            self._process.stdin.flush()
        self.results.append(self._answer())
        return self.results[-1]

    def _answer(self) -> Json:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: Json = json.loads(line)
                return answer
        code = self._process.wait()
        self._errors.seek(0)
        said = (self._errors.read().strip() or "no message").splitlines()
        raise SystemExit(f"{self._name} failed with exit code {code}: {said[-1]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Whether the sides computed the same; `how` names the criterion, such as the
    tolerance."""

    holds: bool
    how: str


Agree = Callable[[Any, Any], Agreement]  # of our result and another's


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One way of doing the work. `run` does it once and returns the results to compare,
    and `seconds`. A side times itself: the start of its process and the pipe to it are
    not part of the work.
    """

    name: str
    run: Callable[[], Document]
    agree: Agree | None = None  # compares it with a side of ours
    ours: str = ""  # which one; the first, if empty
    # its report on itself after the rounds
    facts: Callable[[], Document] = dict


Results = list[Document]  # of a side's rounds; the first is the warm-up
# Gets a side's results after each of its rounds, and why it is left out of the next, if
# it is.
Keep = Callable[[str, Results, str | None], object]


def compare(
    name: str, sides: Mapping[str, Side], *, rounds: int, keep: Keep = lambda *_: None
) -> None:
    """Time the sides, print table and JSON. The first side is ours, and the
    benchmark's ratio is that of the first of theirs. Raises SystemExit with code 1
    if a side was left out."""
    ours = next(iter(sides))
    theirs = next((key for key in sides if key.startswith("theirs")), "")
    results, agreed, failed = _run_rounds(name, sides, rounds, keep)
    seconds: dict[str, list[float]] = {}
    rows = []
    for key, of_side in results.items():
        timed = seconds[key] = [result["seconds"] for result in of_side[1:]]
        if timed:
            figures = spread("seconds", timed).values()
            rows.append((sides[key].name, *(f"{value:.3f}" for value in figures)))
    print_table(f"bench {name}", ("side", "median s", "min s", "max s"), rows)
    main: Json = {}
    more = {} if ours in failed else dict(sides[ours].facts())
    for key, how in agreed.items():
        side, reference = sides[key], sides[key].ours or ours
        if failed.keys() & {key, reference}:
            continue
        ratios = {**_figures(seconds[reference], seconds[key]), "agreement": how}
        print(
            f"{sides[reference].name}: {ratios['ratio']:.2f} times faster than"
            f" {side.name}; results: {how}"
        )
        if key == theirs:
            main = ratios
        else:
            more[key] = {"name": side.name, **ratios, **side.facts()}
    if failed:
        more["failed"] = failed
    for key, value in more.items():
        print(f"{key}: {value}")
    print(json_text({"benchmark": name, **main, "rounds": rounds, **more}))
    if failed:
        raise SystemExit(1)


def _run_rounds(
    name: str, sides: Mapping[str, Side], rounds: int, keep: Keep
) -> tuple[dict[str, Results], dict[str, str], dict[str, str]]:
    """The results of each side, how it agrees with ours, and why sides were left
    out."""
    results: dict[str, Results] = {key: [] for key in sides}
    agreed: dict[str, str] = {}
    failed: dict[str, str] = {}

    def leave_out(key: str, why: str) -> None:
        failed[key] = why
        print(f"{name}: {why}", file=sys.stderr)
        keep(key, results[key], why)

    def turn() -> None:
        for key in [key for key in sides if key not in failed]:
            try:
                results[key].append(sides[key].run())
                keep(key, results[key], None)
            except SystemExit as error:
                leave_out(key, str(error))

    turn()  # the warm-up
    for key, side in sides.items():
        reference = side.ours or next(iter(sides))
        if side.agree is None or failed.keys() & {key, reference}:
            continue
        agreement = side.agree(results[reference][0], results[key][0])
        agreed[key] = agreement.how
        if not agreement.holds:
            leave_out(
                key,
                f"no ratio: the results of {reference} and {key} do not agree"
                f" ({agreement.how})",
            )
    for _ in range(rounds):
        turn()
    return results, agreed, failed


def spread(name: str, values: Sequence[float]) -> dict[str, float]:
    """The median of values, and their ends."""
    return {
        name: statistics.median(values),
        f"{name}_min": min(values),
        f"{name}_max": max(values),
    }


def _figures(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """How many times faster ours was, by the ratios of each round, and the median
    seconds of both sides."""
    ratios = [slow / fast for fast, slow in zip(ours, theirs, strict=True)]
    return spread("ratio", ratios) | {
        "ours_s": statistics.median(ours),
        "theirs_s": statistics.median(theirs),
    }
