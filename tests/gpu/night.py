"""Runs what should be run first on a GPU, unattended, in half an hour: imports, one engine, the doctor, speed, tests.

    make gpu-card OUT=DIR               or: python -m tests.gpu.night --out DIR [--resume] [--only STEP,...]
    python -m tests.gpu.night --out DIR --only pass,score,swap --shape 8b          for a second half hour
    python -m tests.gpu.night --out DIR --tiny                                     a rehearsal, also without a GPU

Each step is a process with a time limit. A step that fails or exceeds its limit does not stop the list, unless it is
`imports`. Each step leaves DIR/STEP.json (its card) and DIR/STEP.log; DIR/night.md is the summary. Engines run on a
random model with the shape of Qwen3-0.6B. Models and caches lie in DIR/night.tmp, which is removed at the end. Triton's
kernels lie in DIR/triton, unless TRITON_CACHE_DIR is set. The exit code is 1 if a step failed."""

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.harness import Options, environment, run_main
from benchmarks.pruning.synthetic import SHAPES
from evaluator.core.errors import InputError, one_line, unknown
from evaluator.store.files import write_atomically
from launch.doctor.machine import Machine, this_machine
from launch.process import stop_in_order
from tests.gpu.steps import SCRATCH, Card, Step, markdown, read, said, steps

_ROOT = Path(__file__).resolve().parents[2]
_LINES = 20  # of its output, on a step's card
_LONGEST = 54  # characters of DIR: vLLM's sockets lie in DIR/night.tmp, and their paths have at most 107
_LAST_SECONDS = 30  # for killed processes to be gone
_NO_GPU = "no NVIDIA GPU answers on this machine (nvidia-smi)"
_DECISIVE = "imports"  # where it fails, no later step can work


def variables(out: Path) -> dict[str, str]:
    """The environment of every step: it writes nothing outside `out`."""
    scratch = (
        "TMPDIR",
        "XDG_CACHE_HOME",
        "XDG_CONFIG_HOME",
        "FLASHINFER_WORKSPACE_BASE",
        "HYPOTHESIS_STORAGE_DIRECTORY",
    )
    fixed = {"HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0", "VLLM_USE_FLASHINFER_SAMPLER": "0"}
    fixed |= {
        "VLLM_LOGGING_LEVEL": "INFO",
        "PYTHONDONTWRITEBYTECODE": "1",
        "CUDA_CACHE_PATH": str(out / SCRATCH / "cuda"),
    }
    kernels = os.environ.get("TRITON_CACHE_DIR") or str(out / "triton")
    return environment(**dict.fromkeys(scratch, str(out / SCRATCH)), **fixed, TRITON_CACHE_DIR=kernels)


def run(step: Step, out: Path) -> Card:
    """One step, to its end or its time limit."""
    log, began = out / f"{step.name}.log", time.monotonic()
    with _watched(step, out), log.open("wb") as output:
        files: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
        process = subprocess.Popen(step.command, env=variables(out), cwd=_ROOT, start_new_session=True, **files)
        code: int | None = None
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(step.seconds)
        finally:  # also where this process is stopped
            _end(process)
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    last = [one_line(line, 300) for line in lines[-_LINES:]]
    reason = f"exceeded {step.seconds} s" if code is None else f"exit code {code}" if code else None
    return Card(
        step=step.name,
        state="timed out" if code is None else "failed" if code else "passed",
        reason=": ".join([reason, *last[-1:]]) if reason else None,
        seconds=round(time.monotonic() - began, 1),
        return_code=code,
        command=step.command,
        last_lines=last,
        result=_result(lines),
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a step with all that it has started, also in other sessions."""
    started = []
    with contextlib.suppress(psutil.NoSuchProcess):
        started = psutil.Process(process.pid).children(recursive=True)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for each in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    process.wait()
    psutil.wait_procs(started, timeout=_LAST_SECONDS)  # the next step needs the GPU's memory


@contextlib.contextmanager
def _watched(step: Step, out: Path) -> Iterator[None]:
    """The GPU's activity during a pass, second by second: DIR/STEP.dmon.log."""
    if not step.name.startswith("pass") or shutil.which("nvidia-smi") is None:
        yield
        return
    with (out / f"{step.name}.dmon.log").open("wb") as log:
        process = subprocess.Popen(["nvidia-smi", "dmon", "-s", "u"], stdout=log, stderr=log)
        try:
            yield
        finally:
            process.kill()
            process.wait()


def _result(lines: Sequence[str]) -> dict[str, Any] | None:
    for line in reversed(lines):
        with contextlib.suppress(ValueError):
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
    return None


def chosen(listed: Sequence[Step], only: Collection[str], passed: Collection[str]) -> list[Step]:
    """The steps, `only` these, not yet `passed`, and the model if needed. Raises InputError for an unknown step."""
    names = {step.name for step in listed}
    for name in only:
        if name not in names:
            raise unknown("step", name, names)
    wanted = set(only or names) - set(passed)
    if any("model" in step.needs for step in listed if step.name in wanted):
        wanted.add("model")
    return [step for step in listed if step.name in wanted]


def check_model(listed: Sequence[Step], out: Path) -> None:
    """Raises InputError if `out` has cards of another model: a summary is of one."""
    for step in listed:
        card = read(out, [step.name]).get(step.name)
        if step.name == "model" and card is not None and list(card.command) != step.command:
            raise InputError(f"{out}: --out: it has the cards of another --shape; name another folder")


def night(listed: Sequence[Step], todo: Sequence[Step], machine: Machine, out: Path) -> bool:
    """Run the steps of `todo`, and rewrite the summary of all after each. Returns whether none failed."""
    for step in todo:
        (out / f"{step.name}.json").unlink(missing_ok=True)
    well = True
    for step in todo:
        lacks = "gpu" in step.needs and not machine.gpus
        card = Card(step=step.name, state="skipped", reason=_NO_GPU) if lacks else run(step, out)
        write_atomically(out / f"{step.name}.json", json.dumps(dataclasses.asdict(card), indent=1).encode())
        names = [each.name for each in listed]
        cards = read(out, names)
        write_atomically(out / "night.md", markdown(machine, names, cards).encode())
        print(f"{step.name}: {card.state}, {card.seconds:.0f} s: {said(card, cards)}", flush=True)
        well = well and card.state in ("passed", "skipped")
        if step.name == _DECISIVE and not well:
            print(f"step {_DECISIVE} did not pass, so no other step can work: the list ends here", flush=True)
            break
    shutil.rmtree(out / SCRATCH, ignore_errors=True)
    print(f"summary: {out / 'night.md'}")
    return well


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where cards and logs are written")
    parser.add_argument("--resume", action="store_true", help="leave out the steps whose cards say that they passed")
    parser.add_argument("--only", action="append", default=[], metavar="STEP,...", help="run these steps only")
    parser.add_argument("--shape", choices=SHAPES, default="0.6b", help="of the random model (default: 0.6b)")
    parser.add_argument("--tiny", action="store_true", help="a tiny model and the smallest counts")
    options = parser.parse_args()
    out, machine = options.out.absolute(), this_machine()
    if len(str(out)) > _LONGEST:
        raise InputError(f"{out}: --out: more than {_LONGEST} characters leave no room for the names of sockets")
    if not machine.gpus and not options.tiny:
        raise InputError(f"{_NO_GPU}: --tiny rehearses the list without one")
    listed = steps(out, shape="tiny" if options.tiny else options.shape, tiny=options.tiny, gpu=bool(machine.gpus))
    passed = [name for name, card in read(out, [each.name for each in listed]).items() if card.state == "passed"]
    only = [name for each in options.only for name in each.split(",")]
    todo = chosen(listed, only, passed if options.resume else ())
    check_model(listed, out)
    try:
        (out / SCRATCH).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out}: --out: {error.strerror}") from error
    stop_in_order()
    if not night(listed, todo, machine, out):
        raise SystemExit(1)


if __name__ == "__main__":
    run_main(main)
