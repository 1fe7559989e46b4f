"""A benchmark does the same work in two ways, which are timed in turn.

    compare("score", ours=..., theirs=..., rounds=5, agree=...)

prints a table and, as its last line, JSON with a `ratio`. After one warm-up each, the sides run in turn (ours, theirs,
ours, ...). The ratio is the median of the ratios of neighbours: a machine whose speed drifts does not tilt it. If the
results do not agree, no ratio is printed and the exit code is 1.

A benchmark runs in a process with `Options`. A side's process answers in lines of JSON:

    with Child("ours", module_command("benchmarks.serving.sides", "ours", "score", file)) as ours:
        result = ours.round()
    measured = answer_of("recipe", module_command("benchmarks.pruning.prune", "--job", work))"""

import argparse
import contextlib
import json
import os
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

from evaluator.core.errors import InputError, ResurfaceError, json_text

_ROOT = Path(__file__).resolve().parents[1]


def module_command(module: str, *arguments: object) -> list[str]:
    """The command for `environment()`. `-P`: the working directory is no place to look for modules."""
    return [sys.executable, "-P", "-m", module, *map(str, arguments)]


def environment(**changes: str) -> dict[str, str]:
    """This process's environment, in which a child finds the packages that this one was started from."""
    path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, **changes}


class Options(argparse.ArgumentParser):
    """A benchmark's options. Its help is a module's docstring; `parse_args` raises InputError for what is
    wrong, which `run_main` makes one line without a usage text."""

    def __init__(self, description: str | None) -> None:
        super().__init__(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)

    def error(self, message: str) -> NoReturn:
        raise InputError(message)


def count(text: str) -> int:
    """The value of an option that counts: at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a count of at least 1")
    return int(text)


def settings(text: str) -> dict[str, Any]:
    """The value of an option that holds settings: a JSON object."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object")
    return value


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, left: int = 1) -> None:
    """The first `left` columns are aligned to the left. A None is an empty cell."""
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < left else "right")
    for row in rows:
        table.add_row(*("" if each is None else str(each) for each in row))
    Console().print(table)


def run_main(main: Callable[[], None]) -> None:
    """Run the `main` of a benchmark. An error that is raised for a user to read becomes one line on stderr, and
    exit code 2 where the user can mend it, 1 elsewhere."""
    try:
        main()
    except ResurfaceError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2 if isinstance(error, InputError) else 1) from None


def answer_of(
    name: str, command: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> dict[str, Any]:
    """The one answer of a process that errors call `name`. Raises SystemExit with stderr's last line if it fails."""
    with Child(name, command, env=env, cwd=cwd) as child:
        return child.first


def serve(
    work: Callable[[], Mapping[str, Any]], *, cold: Callable[[], object], after: Callable[[], Mapping[str, Any]] = dict
) -> None:
    """A side's process, as `Child` expects it. `cold` and `after` are called around each round, off the clock."""
    print("{}", flush=True)
    for _ in sys.stdin:
        cold()
        started = time.perf_counter()
        result = {**work(), "seconds": time.perf_counter() - started}
        print(json.dumps({**result, **after()}), flush=True)


class Child:
    """A side's process, kept for all rounds: it does one round of its work per line it reads, and answers with one
    line of JSON. It says `{}` when it is ready, for which the constructor waits."""

    def __init__(
        self, name: str, command: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> None:
        """Raises SystemExit, with the last line of the process's stderr, if it ends before it is ready."""
        self.results: list[dict[str, Any]] = []  # of every round so far
        self._name = name
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed in `close`)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment() if env is None else env,
            cwd=cwd,
        )
        try:
            self.first = self._answer()
        except SystemExit:
            self.__exit__()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # closes its input and waits
        self._errors.close()

    def round(self) -> dict[str, Any]:
        """One round of the work; returns its result. Raises SystemExit if the process ends instead."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # of a process that has ended, `_answer` says why
            self._process.stdin.write("go\n")
            self._process.stdin.flush()
        self.results.append(self._answer())
        return self.results[-1]

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        code = self._process.wait()
        self._errors.seek(0)
        said = (self._errors.read().strip() or "no message").splitlines()
        raise SystemExit(f"{self._name} failed with exit code {code}: {said[-1]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One way of doing the work. `run` does it once and returns the results to compare, and `seconds`. A side
    times itself: the start of its process and the pipe to it are not part of the work."""

    name: str
    run: Callable[[], Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Whether the sides computed the same; `how` names the criterion, such as the tolerance."""

    holds: bool
    how: str


Agree = Callable[[Any, Any], Agreement]  # of our result and another's


def lacking(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """Which keys one side has and the other lacks, in words; empty where both have the same."""
    parts = []
    for side, own, other in (("ours", ours, theirs), ("theirs", theirs, ours)):
        missing = [key for key in other if key not in own]
        if missing:
            parts.append(f"{side} lacks {len(missing)} of {len(other)} answers, the first of {missing[0]}")
    return "; ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another program beside the two sides. `agree` compares our result with its own; `facts` adds its report on
    itself after the rounds. Where it does less than the two sides do, `ours` is our side doing that much."""

    side: Side
    ours: Side | None = None
    agree: Agree
    facts: Callable[[], Mapping[str, Any]]


def compare(
    name: str,
    *,
    ours: Side,
    theirs: Side,
    agree: Agree,
    rounds: int,
    facts: Callable[[], Mapping[str, Any]] = dict,
    peer: Peer | None = None,
) -> None:
    """Time the sides, print table and JSON with `facts`. Raises SystemExit with code 1 if any disagrees with ours."""
    sides = {"ours": ours, "theirs": theirs}
    if peer is not None:
        sides |= {"peer": peer.side} | ({} if peer.ours is None else {"ours_for_peer": peer.ours})
    results = {key: side.run() for key, side in sides.items()}  # the warm-up
    agreement = _held(name, agree(results["ours"], results["theirs"]))
    peer_key = "ours_for_peer" if "ours_for_peer" in sides else "ours"  # what the peer is compared with
    beside = None if peer is None else _held(name, peer.agree(results[peer_key], results["peer"]))
    seconds: dict[str, list[float]] = {key: [] for key in sides}
    for _ in range(rounds):
        for key, side in sides.items():
            seconds[key].append(side.run()["seconds"])
    figures = _figures(seconds["ours"], seconds["theirs"])
    shown = {key: (statistics.median(each), min(each), max(each)) for key, each in seconds.items()}
    rows = [(side.name, *(f"{value:.3f}" for value in shown[key])) for key, side in sides.items()]
    print_table(f"bench {name}", ("side", "median s", "min s", "max s"), rows)
    console = Console()
    faster = "{ratio:.2f} times faster".format
    spread = "({ratio_min:.2f} to {ratio_max:.2f})".format
    console.print(f"{faster(**figures)} {spread(**figures)}; results: {agreement.how}")
    more = dict(facts())
    if peer is not None and beside is not None:
        against = _figures(seconds[peer_key], seconds["peer"])
        more["peer"] = {"name": peer.side.name, **against, "agreement": beside.how, **peer.facts()}
        than = f"{faster(**against)} than {peer.side.name} {spread(**against)}"
        console.print(f"{sides[peer_key].name}: {than}; results: {beside.how}")
    for key, value in more.items():
        console.print(f"{key}: {value}", highlight=False)
    print(json_text({"benchmark": name, **figures, "rounds": rounds, "agreement": agreement.how, **more}))


def _held(name: str, agreement: Agreement) -> Agreement:
    """The agreement, if it holds. Raises SystemExit with code 1 otherwise."""
    if not agreement.holds:
        print(f"{name}: no ratio: the results do not agree ({agreement.how})", file=sys.stderr)
        raise SystemExit(1)
    return agreement


def _figures(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """How many times faster ours was, by the ratios of each round, and the median seconds of both sides."""
    ratios = [slow / fast for fast, slow in zip(ours, theirs, strict=True)]
    spread = {"ratio": statistics.median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios)}
    return spread | {"ours_s": statistics.median(ours), "theirs_s": statistics.median(theirs)}
