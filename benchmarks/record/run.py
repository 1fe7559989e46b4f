"""A record of evaluation throughput: a fixed division of work through the whole
product, with a card of it.

    resurface bench record --division closed [--model DIR] --out DIR      runs it:
    DIR/run, DIR/card.json resurface bench record --verify DIR [--model DIR]
    0: the card holds; 4: it does not

The division fixes items, prompts, probes, limits, seeds and dtype. Any model may run
it.
"""

import argparse
import os
import secrets
import subprocess
import sys
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import typer

from benchmarks import roofline
from benchmarks.harness import Options, count, run_main, settings
from benchmarks.record.card import (
    DIVISIONS,
    SMALLER,
    Refused,
    Submission,
    card_of,
    division_of,
)
from evaluator.core.errors import InputError, ResurfaceError, json_text
from evaluator.core.files import write_atomically
from launch.commands.running import run_and_report
from launch.provenance import count_gpus, query
from launch.run.directory.lock import need_place
from launch.run.events import Began, Event
from launch.sweep.models import resolve_model

DOES_NOT_HOLD = 4  # exit code
_LOOK_SECONDS = 0.5


class Memory(threading.Thread):
    """The most bytes that this process and its descendants held at once, and all
    GPUs; looked at twice a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.processes, self.gpus = 0, None if not count_gpus() else 0
        self.ended = threading.Event()

    def run(self) -> None:
        this = psutil.Process()
        while not self.ended.wait(_LOOK_SECONDS):
            held = 0
            for process in (this, *this.children(recursive=True)):
                with suppress(psutil.Error):
                    held += process.memory_info().rss
            self.processes = max(self.processes, held)
            if self.gpus is not None:
                with suppress(subprocess.CalledProcessError):
                    used = query("memory.used", None)
                    self.gpus = max(
                        self.gpus,
                        sum(int(mib) * 2**20 for mib in used if mib.isdecimal()),
                    )


def record(options: argparse.Namespace) -> None:
    """Run the division, write the card, print it as the last line. Raises
    ResurfaceError if a part of it failed."""
    division = division_of(
        f"{options.division}{SMALLER}{options.items}"
        if options.items
        else options.division
    )
    out, run, model = options.out, options.out / "run", resolve_model(options.model)
    need_place(run)
    if run.exists() or (out / "card.json").exists():
        raise InputError(
            f"{out}: --out: holds a record already; a record is one run from its start,"
            " use a new folder"
        )
    began = psutil.Process().create_time()
    stamp, first, memory = datetime.fromtimestamp(began, UTC), list[float](), Memory()
    run_id = f"{division.name}-{stamp:%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
    config = division.sweep(
        run_id, options.model, options.engine_args, options.resources
    )

    def on(event: Event, _: object) -> None:
        if isinstance(event, Began):
            first.append(time.time())

    memory.start()
    try:
        run_and_report(config, run, listeners=(on,))
    except typer.Exit:
        raise ResurfaceError(
            f"{run}: a part of the division failed: there is no card"
        ) from None
    wall_s = time.time() - began
    memory.ended.set()
    found = Submission.read(run, division, model)
    gpus = config.engine.tensor_parallel * len(
        {row["engine"] for row in found.run["engine_stats"]}
    )
    measured: dict[str, Any] = {
        "began": stamp.isoformat(timespec="seconds"),
        "wall_s": round(wall_s, 3),
        "start_s": round(first[0] - began, 3),
        "peak_memory_bytes": memory.processes,
        "peak_gpu_bytes": memory.gpus,
        "usable_cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),  # of the last minute: what else ran
        # Of one device, and how many like it computed.
        "peaks": {
            **roofline.measure(division.dtype),
            "devices": max(1, min(gpus, count_gpus() or 1)),
        },
        "peer": None,
    }
    card = card_of(found, division, model, measured)
    # the card is there before the peer begins
    for peer in (None, options.peer)[: 1 + bool(options.peer)]:
        card["peer"] = None if peer is None else _peer(options, found)
        write_atomically(out / "card.json", (json_text(card, indent=2) + "\n").encode())
    print(json_text(card))


def _peer(options: argparse.Namespace, found: Submission) -> dict[str, Any]:
    """The same items by vLLM's own calls (`bench pass` has them), in seconds once
    its engine is up."""
    from benchmarks.serving import workload
    from benchmarks.serving.sides import start

    options.task, options.items = found.config.task, len(found.plans)
    options.llm_args, options.context_tokens = {}, 0
    began = time.time()
    with (
        workload.written(options) as path,
        start("theirs", "everything", path) as theirs,
    ):
        result = theirs.round()
    answers = [row for row in found.rows if row["probe"] == "greedy"]
    named = [
        (f"{row['language']}/{row['item_id']}", row["token_ids"]) for row in answers
    ]
    return {
        "name": options.peer,
        "seconds": round(result["seconds"], 3),
        "wall_s": round(time.time() - began, 3),
        "items_per_second": float(f"{options.items / result['seconds']:.4g}"),
        "lacks": ["aligned_rank", "records"],
        "same_greedy_answers": sum(
            result["greedy"].get(item) == ids for item, ids in named
        ),
    }


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument(
        "--division", default="closed", choices=tuple(DIVISIONS), help="what is asked"
    )
    parser.add_argument(
        "--model",
        help=(
            "a checkpoint directory or hub id (default: the bundled one; the run's own)"
        ),
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="a new folder: DIR/run, DIR/card.json"
    )
    parser.add_argument(
        "--items",
        type=count,
        metavar="N",
        help="N items of each language: another division, a test",
    )
    parser.add_argument(
        "--engine-args",
        type=settings,
        default={},
        help="JSON: settings of our engine but its dtype",
    )
    parser.add_argument(
        "--resources",
        type=settings,
        default={},
        help='JSON: of the run, as {"engines": 2}',
    )
    parser.add_argument(
        "--peer", choices=("vllm",), help="then the same items by vLLM's own calls"
    )
    parser.add_argument(
        "--verify", type=Path, metavar="DIR", help="check the card of DIR"
    )
    parser.add_argument(
        "--seed",
        type=int,
        help="of the records to recompute (default: from their digest)",
    )
    parser.add_argument(
        "--share",
        type=float,
        default=0.02,
        help="of the records to recompute (default: 0.02)",
    )
    options = parser.parse_args()
    if (options.out is None) == (options.verify is None):
        raise InputError("give one of --out DIR, to run the division, and --verify DIR")
    if not 0 < options.share <= 1:
        raise InputError(
            f"--share: {options.share} is no share of the records (above 0, at most 1)"
        )
    if options.out is not None:
        options.model = options.model or "bundled"
        record(options)
        return
    from benchmarks.record.verify import verify

    try:
        print(
            "the card holds:"
            f" {verify(options.verify, options.model, options.seed, options.share)}"
        )
    except Refused as reason:
        print(
            f"{options.verify / 'card.json'}: the card does not hold: {reason}",
            file=sys.stderr,
        )
        raise SystemExit(DOES_NOT_HOLD) from None


if __name__ == "__main__":
    run_main(main)
