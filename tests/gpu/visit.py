"""What should run first on a GPU, unattended, in about ten minutes: does it work, is
it right, how fast is it?

    make gpu-card OUT=DIR                 or: python -m tests.gpu.visit DIR [--until
                                          540] [--only STEP,...] [--resume]
    python -m tests.gpu.visit DIR --wait imports,full --seconds 130     the summary,
    as soon as these steps have ended python -m tests.gpu.visit DIR --rehearse
    tiny models, also without a GPU

Steps work side by side, each in a process with a limit. Then the timed ones work
alone. DIR/STEP.log is a step's output while it runs, DIR/STEP.json its card when it
has ended, and DIR/summary.md the table of all. Doctor and demo wait until Ray can be
imported, which may come later. `--wait all` waits for the end of the visit.
Temporary files lie in a folder with a short name, and Triton's kernels in
DIR/triton, unless TRITON_CACHE_DIR is set. The exit code is 1 if a step did not
pass."""

import argparse
import contextlib
import dataclasses
import fcntl
import importlib.util
import json
import os
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.harness import Options, environment, run_main
from evaluator.core.errors import InputError, one_line, unknown
from evaluator.core.files import write_atomically
from evaluator.engine.processor import usable_cores
from launch.doctor.machine import Machine, this_machine
from launch.process import stop_in_order
from tests.gpu.steps import DECISIVE, Card, Step, markdown, read, steps

_ROOT = Path(__file__).resolve().parents[2]
_MOST = min(8, max(1, usable_cores() // 2))  # steps at once
_LINES = 12  # of its output, on a step's card
# characters of the folder for temporary files: sockets lie in it, and their paths have
# at most 107
_LONGEST = 45
_LAST_SECONDS = 30  # for killed processes to be gone
_LOOK_SECONDS = 0.2
_BEGIN_SECONDS = 10.0  # within which a visit that somebody waits for has begun
_BESIDE = 0.55  # share of the time after which the timed steps come first
_NO_GPU = "no NVIDIA GPU answers on this machine (nvidia-smi)"
_LOCK, _SUMMARY = "visit.lock", "summary.md"
_SECONDS = 840.0  # of a quarter of an hour
_WELL = ("passed", "skipped")
_MARK = "RESURFACE_VISIT_STEP"
_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def variables(out: Path, scratch: Path) -> dict[str, str]:
    """The environment of every step."""
    folders = (
        "TMPDIR",
        "XDG_CACHE_HOME",
        "XDG_CONFIG_HOME",
        "FLASHINFER_WORKSPACE_BASE",
        "CUDA_CACHE_PATH",
    )
    fixed = {
        "HF_HUB_OFFLINE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
    }
    fixed |= {
        "VLLM_LOGGING_LEVEL": "INFO",
        "VLLM_HOST_IP": "127.0.0.1",
        "PYTHONUNBUFFERED": "1",
    }
    kernels = os.environ.get("TRITON_CACHE_DIR") or str(out / "triton")
    return environment(
        **dict.fromkeys(folders, str(scratch)), **fixed, TRITON_CACHE_DIR=kernels
    )


@dataclasses.dataclass(slots=True)
class Running:
    step: Step
    process: subprocess.Popen[bytes]
    began: float  # in seconds of the visit


class Visit:
    """Runs a list of steps, and ends all after `until` seconds."""

    def __init__(
        self,
        names: Sequence[str],
        out: Path,
        scratch: Path,
        machine: Machine,
        options: argparse.Namespace,
    ) -> None:
        self._names, self._out, self._scratch, self._machine = (
            names,
            out,
            scratch,
            machine,
        )
        self._until, self._rehearses = options.until, options.rehearse
        self._started = time.monotonic()
        self._waiting: list[Step] = []
        self._running: list[Running] = []
        self._cards: dict[str, Card] = {}  # of this visit
        self._summary = ""

    def run(self, todo: Sequence[Step]) -> bool:
        """Whether every step of `todo` has passed, or is skipped for want of a GPU."""
        self._waiting = list(todo)
        try:
            while self._waiting or self._running:
                self._end_due()
                self._begin_ready()
                self._summarise()
                time.sleep(_LOOK_SECONDS)
        finally:
            with _no_stop():
                for running in list(self._running):
                    self._end(running, "the visit was stopped")
                self._summarise()
        return all(card.state in _WELL for card in self._cards.values())

    def _now(self) -> float:
        return time.monotonic() - self._started

    def _end_due(self) -> None:
        for running in list(self._running):
            code, limit = running.process.poll(), running.step.seconds
            if code is not None:
                self._end(running, f"exit code {code}" if code else None)
            elif self._now() - running.began >= limit:
                self._end(running, f"exceeded {limit:g} s")
            elif (why := self._obstacle(running.step)) is not None:
                self._end(running, why)
        for step in list(self._waiting):
            if (why := self._obstacle(step)) is not None:
                self._waiting.remove(step)
                self._write(step.name, "skipped" if why == _NO_GPU else "not run", why)

    def _obstacle(self, step: Step) -> str | None:
        """Why a step cannot pass any more."""
        if step.gpu and not self._machine.gpus:
            return _NO_GPU
        for name in (DECISIVE, step.after):
            if name in self._cards and self._cards[name].state != "passed":
                return f"step {name} did not pass"
        if self._now() < self._until:
            return None
        return (
            "there was no time left"
            if _can_import(step.module)
            else f"Python did not find {step.module}"
        )

    def _begin_ready(self) -> None:
        """Begin what may run now. Timed steps run alone, after all others that are
        ready, or when most time is over."""
        if any(running.step.timed for running in self._running):
            return
        passed = [
            None,
            *(name for name, card in self._cards.items() if card.state == "passed"),
        ]
        ready = [
            step
            for step in self._waiting
            if step.after in passed and _can_import(step.module)
        ]
        timed = [step for step in ready if step.timed]
        beside = [step for step in ready if not step.timed]
        if timed and self._now() >= _BESIDE * self._until:
            for running in list(self._running):
                self._end(running, "the timed steps had to begin")
            beside = []
        begin = beside[: _MOST - len(self._running)]
        if not begin and not self._running:
            begin = timed[:1]
        for step in begin:
            self._begin(step)

    def _begin(self, step: Step) -> None:
        self._waiting.remove(step)
        own = {**variables(self._out, self._scratch), _MARK: self._mark(step)}
        if not step.timed:
            own["OMP_NUM_THREADS"] = str(max(1, usable_cores() // _MOST))
        with (self._out / f"{step.name}.log").open("wb") as log:
            files: dict[str, Any] = {
                "stdin": subprocess.DEVNULL,
                "stdout": log,
                "stderr": log,
            }
            process = subprocess.Popen(
                step.command, env=own, cwd=_ROOT, start_new_session=True, **files
            )
        self._running.append(Running(step, process, self._now()))
        _tell(f"{self._now():.0f} s: {step.name} begins")

    def _mark(self, step: Step) -> str:
        """What every process of a step finds in its environment, and no other."""
        return f"{self._scratch}/{step.name}"

    def _end(self, running: Running, reason: str | None) -> None:
        """End a step with all that it has started, and write its card. `reason`: why
        it did not pass."""
        _kill(running.process, self._mark(running.step))
        self._running.remove(running)
        name, seconds = running.step.name, self._now() - running.began
        text = (self._out / f"{name}.log").read_text(encoding="utf-8", errors="replace")
        text = text.replace(str(self._out), "OUT")  # cards leave the machine
        last = [one_line(line, 400) for line in text.strip().splitlines()[-_LINES:]]
        reason = ": ".join([reason, *last[-1:]]) if reason else None
        self._write(
            name,
            "failed" if reason else "passed",
            reason,
            seconds=seconds,
            last_lines=last,
        )

    def _write(self, name: str, state: Any, reason: str | None, **more: Any) -> None:
        card = Card(
            step=name,
            state=state,
            reason=reason,
            at=self._now(),
            rehearsed=self._rehearses,
            **more,
        )
        self._cards[name] = card
        write_atomically(
            self._out / f"{name}.json",
            json.dumps(dataclasses.asdict(card), indent=1).encode(),
        )
        _tell(
            f"{card.at:.0f} s: {name} {state} after {card.seconds:.0f} s",
            *filter(None, [reason]),
        )

    def _summarise(self) -> None:
        states = dict.fromkeys(self._names, "not run")
        states |= {step.name: "waits" for step in self._waiting}
        states |= {running.step.name: "runs" for running in self._running}
        summary = markdown(self._machine, states, read(self._out, self._names))
        if summary != self._summary:
            write_atomically(self._out / _SUMMARY, summary.encode())
        self._summary = summary


def _can_import(module: str | None) -> bool:
    """Whether Python finds the module, perhaps in a folder that has appeared since."""
    importlib.invalidate_caches()
    return module is None or importlib.util.find_spec(module) is not None


@contextlib.contextmanager
def _no_stop() -> Iterator[None]:
    """Whoever stops a program often repeats it."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell(*parts: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody reads it any more
        print(*parts, flush=True)


def _kill(process: subprocess.Popen[bytes], mark: str) -> None:
    """With all that it has started, in other sessions too, and where it has died
    before them."""
    while started := [each for each in psutil.process_iter() if _mark_of(each) == mark]:
        for each in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait()
        # the next step needs the GPU's memory
        _, alive = psutil.wait_procs(started, timeout=_LAST_SECONDS)
        if alive:
            break
    process.wait()


def _mark_of(process: psutil.Process) -> str | None:
    mark: str | None = None
    with contextlib.suppress(psutil.Error, OSError):
        mark = process.environ().get(_MARK)
    return mark


def selected(
    listed: Sequence[Step], only: Collection[str], passed: Collection[str]
) -> list[Step]:
    """The steps, `only` these, not yet `passed`, and those that they come after:
    temporary files are gone."""
    wanted = set(only or [step.name for step in listed]) - set(passed)
    wanted |= {str(step.after) for step in listed if step.name in wanted}
    return [step for step in listed if step.name in wanted]


def wait(out: Path, names: Sequence[str], seconds: float) -> bool:
    """Wait until these steps have ended, without names all. Prints the summary.
    Returns whether they have passed."""
    started = time.monotonic()
    while (waited := time.monotonic() - started) < seconds:
        ended = bool(names) and len(read(out, names)) == len(names)
        if ended if _is_visited(out) else waited >= _BEGIN_SECONDS:
            break
        time.sleep(_LOOK_SECONDS)
    with contextlib.suppress(FileNotFoundError):
        print((out / _SUMMARY).read_text(encoding="utf-8"))
    print("the visit goes on" if _is_visited(out) else "no visit writes here now")
    cards = read(out, names or [path.stem for path in out.glob("*.json")])
    return len(cards) >= max(1, len(names)) and all(
        card.state in _WELL for card in cards.values()
    )


def _is_visited(out: Path) -> bool:
    """Whether another process has the lock of a visit."""
    layout = "hhqqi4x"  # of struct flock
    with contextlib.suppress(OSError), (out / _LOCK).open("rb") as file:
        lock = fcntl.fcntl(
            file,
            fcntl.F_GETLK,
            struct.pack(layout, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0),
        )
        return bool(struct.unpack(layout, lock)[0] != fcntl.F_UNLCK)
    return False


def _visit(options: argparse.Namespace, out: Path, only: Collection[str]) -> bool:
    """All of a visit. Returns whether no step has failed. Raises InputError before
    the first one begins."""
    machine, rehearse = this_machine(), options.rehearse
    if not machine.gpus and not rehearse:
        raise InputError(f"{_NO_GPU}: --rehearse runs the list without one")
    folder = tempfile.gettempdir()
    with contextlib.ExitStack() as stack:
        try:
            out.mkdir(parents=True, exist_ok=True)
            fcntl.lockf(
                stack.enter_context((out / _LOCK).open("ab")),
                fcntl.LOCK_EX | fcntl.LOCK_NB,
            )
        except OSError as error:
            why = (
                "another visit writes there"
                if isinstance(error, BlockingIOError)
                else error.strerror
            )
            raise InputError(f"{out}: {why}") from error
        short = folder if len(folder) <= _LONGEST else "/tmp"
        scratch = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="visit-", dir=short))
        )
        listed = steps(out, scratch, tiny=rehearse, gpu=bool(machine.gpus))
        names = [step.name for step in listed]
        cards = read(out, names).values() if options.resume else []
        passed = [
            card.step
            for card in cards
            if (card.state, card.rehearsed) == ("passed", rehearse)
        ]
        todo = selected(listed, only, passed)
        for step in todo:
            (out / f"{step.name}.json").unlink(missing_ok=True)
            if not options.resume:
                shutil.rmtree(out / step.name, ignore_errors=True)
        print(
            f"{len(todo)} steps, at most {options.until:g} s; {out / _SUMMARY} has the"
            " results so far",
            flush=True,
        )
        return Visit(names, out, scratch, machine, options).run(todo)


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument(
        "out", type=Path, metavar="DIR", help="where cards and logs are written"
    )
    parser.add_argument(
        "--until",
        type=float,
        default=_SECONDS,
        help=f"seconds for all steps (default: {_SECONDS:g})",
    )
    parser.add_argument(
        "--only", default="", metavar="STEP,...", help="run these steps only"
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="leave out the steps whose cards say that they passed",
    )
    parser.add_argument(
        "--rehearse", action="store_true", help="a tiny model and the smallest counts"
    )
    parser.add_argument(
        "--wait",
        metavar="STEP,...",
        help="wait for these steps of a visit that runs, or for all",
    )
    parser.add_argument(
        "--seconds", type=float, default=100.0, help="how long to wait (default: 100)"
    )
    options = parser.parse_args()
    out = options.out.absolute()
    known = ["all", *(step.name for step in steps(out, out, tiny=True, gpu=True))]
    names = [name for name in (options.wait or options.only).split(",") if name]
    for name in names:
        if name not in known:
            raise unknown("step", name, known)
    names = [] if "all" in names else names
    stop_in_order()
    # the terminal was closed
    signal.signal(signal.SIGHUP, signal.getsignal(signal.SIGTERM))
    if not (
        wait(out, names, options.seconds)
        if options.wait
        else _visit(options, out, names)
    ):
        raise SystemExit(1)


if __name__ == "__main__":
    run_main(main)
