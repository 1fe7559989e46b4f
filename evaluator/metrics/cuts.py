"""The rows of a table, as cuts and measures: which items share a row, and what the row
says of them. `walk` makes the rows."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from evaluator.metrics.columns import Row
from evaluator.metrics.inputs import Inputs, Subject
from evaluator.metrics.items import ALL, MEAN, Flags, Items, joined_reasons, statuses_of
from evaluator.metrics.measures import Measure

NOT_COMMON = "no item of this language is common to the checkpoint and its base"
UNPAIRED = "no item is measured in both the checkpoint and its base"


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Items that share a row: those that all `probes` measured, and `where` picks.

    - `keys`: the columns that name the cut.
    - `both`: only items that the base has measured too. `n` counts the items, `unpaired`
      those of one side alone.
    - `paired`: for a cut of the checkpoint's own items, further measures of those that
      the base has measured too, and `paired_where` picks; `n_paired` counts them.
    - `mean`: with a row `mean` over languages, of the measures that have one.
    - `pooled`: without rows by language or group.
    - `nothing`: why there may be no item.
    """

    probes: tuple[str, ...]
    measures: Sequence[Measure]
    keys: Row = field(default_factory=dict)
    both: bool = False
    where: Callable[[Items], Flags] | None = None
    paired: Sequence[Measure] = ()
    paired_where: Callable[[Items], Flags] | None = None
    mean: bool = False
    pooled: bool = False
    nothing: str | None = None

    def rows(
        self,
        inputs: Inputs,
        subject: Subject,
        format: str = "open",
        items: Items | None = None,
    ) -> Iterator[Row]:
        """The row of all items, their `mean`, and one for each language and group.
        `items`: instead of the checkpoint's."""
        alone = inputs.alone(subject, format) if subject.base else None
        if self.both and subject.base is None:
            return
        if items is None:
            items = inputs.of(subject, format)
            if not (self.both and alone) and not items.any_ran(*self.probes):
                return
        own = subject.row | self.keys
        apart = (
            [] if self.pooled or (self.both and alone) else inputs.cuts[subject.task]
        )
        for language, here in items.slices(apart):
            row = self._row(here, alone, paired=subject.base is not None)
            yield own | {"language": language} | row
            if self.mean and language == ALL and row["n"]:
                languages = len(inputs.languages(subject.task))
                yield own | self._mean(here, row, languages)

    def _row(self, items: Items, alone: str | None, *, paired: bool) -> Row:
        compared = items.both if self.both else items
        statuses = statuses_of(self.probes, both=self.both)
        chosen = self._chosen(items, both=self.both)
        row: Row = {"n": len(chosen), **compared.left_out(*statuses)}
        if self.both:
            row["unpaired"] = len(items) - len(compared)
        why = compared.why_left_out(*statuses)
        row["reason"] = joined_reasons(self._nothing(chosen, compared, alone), why)
        for measure in self.measures:
            add(row, measure(chosen))
        if self.paired and paired:
            chosen = self._compared(items)
            row["n_paired"] = len(chosen)
            if not len(chosen):
                return add(row, {"reason": alone or UNPAIRED})
            for measure in self.paired:
                add(row, measure(chosen))
        return row

    def _nothing(self, chosen: Items, compared: Items, alone: str | None) -> str | None:
        """Why there is no item."""
        if len(chosen):
            return None
        if self.both and not len(compared):
            return alone or NOT_COMMON
        return self.nothing or (UNPAIRED if self.both else "no item was measured")

    def _mean(self, items: Items, pooled: Row, languages: int) -> Row:
        """The row `mean`, with the counts of the pooled one."""
        row = Row()
        for name, value in pooled.items():
            if type(value) is int:
                row[name] = value
        chosen = self._chosen(items, both=self.both)
        some = f"{len(chosen.languages)} of {languages} languages"
        row |= {"language": MEAN, "reason": f"unweighted mean over {some}"}
        for measure in self.measures:
            add(row, measure.over_languages(chosen))
        if pooled.get("n_paired"):
            chosen = self._compared(items)
            for measure in self.paired:
                add(row, measure.over_languages(chosen))
        return row

    def _chosen(self, items: Items, *, both: bool) -> Items:
        chosen = items.measured(*self.probes, both=both)
        return chosen if self.where is None else chosen.take(self.where(chosen))

    def _compared(self, items: Items) -> Items:
        """The items of `paired`."""
        chosen = self._chosen(items, both=True)
        if self.paired_where is None:
            return chosen
        return chosen.take(self.paired_where(chosen))


def walk(inputs: Inputs, cuts: Sequence[Cut], format: str = "open") -> Iterator[Row]:
    """The rows of all checkpoints, cut by cut."""
    for subject in inputs.checkpoints:
        for cut in cuts:
            yield from cut.rows(inputs, subject, format)


def add(row: Row, more: Row) -> Row:
    """The row with more columns; its reasons are joined."""
    reason = joined_reasons(row.get("reason"), more.get("reason"))
    row |= more
    row["reason"] = reason
    return row
