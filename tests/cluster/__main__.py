"""A cluster's sweep on one machine: the real board, driver, records and live state,
and engines that cost nothing and die at random.

    python -m tests.cluster
    python -m tests.cluster --engines 100 --checkpoints 1000 --items 1800 --deaths 200
    python -m tests.cluster --pace 25             # at the pace of real engines
    python -m tests.cluster --virtual --seed 17   # one small execution, again
    python -m tests.cluster --virtual --runs 2000

`--virtual` has a clock and threads of its own (`virtual.py`): a seed decides failures,
which come in bursts, and whose turn it is. A seed that fails fails again.

Ray is pretended (`pretended_ray.py`), records are made up (`answers.py`); what both
take of the processor is taken off. What Ray itself takes in the driver's process is not
in the figures. Reported are the driver's processor time, as a share of one core at
`--engines` engines of 25 items a second, its memory, what is missing, double or
different at the end.
"""

import argparse
import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.harness import Options, count, run_main
from evaluator.core.errors import InputError, ResurfaceError
from tests.cluster.answers import Answers
from tests.cluster.pretended_ray import Deaths, PretendedRay
from tests.cluster.simulation import (
    Cost,
    Size,
    again,
    fault_of,
    made_up,
    mistakes,
    questions_of,
    simulate,
)

_GPUS = 8  # of a node
_PACE = 25.0  # items per second of an engine, for the share


def main() -> None:
    options = _options()
    if options.virtual:
        _virtual(options)
        return
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        found = _run(options, Path(folder) / "run")
        print(json.dumps(found))
        if found["mistakes"]:
            raise ResurfaceError(
                f"records are not those of an undisturbed run: {found['mistakes']}"
            )


def _options() -> argparse.Namespace:
    parser = Options(__doc__)
    parser.add_argument("--engines", type=count, default=100, help="(default: 100)")
    parser.add_argument("--checkpoints", type=count, default=100, help="(default: 100)")
    parser.add_argument(
        "--items",
        type=count,
        default=180,
        help="of each checkpoint; beyond 2700, copies (default: 180)",
    )
    parser.add_argument("--shard-items", type=count, default=20, help="(default: 20)")
    parser.add_argument(
        "--deaths",
        type=int,
        default=0,
        help="engines that die; a tenth of them with their nodes",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the deaths, or of --virtual"
    )
    parser.add_argument(
        "--pace",
        type=float,
        help="items per second of each engine (default: no engine takes time)",
    )
    parser.add_argument(
        "--work",
        type=Path,
        help="where the run is for a while (default: the temporary folder)",
    )
    parser.add_argument(
        "--virtual", action="store_true", help="small sweeps in virtual time"
    )
    parser.add_argument(
        "--runs",
        type=count,
        default=1,
        help="of --virtual, from --seed on (default: 1)",
    )
    options = parser.parse_args()
    if options.pace is not None and not 0 < options.pace <= 1e6:
        raise InputError(
            f"--pace {options.pace:g}: must be above 0 items per second, and at most a"
            " million"
        )
    return options


def _virtual(options: argparse.Namespace) -> None:
    """Raises ResurfaceError for the first seed with a fault."""
    for seed in range(options.seed, options.seed + options.runs):
        with tempfile.TemporaryDirectory(dir=options.work) as folder:
            first, fault = fault_of(seed, Path(folder) / "run")
        shown = {"seed": seed, "trace": first.trace, "died": first.died}
        print(json.dumps({**shown, "given_up": first.given_up}), flush=True)
        if fault:
            raise ResurfaceError(f"seed {seed}: {fault}; {again(seed)} repeats it")


def _run(options: argparse.Namespace, out: Path) -> dict[str, Any]:
    size = Size(
        engines=options.engines,
        checkpoints=options.checkpoints,
        items=options.items,
        shard_items=options.shard_items,
    )
    prepared = made_up(size)
    answers = Answers(questions_of(prepared))
    shards = size.checkpoints * -(-size.items // size.shard_items)
    nodes = options.deaths // 10
    ray = PretendedRay(
        nodes=-(-size.engines // _GPUS),
        gpus=_GPUS,
        answers=answers,
        deaths=Deaths(
            actors=options.deaths - nodes, nodes=nodes, within=shards, seed=options.seed
        ),
        pace=options.pace,
        load_seconds=0.0 if options.pace is None else 1.0,
    )
    cost = simulate(prepared, ray, out)
    found = _told(cost, size, ray)
    found["mistakes"] = mistakes(prepared, answers, out)
    return found


def _told(cost: Cost, size: Size, ray: PretendedRay) -> dict[str, Any]:
    given_up = [failure.text for failure in cost.outcome.failures]
    return {
        **asdict(size), "items": cost.outcome.items, "died": dict(ray.died), "given_up": given_up[:5],
        "wall_seconds": cost.wall_seconds, "driver_seconds": cost.processor_seconds,
        "pretended_seconds": cost.pretended_seconds, "share_of_a_core": cost.share_of_a_core(size.engines, _PACE),
        "megabytes_before": cost.megabytes_before, "megabytes": cost.megabytes,
    }  # fmt: skip


if __name__ == "__main__":
    run_main(main)
