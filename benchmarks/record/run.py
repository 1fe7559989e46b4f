"""A record of evaluation throughput: a fixed division of work through the whole
product, in three rounds, with a card of it.

    resurface bench record --verify DIR
                                DIR has no card yet: draws a nonce, DIR/nonce.json
    resurface bench record --out DIR [--nonce NONCE] [--model DIR]
                                runs it: DIR/round-1, ..., DIR/card.json
    resurface bench record --verify DIR [--model DIR]
                                0: the card holds; 4: it does not

The division fixes prompts, probes, limits and dtype. The nonce picks questions and
seed. Any model may run it. Two more rows stand beside the rounds: a quarter of the
questions without prefix caching, and some by vLLM's own calls, without our patches.
"""

import argparse
import hashlib
import os
import secrets
import subprocess
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import psutil
import typer

import evaluator.engine.vllm
from benchmarks.harness import (
    Options,
    count,
    environment,
    module_command,
    run_main,
    settings,
)
from benchmarks.record.card import ROUNDS, Round, card_of, read_round
from benchmarks.record.division import DIVISIONS, ITEMS, Draw, division_of, stored_nonce
from evaluator.core.errors import (
    Document,
    InputError,
    Json,
    ResurfaceError,
    json_text,
    one_line,
    parse,
    read_bytes,
)
from evaluator.core.files import write_atomically
from evaluator.core.gpus import nvidia_smi
from evaluator.engine.processor import usable_cores
from evaluator.engine.vllm.start import serves_cpus
from evaluator.tasks.gazetteer import LANGUAGES
from launch.commands.call import Output, run_and_report
from launch.run.directory.lock import need_place
from launch.run.events import Began, Ended, Event
from launch.sweep.models import resolve_model

DOES_NOT_HOLD = 4  # exit code
_UNPATCHED = 20  # items of each language: vLLM's own calls are slow
_GPU_STATE = (
    "clocks.sm",
    "clocks.max.sm",
    "clocks.mem",
    "power.limit",
    "ecc.mode.current",
)


def record(options: argparse.Namespace) -> None:
    """Run the rounds, write the card, print it as the last line. Raises
    ResurfaceError if a part of it failed."""
    out: Path = options.out
    resolve_model(options.model)  # a missing one is bad input at once
    draw = Draw(
        division=division_of(options.division),
        nonce=_nonce(out, options.nonce),
        items=options.items,
    )
    draw.sweep("round", options.model, out, options.engine_args, options.resources)
    need_place(out / "round-1")
    draw.write(out / "items.jsonl")
    rounds = [
        _round(draw, options, f"round-{number + 1}") for number in range(options.rounds)
    ]
    unshared, without_patches = None, None
    if not options.only_rounds:
        unshared = _round(draw.quarter, options, "unshared", prefix_caching=False)
        without_patches = _without_patches(draw, options)
    stated = {
        "usable_cores": usable_cores(),
        "clocks": _clocks(),
        "patches": _patches("v1" if serves_cpus() else "v2"),
        "without_patches": without_patches,
    }
    card = card_of(draw, rounds, unshared, stated)
    write_atomically(out / "card.json", (json_text(card, indent=2) + "\n").encode())
    print(json_text(card))


def _nonce(out: Path, given: str | None) -> str:
    """The nonce of a new record in `out`: the given one, the folder's, or a new one,
    which is only the submitter's."""
    for name in ("card.json", "items.jsonl", "round-1"):
        if (out / name).exists():
            raise InputError(
                f"{out}: --out: holds a record already; a record is one run from its"
                " start, use a new folder"
            )
    stored = stored_nonce(out)
    if stored is None:
        return given or secrets.token_hex(8)
    if given not in (None, stored[0]):
        raise InputError(f"--nonce {given}: {out / 'nonce.json'} has {stored[0]}")
    return stored[0]


def _round(
    draw: Draw, options: argparse.Namespace, name: str, **engine: object
) -> Round:
    began, times = time.time(), list[float]()
    stamp = datetime.fromtimestamp(began, UTC)
    run = options.out / name
    config = draw.sweep(
        f"{draw.division.name}-{stamp:%Y%m%dT%H%M%SZ}-{name}-{draw.seed:x}",
        options.model,
        options.out / "items.jsonl",
        {**options.engine_args, **engine},
        options.resources,
    )

    def on(event: Event, _: object) -> None:
        if isinstance(event, Began | Ended):
            times.append(time.time())

    try:
        run_and_report(config, Output(run), listeners=(on,))
    except typer.Exit:
        raise ResurfaceError(
            f"{run}: a part of the division failed: there is no card"
        ) from None
    measured = {
        "began": stamp.isoformat(timespec="seconds"),
        "wall_s": round(time.time() - began, 3),
        "start_s": round(times[0] - began, 3),
        "steady_s": round(times[-1] - times[0], 3),
        "load": round(os.getloadavg()[0], 1),  # of the last minute: what else ran
    }
    return read_round(run, measured)


def _without_patches(draw: Draw, options: argparse.Namespace) -> Json:
    """Seconds of vLLM's own calls for a few questions: greedy answers, samples, beams
    and options; neither ranks nor records."""
    items = min(draw.items, _UNPATCHED) * len(LANGUAGES)
    folder = options.out / "unpatched"
    command = module_command(
        *("benchmarks.serving", "pass", "--sides", "theirs", "--rounds", 1),
        *("--model", options.model, "--task", f"jsonl:{options.out / 'items.jsonl'}"),
        *("--items", items, "--out", folder),
    )
    done = subprocess.run(command, env=environment(), stdout=subprocess.DEVNULL)
    file = folder / "pass-theirs.json"
    if done.returncode or not file.is_file():
        return {"failed": f"exit code {done.returncode}; see {folder.name}/"}
    result = parse(read_bytes(file), str(file))
    seconds = result["rounds"][-1]["seconds"]
    return {
        "items": items,
        "seconds": round(seconds, 3),
        "items_per_second": float(f"{items / seconds:.4g}"),
    }


def _patches(runner: str) -> Json:
    """Our replacements for parts of vLLM: the files, and a digest of their bytes."""
    folder = Path(evaluator.engine.vllm.__file__).parent
    shared = ("partial_blocks.py", "prompt_scores.py", "step_logprobs.py")
    names = [
        *shared,
        *(f"{runner}/{file.name}" for file in (folder / runner).glob("*.py")),
    ]
    hashed = hashlib.sha256()
    for name in sorted(names):
        hashed.update(name.encode() + (folder / name).read_bytes())
    return {"files": sorted(names), "digest": hashed.hexdigest()}


def _clocks() -> Json:
    """What the processor's or the GPUs' speed depends on, as the driver reports it."""
    with suppress(OSError, subprocess.CalledProcessError):
        lines = nvidia_smi(",".join(_GPU_STATE), None)
        if lines:
            return {
                name: [line.split(", ")[place] for line in lines]
                for place, name in enumerate(_GPU_STATE)
            }
    frequency = psutil.cpu_freq()
    if frequency is None:
        return {}
    return {"mhz": round(frequency.current), "most_mhz": round(frequency.max)}


def _verify(options: argparse.Namespace) -> None:
    from benchmarks.record.verify import Refused, verify

    folder: Path = options.verify
    card = folder / "card.json"
    if not card.exists() and not (folder / "round-1").exists():
        nonce = secrets.token_hex(8)
        stamp = datetime.now(UTC).isoformat(timespec="seconds")
        document: Document = {"nonce": nonce, "drawn": stamp}
        write_atomically(folder / "nonce.json", json_text(document).encode())
        print(f"{folder / 'nonce.json'}: a new nonce; the submitter runs\n")
        print(f"    resurface bench record --nonce {nonce} --out DIR\n")
        return
    try:
        holds = verify(folder, options.model, options.seed, options.share)
    except Refused as reason:
        print(f"{card}: the card does not hold: {one_line(reason)}", file=sys.stderr)
        raise SystemExit(DOES_NOT_HOLD) from None
    print(f"the card holds: {holds}")


def main() -> None:
    parser = Options(__doc__)
    add = parser.add_argument
    add("--division", default="closed", choices=tuple(DIVISIONS), help="the work")
    model = "a checkpoint directory or hub id (default: the bundled one; the run's own)"
    add("--model", help=model)
    new = "a new folder: DIR/round-1, ..., DIR/card.json"
    add("--out", type=Path, metavar="DIR", help=new)
    add(
        "--nonce", help="what the verifier drew (default: DIR/nonce.json, or a new one)"
    )
    items = f"N items of each language (default: {ITEMS})"
    add("--items", type=count, metavar="N", default=ITEMS, help=items)
    add("--rounds", type=count, default=ROUNDS, help=f"rounds (default: {ROUNDS})")
    only = "no rows without prefix caching and without patches"
    add("--only-rounds", action="store_true", help=only)
    engine = "JSON: settings of our engine but its dtype"
    add("--engine-args", type=settings, default={}, help=engine)
    resources = 'JSON: of the run, as {"engines": 2}'
    add("--resources", type=settings, default={}, help=resources)
    check = "check the card of DIR; draw a nonce if there is none"
    add("--verify", type=Path, metavar="DIR", help=check)
    seed = "of the records to recompute (default: a new one)"
    add("--seed", type=int, help=seed)
    share = "of the records to recompute (default: 0.02)"
    add("--share", type=float, default=0.02, help=share)
    options = parser.parse_args()
    if (options.out is None) == (options.verify is None):
        raise InputError("give one of --out DIR, to run the division, and --verify DIR")
    if not 0 < options.share <= 1:
        raise InputError(
            f"--share: {options.share} is no share of the records (above 0, at most 1)"
        )
    if options.out is None:
        _verify(options)
        return
    options.model = options.model or "bundled"
    options.out = options.out.absolute()
    record(options)


if __name__ == "__main__":
    run_main(main)
