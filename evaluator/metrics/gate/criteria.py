"""What the gate looks at: a column of a table, its threshold, and what it says of a model. Adding one is one entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from evaluator.metrics.columns import PERCENTAGE, POINTS, RATIO, SCORE, Kind
from evaluator.thresholds import Thresholds

# What a crossed threshold means: answers are not said, not recognised, others than before, or tokens have other
# probabilities.
Shows = Literal["saying", "recognising", "changing", "probabilities"]
# How few items are noticed: by the MDE of a paired difference, by what a share of so few can show, or not at all.
Power = Literal["difference", "share"]


@dataclass(frozen=True)
class Criterion:
    """One number with a bound. `bound` names a field of `Thresholds` in units of 1 / `per` of the column's."""

    name: str
    told: str  # in a sentence: "open accuracy lost"
    table: str
    column: str
    bound: str
    kind: Kind
    shows: Shows
    where: Mapping[str, str] = field(default_factory=dict)
    of_language: str = ""  # the bound within one language, where it is another
    per: float = 100.0
    least: bool = False  # the bound is the least that is allowed, not the most
    counts: str = "n"
    power: Power | None = None
    asked: str = ""  # counts the items behind a value that is null where the base has no right answer among them
    counted: bool = False  # it is a share of `counts` items, which an exact test can hold against the bound

    def threshold(self, thresholds: Thresholds, *, language: bool = False) -> float | None:
        """The bound in the column's units; None: not looked at."""
        name = self.of_language if language and self.of_language else self.bound
        value: float | None = getattr(thresholds, name)
        return None if value is None else value / self.per


def _of_probe(probe: str, word: str, shows: Shows) -> tuple[Criterion, ...]:
    return (
        Criterion(
            name=f"{word}_drop",
            told=f"{word} accuracy lost",
            table="accuracy",
            column="drop",
            where={"format": "open", "probe": probe},
            bound="max_drop",
            of_language="max_drop_language",
            kind=POINTS,
            shows=shows,
            counts="n_paired",
            power="difference",
            counted=True,
        ),
        Criterion(
            name=f"{word}_recovery",
            told=f"{word} accuracy left",
            table="recovery_percent",
            column="recovery",
            where={"probe": probe},
            bound="min_recovery",
            least=True,
            kind=PERCENTAGE,
            shows=shows,
            asked="n",
        ),
        Criterion(
            name=f"{word}_flips",
            told=f"{word} flips",
            table="flips",
            column="flip_rate",
            where={"probe": probe, "margin": "all"},
            bound="max_flips",
            kind=PERCENTAGE,
            shows="changing",
            counted=True,
        ),
    )


_SAID = {"along": "greedy answer", "group": "all"}  # of table fidelity: what the base itself says
_OPEN = _of_probe("greedy", "open", "saying")
_CHOICE = _of_probe("choice", "choice", "recognising")
# The most telling first: a sentence names only some.
CRITERIA = (
    _OPEN[0],
    _CHOICE[0],
    Criterion(
        name="mc_only",
        told="known answers picked and no longer said",
        table="fates",
        column="mc_only_rate",
        bound="max_mc_only",
        kind=PERCENTAGE,
        shows="saying",
        power="share",
        asked="items",
        counted=True,
    ),
    Criterion(
        name="lost",
        told="known answers neither said nor picked",
        table="fates",
        column="lost_rate",
        bound="max_lost",
        kind=PERCENTAGE,
        shows="recognising",
        power="share",
        asked="items",
        counted=True,
    ),
    *_OPEN[1:],
    *_CHOICE[1:],
    Criterion(
        name="delta_pr",
        told="Delta_PR",
        table="pr_gap",
        column="delta_pr",
        bound="max_delta_pr",
        per=1.0,
        kind=RATIO,
        shows="saying",
    ),
    Criterion(
        name="kld",
        told="KL divergence from the base, nats a token,",
        table="fidelity",
        column="kld",
        where=_SAID,
        bound="max_kld",
        per=1.0,
        kind=SCORE,
        shows="probabilities",
    ),
    Criterion(
        name="ear",
        told="expected acceptance rate",
        table="fidelity",
        column="acceptance",
        where=_SAID,
        bound="min_ear",
        per=1.0,
        least=True,
        kind=SCORE,
        shows="probabilities",
    ),
)
