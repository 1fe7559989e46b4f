"""The error rates of the gate, measured: `resurface bench gate`.

    resurface bench gate                               # every part
    resurface bench gate --only false_pass             # some parts

Of many cases the worst is bad by chance too. So the worst ones are drawn again, and
only these rates are reported. Each part prints a table. The JSON line has a key a part.
The exit code is 1 where a rate is surely above its bound.
"""

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.gate import cases
from benchmarks.gate.cases import Case
from benchmarks.harness import Options, count, print_table, run_main
from evaluator.core.errors import Json, ResurfaceError, json_text, unknown
from evaluator.deciding.decision import BLOCK_LEVEL, PASS_LEVEL
from evaluator.metrics.intervals import Mean

_SURE = 0.01  # the simulation's own intervals have 99 %
_BOUNDS = {"PASS": PASS_LEVEL, "BLOCK": BLOCK_LEVEL}


@dataclass(frozen=True)
class Rate:
    count: int
    runs: int

    @property
    def ends(self) -> tuple[float, float]:
        hits = (np.arange(self.runs) < self.count).astype(np.float64)
        mean = Mean(hits, np.arange(self.runs))
        return mean.lower(_SURE / 2), mean.upper(_SURE / 2)

    def figures(self) -> dict[str, float]:
        low, high = self.ends
        rate = self.count / self.runs
        return {"rate": rate, "low": low, "high": high, "runs": self.runs}

    def __str__(self) -> str:
        return "{rate:.2%} ({low:.2%} to {high:.2%})".format(**self.figures())


def rate(case: Case, runs: int, seed: Sequence[int]) -> Rate:
    """How often runs of this case end with its verdict."""
    rng = np.random.default_rng(seed)
    return Rate(sum(case.ends(rng) for _ in range(runs)), runs)


def worst(
    some: Iterable[Case], *, runs: int, again: int, seed: int, kept: int = 3
) -> list[tuple[Case, Rate]]:
    """The cases that end most often with their wrong verdict, of `runs` runs each.
    Their rates are those of `again` new runs."""
    counted = []
    for number, case in enumerate(some):
        first = rate(case, runs, (seed, number))
        counted.append((-first.count, number, case))
    rates = []
    for _, number, case in sorted(counted, key=lambda row: row[:2])[:kept]:
        rates.append((case, rate(case, again, (seed + 1, number))))
    return sorted(rates, key=lambda row: -row[1].count)


def _errors(options: argparse.Namespace, some: Iterable[Case]) -> Json:
    """The worst of the cases, which have one verdict."""
    rows = worst(some, runs=options.runs, again=options.again, seed=options.seed)
    verdict = rows[0][0].verdict
    print_table(f"wrong {verdict}", ("case", "rate (99 % interval)"), rows)
    bound = _BOUNDS[verdict]
    return {
        "bound": bound,
        "worst": str(rows[0][0]),
        **rows[0][1].figures(),
        "above_bound": any(measured.ends[0] > bound for _, measured in rows),
    }


PARTS: dict[str, Callable[[argparse.Namespace], Json]] = {
    "false_pass": lambda options: _errors(options, cases.at_tolerance(cases.worlds)),
    "false_block": lambda options: _errors(options, cases.without_loss(cases.worlds)),
}


def main() -> None:
    parser = Options(__doc__)
    add = parser.add_argument
    add("--runs", type=count, default=400, help="of each case (default: 400)")
    again = "new runs of the worst cases (default: 10000)"
    add("--again", type=count, default=10_000, help=again)
    add("--seed", type=int, default=0)
    parts = f"parts: {', '.join(PARTS)} (default: all)"
    add("--only", default=",".join(PARTS), help=parts)
    options = parser.parse_args()
    names = options.only.split(",")
    for name in names:
        if name not in PARTS:
            raise unknown("part", name, PARTS)
    found = {name: PARTS[name](options) for name in names}
    counts = {"runs": options.runs, "again": options.again}
    print(json_text({"benchmark": "gate", **counts, **found}))
    above = [name for name, part in found.items() if part.get("above_bound")]
    if above:
        raise ResurfaceError(f"above the bound: {', '.join(above)}")


if __name__ == "__main__":
    run_main(main)
