"""The grader's share of an effect: what studies' runs show by the strict rule and by
the paper's.

    python -m benchmarks.studies.graders runs/silent-zone runs/calibration-text"""

from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.harness import Options, run_main
from benchmarks.studies.calibration_text import OPEN, RESAMPLES
from evaluator import open_run
from evaluator.core.errors import InputError, Json
from evaluator.report.notebook import OpenRun

EFFECTS = {
    "gap": "choice - open",
    "lost": "open lost - choice lost",  # as Delta_PR, but in points of accuracy
}
_ITEM = ["language", "item_id"]


def read(run: OpenRun) -> pd.DataFrame:
    """A row for each pruned checkpoint and item, with each effect by each rule."""
    outcomes = run.outcomes()
    asked = outcomes[outcomes["produced"].notna() & outcomes["kv_cache"].eq("auto")]
    asked = asked.merge(run.items()[["task", *_ITEM, "cluster"]])
    columns = ["recognised", *OPEN.values()]
    asked = asked.astype(dict.fromkeys(columns, "float64"))
    base = asked.loc[asked["base"].isna(), [*_ITEM, *columns]]
    pruned = asked[asked["requested_sparsity"].notna()]
    pruned = pruned.merge(base, on=_ITEM, suffixes=("", "_base"))
    choice = pruned["recognised"]
    found = pruned[["checkpoint", "cluster"]].copy()
    for rule, column in OPEN.items():
        found[f"gap_{rule}"] = choice - pruned[column]
        fell = pruned[f"{column}_base"] - pruned[column]
        found[f"lost_{rule}"] = fell - (pruned["recognised_base"] - choice)
    return found


def shares(rows: pd.DataFrame) -> pd.DataFrame:
    """A row for each effect: its mean over checkpoints and items by both rules, and the
    difference with its share of the paper's. 95 % intervals are over passages."""
    by_passage = rows.groupby("cluster")
    sizes = by_passage.size().to_numpy()
    chance = np.full(len(sizes), 1 / len(sizes))
    draws = np.random.default_rng(0).multinomial(len(sizes), chance, RESAMPLES)
    table = []
    for effect, title in EFFECTS.items():
        sums = by_passage[[f"{effect}_{rule}" for rule in OPEN]].sum().to_numpy()
        strict, paper = sums.sum(axis=0) / sizes.sum()
        drawn = (draws @ sums / (draws @ sizes)[:, None]).T
        row: Json = {"effect": title, "strict": strict, "paper": paper}
        row |= {"difference": paper - strict, "share": 1 - strict / paper}
        for name, means in (("strict", drawn[0]), ("difference", drawn[1] - drawn[0])):
            row[f"{name}_low"], row[f"{name}_high"] = np.percentile(means, [2.5, 97.5])
        table.append(row)
    return pd.DataFrame(table)


def main() -> None:
    options = Options(__doc__)
    options.add_argument("runs", type=Path, nargs="+")
    for path in options.parse_args().runs:
        rows = read(open_run(path))
        if rows.empty:
            raise InputError(f"{path}: no pruned checkpoint beside its base")
        print(f"{path.name}: {rows['checkpoint'].nunique()} pruned checkpoints")
        print(shares(rows).round(3).to_string(index=False))


if __name__ == "__main__":
    run_main(main)
