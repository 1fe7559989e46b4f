"""Whether beams and samples still reach the answer, and whether that is stable over
run seeds.

Table `recovery`: is the answer anywhere in the beams or the samples? They run on the
first 100 items of each language only. So every rate here, including the greedy
accuracy, is over the items on which the probe was measured. Population
`greedy_failures` keeps the items that the same checkpoint's greedy output misses:
the gain of broader decoding. Rows `pass@K` estimate the rate that `sample` would
have with K samples of any seed, and `majority` that of the samples' most frequent
answer. Of several run seeds, an item has the mean (table `seeds`), and no `hits`.

Table `recovery_seeds`: sample recovery among greedy failures for every run seed. The
greedy output, read under the lowest seed, does not depend on it. `mean` is the mean
of the seeds' rates, with an interval over items. The range shows the noise of
sampling, the interval the noise of the choice of items.

Table `seeds`: the same of all items. `pass@1` is the share of right samples, `sample`
whether any of a seed's samples is right, `majority` whether their most frequent answer
is. An item with all its seeds is one observation. `lowest`, `highest` and `seed_sd`
(the standard deviation, with n - 1) are over the seeds' own rates. `drop` is paired by
item and seed."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pandas as pd
from scipy.special import gammaln

from evaluator.metrics.columns import (
    BY_LANGUAGE,
    COUNT,
    DROP,
    PERCENTAGE,
    POINTS,
    TEXT,
    Row,
)
from evaluator.metrics.comparable import settings_of
from evaluator.metrics.cuts import Cut, add
from evaluator.metrics.fates import HIT
from evaluator.metrics.inputs import ITEM, Inputs, Subject
from evaluator.metrics.intervals import Floats, ItemNumbers
from evaluator.metrics.items import BASE, STATUSES, Flags, Items
from evaluator.metrics.measures import Custom, Share, as_floats, difference, drop, rate
from evaluator.metrics.table import Dots, Holm, Lack, Note, Series, Table, whole_percent

EVERYTHING, FAILURES = "all_items", "greedy_failures"
BROAD = ("beam", "sample")
MAJORITY, SHARE = "majority", "pass@1"
_SHORTER = "cut greedy answers had up to {} tokens (recheck_cut), beams did not"
# the K of pass@K, below the number of samples
_TRIES = (1, 2, 5, 10, 20, 50, 100, 200, 500)


def _rows(inputs: Inputs) -> Iterator[Row]:
    """Greedy, beam and sample over all items; beam and sample among the checkpoint's
    own greedy failures; then the samples in other ways."""
    for subject in inputs.checkpoints:
        items = inputs.of(subject)
        items = items.take(_broad_ran(items))
        if not len(items):
            continue
        ran = items.has("produced").any()
        why = "greedy missed no item" if ran else "greedy was not measured"
        cuts = [_cut(probe, HIT[probe]) for probe in HIT]
        for probe in BROAD:
            nothing = why if items.any_ran(probe) else f"the run does not ask {probe}"
            cut = replace(_cut(probe, HIT[probe]), paired=(), nothing=nothing)
            keys = {"probe": probe, "population": FAILURES}
            cuts.append(replace(cut, keys=keys, where=_missed))
        settings = settings_of(inputs.run, subject.checkpoint, subject.task)
        for cut in (*cuts, *_of_samples(items)):
            for row in cut.rows(inputs, subject, items=items):
                if row["probe"] == "beam" and (most := settings.get("recheck_limit")):
                    row = add(row, {"reason": _SHORTER.format(most)})
                yield row


def _broad_ran(items: Items, side: str = "") -> Flags:
    beam, sample = (items.has(f"{side}{probe}_status") for probe in BROAD)
    return beam | sample


def _missed(items: Items) -> Flags:
    missed: Flags = items["produced"] == 0
    return missed


def _cut(probe: str, right: str) -> Cut:
    """All items that a probe measured; the drop of greedy is of the items on which
    the base has a broader probe too."""

    def answers(items: Items) -> Row:
        hits, tries = items[right], None
        whole = np.isin(hits, (0, 1)).all()
        if len(items):
            tries = _tries(items, probe)
        return {"hits": int(hits.sum()) if whole else None, "tries": tries}

    return Cut(
        keys={"probe": probe, "population": EVERYTHING},
        probes=(probe,),
        measures=(Custom(answers), Share("rate", right)),
        paired=(drop("drop", right),),
        paired_where=lambda items: _broad_ran(items, BASE),
    )


def pass_at(k: int, samples: Floats, right: Floats) -> Floats:
    """The chance of each item that one of `k` of its samples is right: 1 - C(n - c, k)
    / C(n, k), for `right` c of n `samples`, at least k. Unbiased for k samples that are
    drawn anew (Chen et al., 2021, arXiv 2107.03374, Eq. 1).
    """
    missed = samples - right
    # infinite logarithms, where fewer than k samples missed
    with np.errstate(invalid="ignore"):
        ratios = (
            gammaln(missed + 1)
            - gammaln(missed - k + 1)
            - gammaln(samples + 1)
            + gammaln(samples - k + 1)
        )
    exact = np.where(right > 0, 1.0, 0.0)  # logarithms round
    return np.where(
        (missed >= k) & (right > 0), np.clip(1 - np.exp(ratios), 0, 1), exact
    )


def _of_samples(items: Items) -> Iterator[Cut]:
    """The rows of pass@K and of the majority: the checkpoint's own rate, and its
    drop on the items measured in both."""
    done, both = items.measured("sample"), items.measured("sample", both=True)
    if not len(done):
        return
    counts = [done["samples"], both["samples"], both["base_samples"]]
    fewest = min(each.min(initial=np.inf) for each in counts)
    for k in (*(k for k in _TRIES if k < fewest), 0):
        yield Cut(
            keys={
                "probe": f"pass@{k}" if k else MAJORITY,
                "tries": k or _tries(done, "sample"),
                "population": EVERYTHING,
            },
            probes=("sample",),
            measures=(Share("rate", _judged(k)),),
            paired=(Share("drop", _fewer(k), low=-1.0),),
        )


def _judged(k: int, side: str = "") -> Callable[[Items], Floats]:
    """Of each item, pass@k, or for 0 how often a majority is right: numbers from 0
    to 1."""

    def judge(items: Items) -> Floats:
        if not k:
            return as_floats(items[f"{side}sample_majority"])
        return pass_at(k, items[f"{side}samples"], items[f"{side}sample_hits"])

    return judge


def _fewer(k: int) -> Callable[[Items], Floats]:
    """How much less than in the base."""
    return lambda items: _judged(k, BASE)(items) - _judged(k)(items)


def _tries(done: Items, probe: str) -> int:
    """The answers to an item, under one seed."""
    if probe not in BROAD:
        return 1
    seeds = np.nan_to_num(done["seeds"], nan=1.0) if probe == "sample" else 1
    return int((done[f"{probe}s"] / seeds).max())


_FOUND = {"greedy": "greedy says it", "beam": "in any beam", "sample": "in any sample"}
_ALL = tuple(
    Series("rate", probe, name, {"population": EVERYTHING, "probe": probe})
    for probe, name in _FOUND.items()
)
_RECOVERED = tuple(
    Series(
        "rate", probe, _FOUND[probe], {"population": FAILURES, "probe": probe}, shift
    )
    for probe, shift in (("beam", -0.13), ("sample", 0.13))
)
_SAMPLED = Note(
    "n", lambda n: f"n = {n or 0:.0f}", {"population": FAILURES, "probe": "sample"}
)

TABLE = Table(
    name="recovery",
    title="Can the answer still be reached?",
    reading=(
        "Left: whether any beam or any sample contains a gold answer. Right: the same"
        " among the items that the checkpoint's own greedy output misses: the gain of"
        " broader decoding. Beams and samples cover the first 100 items of each"
        " language only; the greedy numbers here are on the same items. Of several seeds,"
        " an item has the mean of its seeds. pass@K: one of"
        " K samples is right, estimated from all of them. majority: the most frequent"
        " answer of the samples is."
    ),
    needs="the probe beam or sample",
    columns=(
        *BY_LANGUAGE,
        *TEXT("population", "probe"),
        *COUNT("tries", "n", "excluded", "engine_error", "hits"),
        *PERCENTAGE.estimates("rate"),
        *COUNT("n_paired"),
        *DROP,
    ),
    compute=_rows,
    figure=(
        Dots(
            "All items with beams and samples",
            _ALL,
            width=1.15,
            linked=True,
            text=whole_percent,
        ),
        Dots("Recovered among its own greedy failures", _RECOVERED, note=_SAMPLED),
    ),
    corrections=(Holm(("task", "language", "population", "probe")),),
    drawn=True,
    lacks=(
        Lack(
            "probe",
            "the probe greedy (for what is recovered among its failures)",
            "greedy",
        ),
        Lack("probe", "the probe beam", "beam"),
        Lack("probe", "the probe sample", "sample"),
        Lack("drop", "a checkpoint with its base (for the drops)"),
    ),
)


def _recovery_seeds_rows(inputs: Inputs) -> Iterator[Row]:
    for subject in inputs.checkpoints:
        ours = _drawn(inputs, subject.checkpoint, subject.task)
        seeds = int(ours["seed"].nunique())
        if seeds < 2:
            continue
        items = inputs.of(subject)
        missed = items["item"][items["produced"] == 0]
        failures = ours[ours["item"].isin(missed)]
        for language, here in items.slices(inputs.cuts[subject.task]):
            row = subject.row | {"language": language, "seeds": seeds}
            yield row | _over_seeds(failures[failures["item"].isin(here["item"])])


def _over_seeds(items: pd.DataFrame) -> Row:
    row: Row = {"n_min": 0, "n_max": 0}
    for status in STATUSES:
        row[status] = items.loc[items["sample_status"] == status, "item"].nunique()
    done = items[items["sample_hit"].notna()]
    if done.empty:
        return row | {"reason": "no greedy failure with samples"}
    by_seed = done.groupby("seed")["sample_hit"].agg(["mean", "size"])
    by_item = done.groupby(["item", "context"])["sample_hit"].mean()
    sizes, rates = by_seed["size"], by_seed["mean"]
    return {
        **row,
        **rate("mean", by_item, _contexts(by_item)),
        "n_min": int(sizes.min()),
        "n_max": int(sizes.max()),
        "mean": float(rates.mean()),
        "lowest": float(rates.min()),
        "highest": float(rates.max()),
    }


def _seeds_rows(inputs: Inputs) -> Iterator[Row]:
    for subject in inputs.checkpoints:
        yield from rows_of_seeds(inputs, subject)


def rows_of_seeds(inputs: Inputs, subject: Subject) -> Iterator[Row]:
    """The rows of one checkpoint in table `seeds`; none with one seed."""
    own = _drawn(inputs, subject.checkpoint, subject.task)
    seeds = int(own["seed"].nunique())
    if seeds < 2:
        return
    base = _drawn(inputs, subject.base or "", subject.task)
    for part in inputs.parts(subject):
        numbers = part.items["item"]
        here, there = (each[each["item"].isin(numbers)] for each in (own, base))
        row = part.row | {"seeds": seeds} | part.items.left_out("sample_status")
        for measure in (SHARE, "sample", MAJORITY):
            sides = _by_seed(here, measure), _by_seed(there, measure)
            yield row | {"probe": measure} | _spread(*sides)


def _drawn(inputs: Inputs, checkpoint: str, task: str) -> pd.DataFrame:
    """A row for each item and seed with samples: its status and the measures."""
    every = inputs.all_outcomes_of(checkpoint, task)
    drawn = every[(every["format"] == "open") & every["sample_status"].notna()]
    measures = {
        SHARE: drawn["sample_hits"] / drawn["samples"],
        "sample": drawn["sample_hit"],
        MAJORITY: drawn["sample_majority"],
    }
    names = [*ITEM, "seed", "sample_status", "sample_hit"]
    return pd.DataFrame({**drawn[names], **measures})


def _by_seed(drawn: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Items x seeds; without an item that lacks a seed."""
    index = ["item", "context"]
    return drawn.pivot(index=index, columns="seed", values=measure).dropna()


def _spread(own: pd.DataFrame, base: pd.DataFrame) -> Row:
    if own.empty:
        return {"n": 0, "reason": "no item was measured under every seed"}
    row: Row = {"n": len(own), **rate("rate", own.mean(axis=1), _contexts(own))}
    rates = own.mean()
    row |= {"seed_sd": rates.std(), "lowest": rates.min(), "highest": rates.max()}
    drops = (base - own).dropna(axis=1, how="all").dropna()
    if drops.empty:
        return row
    return {
        **row,
        "n_paired": len(drops),
        "drop_lowest": drops.mean().min(),
        "drop_highest": drops.mean().max(),
        **difference("drop", drops.mean(axis=1), _contexts(drops)),
    }


def _contexts(items: pd.DataFrame | pd.Series) -> ItemNumbers:
    return items.index.get_level_values("context").to_numpy(np.intp)


_PAINTS = {"lowest": "beam", "mean": "greedy", "highest": "sample"}
_OVER_SEEDS = tuple(Series(name, colour, name) for name, colour in _PAINTS.items())
_OF_SHARES = tuple(
    replace(each, column=each.column.replace("mean", "rate"), where={"probe": SHARE})
    for each in _OVER_SEEDS
)

RECOVERY_SEEDS = Table(
    name="recovery_seeds",
    title="Is recovery stable over seeds?",
    reading=(
        "The share of greedy's misses that samples find: the lowest, mean and highest"
        " rate over the run seeds."
    ),
    needs="the probes greedy and sample, the latter under at least two run seeds",
    columns=(
        *BY_LANGUAGE,
        *COUNT("seeds", "n_min", "n_max", "excluded", "engine_error"),
        *PERCENTAGE.estimates("mean"),
        *PERCENTAGE("lowest", "highest"),
    ),
    compute=_recovery_seeds_rows,
    figure=(
        Dots(
            "Recovered by samples among greedy failures, over the run seeds",
            _OVER_SEEDS,
            linked=True,
        ),
    ),
    drawn=True,
    counts="n_max",
)

SEEDS = Table(
    name="seeds",
    title="Does it depend on the seed?",
    reading=(
        "The lowest, mean and highest rate over the run seeds, and the drop likewise:"
        " how far chance in sampling moves them. The interval is over items, each with"
        " all of its seeds. pass@1: the share of right samples; sample: any of a seed's"
        " samples is right; majority: their most frequent answer is."
    ),
    needs="the probe sample under at least two run seeds (--seeds 0,1,2)",
    columns=(
        *BY_LANGUAGE,
        *TEXT("probe"),
        *COUNT("seeds", "n", "excluded", "engine_error"),
        *PERCENTAGE.estimates("rate"),
        *POINTS("seed_sd"),
        *PERCENTAGE("lowest", "highest"),
        *COUNT("n_paired"),
        *POINTS.estimates("drop", n="n_paired"),
        *POINTS("drop_lowest", "drop_highest", n="n_paired"),
    ),
    compute=_seeds_rows,
    figure=(Dots("Right samples, over the run seeds", _OF_SHARES, linked=True),),
    drawn=True,
)
