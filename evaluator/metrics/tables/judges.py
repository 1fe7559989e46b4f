"""Table `judges`: is a matcher fit to judge? Its verdicts on control pairs are
compared with the known results.

    sensitivity = share of the matching pairs that it accepts: the reference itself
    (`same`) or reworded (`paraphrase`) specificity = share of the other pairs that
    it denies: another item's reference (`other`)

A judge is unfit if the whole interval of either is below `BAR`, a convention.
`unfit` has the counts. A judge with a constant verdict has one of the two at 0. With
known error rates, the share of right answers follows from the share of accepted ones
(W. J. Rogan and B. Gladen, American Journal of Epidemiology 107, 1978):

    corrected = (accepted + specificity - 1) / (sensitivity + specificity - 1),
    kept within 0 and 1

It is undefined unless the denominator is above 0. Control pairs are easier than real
answers. So a judge errs more on real answers than the correction assumes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from evaluator.metrics.columns import COUNT, LANGUAGE, PERCENTAGE, TEXT, Column, Row
from evaluator.metrics.exclusions import joined_reasons, left_out_of
from evaluator.metrics.inputs import ALL, Inputs, in_language, slices
from evaluator.metrics.intervals import Floats, Mean
from evaluator.metrics.measures import as_floats, rate
from evaluator.metrics.table import Dots, Series, Table

MATCHING = ("same", "paraphrase")
BAR = 0.8
_KINDS = (*MATCHING, "other")


def _rows(inputs: Inputs) -> Iterator[Row]:
    """Per task and matcher: pooled, then by language. Every pair is a context of its
    own."""
    if inputs.controls is None:
        return
    for (task, matcher), pairs in inputs.controls.groupby(["task", "matcher"]):
        languages = sorted(pairs["language"].unique())
        for language, here in slices(pairs, languages if len(languages) > 1 else []):
            own = {"task": task, "checkpoint": matcher, "language": language}
            yield own | left_out_of(here, "status") | _judge(here)


def _judge(pairs: pd.DataFrame) -> Row:
    fitness, judged = fitness_of(pairs), pairs[pairs["verdict"].notna()]
    yes = as_floats(judged["verdict"].astype(bool))
    matching = judged["control"].isin(MATCHING).to_numpy()
    flags = {"sensitivity": yes[matching], "specificity": 1 - yes[~matching]}
    for kind in _KINDS:
        flags[f"{kind}_accepted"] = yes[(judged["control"] == kind).to_numpy()]
    row: Row = {
        "n": len(judged),
        "matching": fitness.matching,
        "different": fitness.different,
        "unfit": fitness.why_unfit,
    }
    for name, values in flags.items():
        row |= rate(name, values, np.arange(len(values)))
    row["reason"] = joined_reasons(
        None if fitness.matching else "no pair that matches",
        None if fitness.different else "no pair that does not match",
    )
    if judged.empty:
        row["reason"] = "no control pair was judged"
    return row


TABLE = Table(
    name="judges",
    title="Is the judge fit?",
    reading=(
        "Each matcher first judged control pairs with a known result. Sensitivity: the"
        " share of matching pairs that it accepts (the reference itself, and in another"
        " form). Specificity: the share of references of other questions that it"
        " denies. A matcher that denies or accepts everything has one of the two near 0"
        " %, and its verdicts mean nothing. Control pairs are easier than real answers:"
        " to pass them is the least."
    ),
    needs="control pairs: run resurface match RUN --matcher CHECKPOINT",
    columns=(
        *TEXT("task"),
        Column("checkpoint", TEXT, "judge"),
        LANGUAGE,
        *COUNT("n", "matching", "different", "excluded", "engine_error"),
        *PERCENTAGE.estimates("sensitivity", "specificity"),
        *(
            Column(f"{kind}_accepted", PERCENTAGE, f"accepts: {kind}", interval=True)
            for kind in _KINDS
        ),
        *TEXT("unfit"),
    ),
    compute=_rows,
    figure=(
        Dots(
            "On control pairs; unfit with a whole interval at the left of the line",
            (
                Series("sensitivity", "kept", "accepts right answers", shift=-0.1),
                Series("specificity", "choice", "denies wrong answers", shift=0.1),
            ),
            line=BAR,
        ),
    ),
    plotted=lambda frame: frame[frame["n"] > 0],
)


@dataclass(frozen=True)
class Fitness:
    """How often a judge was right on control pairs of each kind."""

    accepted: int  # of the pairs that match
    matching: int
    denied: int  # of the pairs that do not
    different: int

    @property
    def sensitivity(self) -> float | None:
        return self.accepted / self.matching if self.matching else None

    @property
    def specificity(self) -> float | None:
        return self.denied / self.different if self.different else None

    @property
    def why_unfit(self) -> str | None:
        """Why the judge is unfit; None if no failure is known."""
        failures = []
        if _surely_below(self.accepted, self.matching):
            failures.append(f"{self.accepted} of {self.matching} right")
        if _surely_below(self.denied, self.different):
            wrong = self.different - self.denied
            failures.append(f"{wrong} of {self.different} wrong")
        if not failures:
            return None
        accepts = " and ".join(f"accepts {failure} answers" for failure in failures)
        return f"unfit as a judge: it {accepts}"

    def drawn(self, draws: int) -> tuple[Floats, Floats]:
        """Both drawn from their Jeffreys posteriors, Beta(k + 1/2, n - k + 1/2).
        Equal counts give equal draws."""
        rng = np.random.default_rng(1)
        hits = ((self.accepted, self.matching), (self.denied, self.different))
        sensitivity, specificity = (
            rng.beta(k + 0.5, n - k + 0.5, draws) for k, n in hits
        )
        return sensitivity, specificity


def _surely_below(right: int, pairs: int) -> bool:
    """Whether the whole interval of a rate is below the bar. Each pair is independent
    of the others."""
    if not pairs:
        return False
    numbers = np.arange(pairs)
    interval = Mean(as_floats(numbers < right), numbers).interval()
    return not isinstance(interval, str) and interval[1] < BAR


def fitness_of(controls: pd.DataFrame) -> Fitness:
    """The fitness of one judge by its control pairs (`control`, `verdict`); those
    without a verdict do not count."""
    judged = controls[controls["verdict"].notna()]
    yes = judged["verdict"].astype(bool)
    matching = judged["control"].isin(MATCHING)
    return Fitness(
        accepted=int((yes & matching).sum()),
        matching=int(matching.sum()),
        denied=int((~yes & ~matching).sum()),
        different=int((~matching).sum()),
    )


def judges(
    controls: pd.DataFrame | None, task: str, language: str
) -> dict[str, Fitness]:
    """The fitness of every matcher that judged control pairs of a task, in one
    language or in all; by name."""
    if controls is None:
        return {}
    here = in_language(controls[controls["task"] == task], language)
    return {
        str(matcher): fitness_of(rows)
        for matcher, rows in here.groupby("matcher", sort=True)
    }


def panel_fitness(
    controls: pd.DataFrame, members: Sequence[str], task: str, language: str
) -> Fitness:
    """The fitness of a panel's majority (a tie is a no), on the pairs that all
    members judged."""
    ours = controls[(controls["task"] == task) & controls["matcher"].isin(members)]
    here = in_language(ours, language)
    pairs = ["language", "item_id", "control", "response"]
    numbers = here.assign(verdict=here["verdict"].astype("float64"))
    votes = numbers.groupby(pairs)["verdict"].agg(["count", "sum"]).reset_index()
    whole = votes[votes["count"] == len(members)]
    return fitness_of(whole.assign(verdict=2 * whole["sum"] > len(members)))


def corrected(accepted: Floats, sensitivity: Floats, specificity: Floats) -> Floats:
    """The share of right answers, from the share that a judge accepts. NaN if its
    verdicts carry no information."""
    informed = sensitivity + specificity - 1
    with np.errstate(invalid="ignore", divide="ignore"):
        found = np.clip((accepted + specificity - 1) / informed, 0.0, 1.0)
    return np.asarray(np.where(informed > 0, found, np.nan))


def words(
    controls: pd.DataFrame | None, matchers: Sequence[str], *, fit_only: bool
) -> Iterator[str]:
    """Whether each matcher is fit to judge each task; of a fit one, a line for each
    language where it is unfit."""
    if controls is None:
        return
    out = "--fit-only keeps it out of the panel"
    if fit_only:
        out = "it has no vote in the panel"
    warnings: dict[str, list[str]] = {}  # with the tasks
    for task in sorted(controls["task"].unique()):
        for matcher, fitness in judges(controls, task, ALL).items():
            if matcher not in matchers:
                continue
            right = f"accepts {fitness.accepted} of {fitness.matching} right answers"
            wrong = f"denies {fitness.denied} of {fitness.different} wrong ones"
            yield f"{matcher}: control pairs of {task}: {right}, {wrong}"
            if fitness.why_unfit:
                warning = f"{matcher} is {fitness.why_unfit}; {out}"
                warnings.setdefault(warning, []).append(task)
                continue
            for language in sorted(controls["language"].unique()):
                of_language = judges(controls, task, language).get(matcher)
                if of_language and of_language.why_unfit:
                    warning = f"{matcher} is, in {language}, {of_language.why_unfit}"
                    warnings.setdefault(warning, []).append(task)
    for warning, tasks in warnings.items():
        yield f"warning: {warning} ({', '.join(tasks)})"
