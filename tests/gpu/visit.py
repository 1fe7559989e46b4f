"""What should run first on a GPU, unattended, in about ten minutes: does it work, is
it right, how fast is it?

    make gpu-card OUT=OUT                       or: python -m tests.gpu.visit OUT
    python -m tests.gpu.visit OUT --until 540 --only imports,model,pass
    python -m tests.gpu.visit OUT --wait imports,full --seconds 130

Steps work side by side, each in a process with a limit. Then the timed ones work alone.
OUT/NAME.log is a step's output, OUT/NAME.json its card when it has ended, and
OUT/summary.md the table of all. `--wait` prints it as soon as these steps have ended.
Without a GPU, models are tiny and tests of a GPU are skipped. The exit code is 1 if a
step did not pass."""

import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from benchmarks.harness import Options, environment, module_command, run_main
from evaluator.core.errors import Json, one_line, unknown
from evaluator.core.files import write_atomically
from evaluator.engine.processor import usable_cores
from launch.process import stop_in_order
from launch.provenance import gpus, this_machine
from launch.sweep.models import BUNDLED_MODEL

TESTS = {
    "two-runs": "test_engine_gpu.py::test_equal_runs_do_not_mix",
    "deterministic": "test_engine_gpu.py::test_deterministic_engine_ignores_batch",
    "shared-gpu": "test_engine_gpu.py::test_shared_gpu_keeps_shares",
    "prune-tests": "test_prune_cuda.py",
}
TINY = ("heads-64", "heads-256", "window")  # random models that agree.py makes
_ROOT = Path(__file__).resolve().parents[2]
_MOST = min(8, max(1, usable_cores() // 2))  # steps at once
_BESIDE = 0.55  # share of the time after which the timed steps begin
_PATIENCE_ON_A_CPU = 10  # how much longer the limits are
_SECONDS = 840.0  # of a quarter of an hour
_LINES = 12  # of its output, on a step's card
_MARK = "RESURFACE_VISIT_STEP"  # all processes of a step have it


@dataclass(frozen=True, slots=True)
class Step:
    """A process and its limit in seconds. It begins when the step `after` has
    passed."""

    name: str
    seconds: float
    command: Sequence[str]
    after: str | None = None
    timed: bool = False  # nothing else works beside it


def steps(out: Path, scratch: Path, *, gpu: bool) -> list[Step]:
    """The whole list, the cheapest decisive ones first. Results go to `out`, models
    to `scratch`."""
    shape, tokens, items, samples = ("0.6b", 300, 200, 128)
    larger = "8b"
    sides: tuple[object, ...] = ("full,theirs", "--kv-cache-gib", 4)
    patience = 1
    if not gpu:
        shape, tokens, items, samples = ("tiny", 60, 4, 2)
        larger = "tiny"
        sides = ("eager,theirs",)
        patience = _PATIENCE_ON_A_CPU
    model, large, fp8 = scratch / shape, scratch / "8b", scratch / "8b-fp8"
    listed: list[Step] = []

    def add(
        name: str,
        seconds: float,
        command: Sequence[str],
        *,
        after: str | None = None,
        timed: bool = False,
    ) -> None:
        listed.append(Step(name, patience * seconds, command, after, timed))

    def agree(name: str, checkpoint: object, dtype: str, graphs: str) -> None:
        command = module_command(
            "tests.gpu.agree", checkpoint, dtype, "--graphs", graphs, "--tokens", tokens
        )
        add(name, 220, command, after="model" if checkpoint == model else None)

    libraries = partial(module_command, "tests.gpu.libraries")
    resurface = partial(module_command, "launch.commands.cli")
    add("imports", 60, libraries("imports"))
    agree("eager", BUNDLED_MODEL, "bfloat16", "false")
    add("model", 150, module_command("benchmarks.pruning.synthetic", shape, model))
    agree("full", BUNDLED_MODEL, "bfloat16", "full")
    add("plain", 120, libraries("plain"))
    sweep = resurface("sweep", "tests/gpu/eval.yaml", "--out", out / "eval")
    add("eval", 200, sweep, after="full")  # Ray may come last to a machine
    agree("piecewise", BUNDLED_MODEL, "bfloat16", "piecewise")
    agree("float32", BUNDLED_MODEL, "float32", "full")
    agree("large", model, "bfloat16", "full")
    prune = ("--method", "sparsegpt", "--sparsity", 0.5, "--calibration", "gazetteer")
    command = resurface(
        "prune", model, *prune, "--samples", samples, "--out", scratch / "pruned"
    )
    add("prune", 170, command, after="model")
    agree("large-float32", model, "float32", "full")
    add("8b", 150, module_command("benchmarks.pruning.synthetic", larger, large))
    compress = ("compress", large, "--method", "rtn", "--scheme", "FP8_DYNAMIC")
    add("8b-fp8", 150, resurface(*compress, "--out", fp8), after="8b")
    for name in TINY:
        for graphs in ("full", "piecewise"):
            agree(f"{name}-{graphs}", name, "bfloat16", graphs)
    for name, test in TESTS.items():
        pytest = ("-m", "gpu", "-p", "no:cacheprovider", f"tests/gpu/{test}")
        add(name, 150, module_command("pytest", *pytest))
    passes = ("--items", items, "--context-tokens", tokens, "--rounds", 1)
    command = resurface(
        *("bench", "pass", "--model", model, *passes),
        *("--out", out / "pass", "--sides", *sides),
    )
    add("calibrate", 40, libraries("calibrate"), timed=True)
    add("pass", 160, command, after="model", timed=True)
    add("profile", 90, libraries("profile", model, items), after="model", timed=True)
    pairs = "one,two"
    for name, checkpoint, after, rows, seconds in (
        ("engines", model, "model", "auto", 240),
        ("engines-8b", large, "8b", pairs, 240),
        ("changes", model, "model", "1024-rows,256-rows,BLNHC,sync-check", 240),
        ("engines-8b-fp8", fp8, "8b-fp8", pairs, 120),
    ):
        where = (checkpoint, out / name)
        only = ("--only", rows if gpu else "256-rows")
        command = module_command("tests.gpu.engines", *where, *only)
        add(name, seconds, command, after=after, timed=True)
    add("demo", 200, resurface("demo", "--out", out / "demo"), timed=True)
    add("doctor", 200, resurface("doctor", "--out", out / "doctor.md"), timed=True)
    return listed


class Visit:
    """Runs steps, and ends all after `until` seconds."""

    def __init__(self, out: Path, scratch: Path, until: float) -> None:
        self._out, self._scratch, self._until = out, scratch, until
        self._began = time.monotonic()
        self._summarising = threading.Lock()
        self._rows: dict[str, str] = {}

    def run(self, todo: Sequence[Step]) -> bool:
        """Whether every step has passed."""
        timed = [step for step in todo if step.timed]
        share = _BESIDE if timed else 1.0
        ends: dict[str, Future[bool]] = {}
        try:
            with ThreadPoolExecutor(_MOST) as pool:
                for step in todo:
                    if not step.timed:
                        end = pool.submit(self._run, step, share * self._until, ends)
                        ends[step.name] = end
            with ThreadPoolExecutor(1) as pool:
                for step in timed:
                    ends[step.name] = pool.submit(self._run, step, self._until, ends)
        except BaseException:
            self._until = 0.0
            _kill(str(self._scratch))
            raise
        return all(end.result() for end in ends.values())

    def _run(self, step: Step, until: float, ends: dict[str, Future[bool]]) -> bool:
        """Run a step and write its card. Steps before it in the list are in `ends`."""
        if step.after is not None and not ends[step.after].result():
            return self._write(step, "not run", f"step {step.after} did not pass")
        began = self._now()
        seconds = min(step.seconds, min(until, self._until) - began)
        if seconds <= 0:
            return self._write(step, "not run", "there was no time left")
        mark = f"{self._scratch}/{step.name}"
        own = {**self._variables(), _MARK: mark}
        if not step.timed:
            own["OMP_NUM_THREADS"] = str(max(1, usable_cores() // _MOST))
        reason = None
        with (self._out / f"{step.name}.log").open("wb") as log:
            process = subprocess.Popen(
                step.command,
                env=own,
                cwd=_ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            try:
                if code := process.wait(seconds):
                    reason = f"exit code {code}"
            except subprocess.TimeoutExpired:
                reason = f"exceeded {seconds:.0f} s"
            _kill(mark)  # the next step needs the GPU's memory
            process.wait()
        return self._write(step, "failed" if reason else "passed", reason, began)

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _write(
        self, step: Step, state: str, reason: str | None, began: float | None = None
    ) -> bool:
        """A step's card, and the summary of all so far."""
        card: Json = {"step": step.name, "state": state, "reason": reason}
        card |= {"at": self._now(), "seconds": 0.0, "last_lines": []}
        if began is not None:
            card["seconds"] = self._now() - began
            text = (self._out / f"{step.name}.log").read_text(errors="replace")
            text = text.replace(str(self._out), "OUT")  # cards leave the machine
            lines = text.strip().splitlines()[-_LINES:]
            card["last_lines"] = [one_line(line, 400) for line in lines]
        written = json.dumps(card, indent=1).encode()
        write_atomically(self._out / f"{step.name}.json", written)
        said = "; ".join(filter(None, [reason, *card["last_lines"][-1:]]))
        said = said.replace("|", r"\|")
        row = f"| {step.name} | {state} | {card['seconds']:.0f} | {card['at']:.0f} |"
        with self._summarising:
            self._rows[step.name] = f"{row} {said} |"
            lines = ["# A visit", "", "| machine | |", "|---|---|"]
            lines += [f"| {name} | {fact} |" for name, fact in this_machine().items()]
            lines += [
                "",
                "| step | state | seconds | at | result |",
                "|---|---|---|---|---|",
            ]
            text = "\n".join([*lines, *self._rows.values(), ""])
            write_atomically(self._out / "summary.md", text.encode())
            print(f"{card['at']:.0f} s: {step.name} {state} {reason or ''}", flush=True)
        return state == "passed"

    def _variables(self) -> dict[str, str]:
        """The environment of every step."""
        folders = (
            "TMPDIR",
            "XDG_CACHE_HOME",
            "XDG_CONFIG_HOME",
            "FLASHINFER_WORKSPACE_BASE",
            "CUDA_CACHE_PATH",
        )
        kernels = os.environ.get("TRITON_CACHE_DIR") or str(self._out / "triton")
        return environment(
            **dict.fromkeys(folders, str(self._scratch)),
            HF_HUB_OFFLINE="1",
            RAY_USAGE_STATS_ENABLED="0",
            VLLM_USE_FLASHINFER_SAMPLER="0",
            VLLM_LOGGING_LEVEL="INFO",
            VLLM_HOST_IP="127.0.0.1",
            PYTHONUNBUFFERED="1",
            TRITON_CACHE_DIR=kernels,
        )


def _kill(mark: str) -> None:
    """All processes whose mark begins so, in other sessions too."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(_MARK, "").startswith(mark):
                process.kill()


def wait(out: Path, names: Sequence[str], seconds: float) -> bool:
    """Wait until these steps have ended. Prints the summary. Returns whether they have
    passed."""
    cards = [out / f"{name}.json" for name in names]
    until = time.monotonic() + seconds
    while time.monotonic() < until and not all(card.is_file() for card in cards):
        time.sleep(0.2)
    with suppress(FileNotFoundError):
        print((out / "summary.md").read_text(encoding="utf-8"))
    return all(
        card.is_file() and json.loads(card.read_bytes())["state"] == "passed"
        for card in cards
    )


def main() -> None:
    parser = Options(__doc__)
    add = parser.add_argument
    add("out", type=Path, metavar="OUT", help="where cards and logs are written")
    add("--until", type=float, default=_SECONDS, help="seconds for all steps")
    add("--only", default="", metavar="NAME,...", help="run these steps only")
    add("--wait", default="", metavar="NAME,...", help="wait for these of a visit")
    add("--seconds", type=float, default=100.0, help="how long to wait")
    options = parser.parse_args()
    out = options.out.absolute()
    names = [name for name in (options.wait or options.only).split(",") if name]
    known = {step.name: step for step in steps(out, out, gpu=True)}
    for name in names:
        if name not in known:
            raise unknown("step", name, known)
    if options.wait:
        raise SystemExit(not wait(out, names, options.seconds))
    stop_in_order()
    out.mkdir(parents=True, exist_ok=True)
    # a short name: sockets lie in it, and their paths have at most 107 characters
    with tempfile.TemporaryDirectory(prefix="visit-", dir="/tmp") as scratch:
        listed = steps(out, Path(scratch), gpu=bool(gpus()))
        wanted = {*(names or known)}
        wanted |= {str(known[name].after) for name in wanted}
        todo = [step for step in listed if step.name in wanted]
        for step in todo:
            (out / f"{step.name}.json").unlink(missing_ok=True)
        raise SystemExit(not Visit(out, Path(scratch), options.until).run(todo))


if __name__ == "__main__":
    run_main(main)
