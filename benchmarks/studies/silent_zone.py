"""The study "silent zone" (silent-zone.md): its run, and its numbers.

    python -m benchmarks.studies.silent_zone --task xquad:DIR --out runs/silent-zone

The same command resumes. It prints the table of the page, and writes OUT.csv and
OUT.svg."""

import hashlib
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import yaml
from scipy.stats import rankdata

from benchmarks.harness import Options, count, run_main
from benchmarks.studies.running import drawn, finished
from evaluator.core.errors import Json
from evaluator.core.files import csv_bytes, write_atomically
from evaluator.metrics.table import Dots, Series
from evaluator.report.notebook import OpenRun
from evaluator.tasks.loading import load_task, select

SWEEP = Path(__file__).with_name("silent-zone.yaml")
ZONE = 0.06  # the largest drop of choice
DRAWS = 2000
UNANSWERED = ("kld", "top_1", "choice", "choice_flips", "margin", "perplexity")
ANSWERED = ("open", "open_flips", "mc_only")
OUTCOMES = ("open", "known", "open_paper")
TEXT = "passages"  # the task of half A's passages
Floats = npt.NDArray[np.float64]


class Quantity(NamedTuple):
    """A number of each checkpoint: a quotient of two sums over contexts, by checkpoint
    and context."""

    over: Floats
    under: Floats

    def value(self, contexts: Floats) -> Floats:
        """Of each checkpoint. `contexts`: how often each context counts."""
        found: Floats = (self.over @ contexts) / (self.under @ contexts)
        return found


class Half(NamedTuple):
    """The quantities of one half of the contexts."""

    contexts: int
    quantities: dict[str, Quantity]

    def values(self, names: tuple[str, ...], contexts: Floats) -> Floats:
        """names x checkpoints."""
        return np.array([self.quantities[name].value(contexts) for name in names])


def halves(contexts: pd.Series) -> pd.Series:
    """The half of each item, A or B, by the name of its context."""
    names = sorted({*contexts}, key=lambda name: hashlib.sha256(name.encode()).digest())
    first = {*names[: (len(names) + 1) // 2]}
    return contexts.map(lambda name: "A" if name in first else "B")


def read(run: OpenRun) -> dict[str, Half]:
    """Both halves, of the compressed checkpoints in alphabetical order."""
    items, outcomes = run.items(), run.outcomes()
    items = items.assign(context=items["cluster"].astype(str))
    asked = outcomes[outcomes["produced"].notna()]
    asked = asked.merge(items[["task", "language", "item_id", "context"]])
    columns = _numbers(asked)
    item = ["language", "item_id"]
    base = columns[asked["base"].isna() & ~asked["checkpoint"].str.contains("~")]
    both = columns.merge(base, on=[*item, "context"], suffixes=("", "_base"))
    names = sorted({*asked.loc[asked["base"].notna(), "checkpoint"]})
    names = [name for name in names if "~" not in name]
    read = run.table("perplexity").dropna(subset="perplexity_ratio")
    rise = np.log(
        read.drop_duplicates("checkpoint").set_index("checkpoint")["perplexity_ratio"]
    )
    found = {}
    for half in ("A", "B"):
        here = both[halves(both["context"]) == half]
        quantities = dict(_quantities(here, names))
        ones = np.ones((len(names), here["context"].nunique()))
        rises = rise.reindex(names).to_numpy(np.float64)[:, None]
        quantities["perplexity"] = Quantity(rises * ones, ones)
        found[half] = Half(here["context"].nunique(), quantities)
    return found


def _numbers(asked: pd.DataFrame) -> pd.DataFrame:
    """What the quantities are made of, as floats."""
    numbers = {
        "open": asked["produced"],
        "open_paper": asked["greedy_paper"],
        "choice": asked["recognised"],
        "margin": asked["choice_margin"],
        "kld": asked["fidelity_greedy_kld"],
        "same_top": asked["fidelity_greedy_same_top"],
        "positions": asked["fidelity_greedy_positions"],
    }
    frame = pd.DataFrame(numbers).astype("float64")
    names = ["checkpoint", "language", "item_id", "context"]
    return pd.concat([asked[names], frame], axis=1)


def _quantities(here: pd.DataFrame, names: list[str]) -> Iterator[tuple[str, Quantity]]:
    """The quantities of one half but for perplexity, by name."""
    known = (here["open_base"] == 1) & (here["choice_base"] == 1)
    one = pd.Series(1.0, here.index)
    parts = {
        "kld": (here["kld"], here["positions"]),
        "top_1": (here["positions"] - here["same_top"], here["positions"]),
        "choice": (here["choice_base"] - here["choice"], one),
        "choice_flips": ((here["choice_base"] - here["choice"]).abs(), one),
        "margin": (here["margin_base"] - here["margin"], one),
        "open": (here["open_base"] - here["open"], one),
        "open_flips": ((here["open_base"] - here["open"]).abs(), one),
        "mc_only": (known & (here["open"] == 0) & (here["choice"] == 1), known),
        "known": (known & (here["open"] == 0), known),
        "open_paper": (here["open_paper_base"] - here["open_paper"], one),
    }
    for name, sides in parts.items():
        sums = []
        for side in sides:
            by = [here["checkpoint"], here["context"]]
            table = side.astype("float64").groupby(by).sum().unstack(fill_value=0)
            sums.append(table.reindex(names).to_numpy())
        yield name, Quantity(*sums)


def rho(one: Floats, other: Floats) -> float:
    """Spearman's correlation."""
    ranks = rankdata(one), rankdata(other)
    if min(np.ptp(each) for each in ranks) == 0:
        return 0.0
    return float(np.corrcoef(*ranks)[0, 1])


def study(half: dict[str, Half], count: int = DRAWS) -> pd.DataFrame:
    """The table of the page: a row for each predictor and outcome."""
    ones = {each: np.ones(half[each].contexts) for each in half}
    drop = half["A"].quantities["choice"].value(ones["A"])
    zone = np.flatnonzero(drop <= ZONE)
    draws = np.random.default_rng(0)
    predictors, rows = (*UNANSWERED, *ANSWERED), []
    drawn: dict[tuple[str, str], list[float]] = {}
    for number in range(count + 1):
        weights, picked = dict(ones), zone
        if number:
            for each in half:
                size = half[each].contexts
                weights[each] = np.bincount(
                    draws.integers(size, size=size), minlength=size
                ).astype(float)
            picked = draws.choice(zone, len(zone))
        before = half["A"].values(predictors, weights["A"])[:, picked]
        after = half["B"].values(OUTCOMES, weights["B"])[:, picked]
        shuffled = draws.permutation(after[0])  # the noise floor
        for name, values in zip(predictors, before, strict=True):
            for outcome, lost in zip(OUTCOMES, after, strict=True):
                drawn.setdefault((name, outcome), []).append(rho(values, lost))
            drawn.setdefault((name, "shuffled"), []).append(rho(values, shuffled))
    for (name, outcome), values in drawn.items():
        low, high = np.percentile(values[1:], [2.5, 97.5])
        row = {"predictor": name, "outcome": outcome, "rho": values[0]}
        rows.append(row | {"low": low, "high": high, "checkpoints": len(zone)})
    return pd.DataFrame(rows)


def index(half: dict[str, Half]) -> Json:
    """The best predictor without answers and the best two of them, chosen by every
    other checkpoint on half A, tested by the others on half B."""
    ones = {each: np.ones(half[each].contexts) for each in half}
    before = half["A"].values((*UNANSWERED, "open", "choice"), ones["A"])
    zone = np.flatnonzero(before[-1] <= ZONE)
    chosen, tested = zone[::2], zone[1::2]
    lost = half["B"].values(("open",), ones["B"])[0]

    def ranks(members: tuple[int, ...], at: npt.NDArray[np.intp]) -> Floats:
        every = [rankdata(before[each, at]) for each in members]
        return np.asarray(np.mean(every, axis=0))

    found: Json = {}
    for size in (1, 2):
        members = max(
            combinations(range(len(UNANSWERED)), size),
            key=lambda each: rho(ranks(each, chosen), before[-2, chosen]),
        )
        name = " and ".join(UNANSWERED[each] for each in members)
        found[name] = rho(ranks(members, tested), lost[tested])
    return found


def figure(found: pd.DataFrame) -> str:
    """The rhos with each outcome, as SVG."""
    names = {"predictor": "checkpoint", "low": "rho_low", "high": "rho_high"}
    outcomes = {
        "known": ("sample", "known answers lost", -0.25),
        "open": ("greedy", "open accuracy lost, strict rule", 0.0),
        "open_paper": ("lost", "open accuracy lost, the paper's", 0.25),
    }
    series = [
        Series("rho", colour, label, {"outcome": outcome}, shift)
        for outcome, (colour, label, shift) in outcomes.items()
    ]
    title = "Spearman's rho of each predictor and each outcome"
    panel = Dots(title, series, axis="changes", line=0.5)
    return drawn(panel, found.rename(columns=names), "silent-zone")


def sweep_with_task(task: str, items: int, out: Path) -> Json:
    """The study's sweep with its questions, and the English passages of half A, which
    are written beside the run `out`."""
    sweep: Json = yaml.safe_load(SWEEP.read_text(encoding="utf-8"))
    (asked,) = sweep["tasks"]
    (pool,) = load_task(task, ["english"]).pools.values()
    english = pd.DataFrame(
        [(each.cluster, each.context) for each in select(pool, items)],
        columns=["cluster", "context"],
    )
    passages = english["context"][halves(english["cluster"]) == "A"]
    text = out.with_suffix(".txt")
    write_atomically(text, "\n".join(map(" ".join, passages.str.split())).encode())
    asked |= {"task": task, "items": items, "name": "xquad"}
    read = {"task": f"text:{text}", "name": TEXT, "probes": ["perplexity"]}
    sweep["tasks"] = sweep["include"][0]["tasks"] = [asked, read]
    return sweep


def main() -> None:
    options = Options(__doc__)
    options.add_argument("--task", default="xquad", help="xquad, or xquad:DIR")
    options.add_argument("--items", type=count, default=75, help="per language")
    options.add_argument("--out", type=Path, default=Path("runs/silent-zone"))
    given = options.parse_args()
    sweep = sweep_with_task(given.task, given.items, given.out)
    half = read(finished(sweep, given.out))
    found = study(half)
    write_atomically(given.out.with_suffix(".csv"), csv_bytes(found))
    write_atomically(given.out.with_suffix(".svg"), figure(found).encode())
    print(found.round(2).to_string(index=False))
    print(index(half))


if __name__ == "__main__":
    run_main(main)
