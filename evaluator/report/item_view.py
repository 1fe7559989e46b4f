"""The item view's data, small enough to ship inside the page.

The page reads the index (plain JSON: items, questions, gold answers, fates) when it
opens. The answers are packed into one chunk per checkpoint, task and language:
strings interned, arrays instead of objects, gzip, base64. The browser unpacks a
chunk when a reader opens one of its items.

Model output is untrusted. The JSON escapes every character with a meaning in HTML,
base64 has no such characters, and the page shows model output only as text.

    chunk = {"s": [string...], "n": [item number...], "r": [row...]}
    row   = [whether the prompt was cut, entries of the first probe, entries of the
          second...]
    entry = by the probe's view   answer    [string, hit, format], then the thought's
                                            string or null, then that of what the
                                            grader read, if there is one
                                  answers   [string, hit] or [string, hit, logprob]
                                  options   [string, gold, logprob, tokens]
                                  rank      [rank, margin]
                                  aligned   [rank, margin, lead-in string, answer
                                            string, logprob]
    hit   = 1 contains a gold answer, 0 does not, -1 excluded, -2 engine error (the
          string says why)

The index names the probes in this order; those without a view are left out."""

import base64
import gzip
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any

import pandas as pd

from evaluator.core.errors import Json, json_text
from evaluator.core.records import FORMATS
from evaluator.core.reducing import by_its_rule
from evaluator.metrics.fates import fates_of
from evaluator.metrics.inputs import Inputs
from evaluator.probes import PROBES
from evaluator.probes.base import Probe, View
from evaluator.store.outcomes import chosen_seed, context_is_cut

_ESCAPES = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}
# The columns that the item view shows or sorts by.
_READ = [
    *("item_id", "probe", "format", "status", "index", "truncated"),
    *("text", "option_text", "thought", "thought_state", "contains", "is_gold"),
    *("token_ids", "logprob", "rank", "margin"),
]
_FAILED = {"excluded": -1, "engine_error": -2}

AskedKey = tuple[str, str, str]  # task, language, item id
Chunks = dict[str, dict[str, str]]  # task -> language -> element id


def safe_json(value: object) -> str:
    """JSON that is safe inside a <script> element, whatever its strings."""
    return _json(value).translate(_ESCAPES)


def packed(value: object) -> str:
    """JSON, gzip, base64; the same bytes for the same value."""
    data = gzip.compress(_json(value).encode(), compresslevel=9, mtime=0)
    return base64.b64encode(data).decode("ascii")


def _json(value: object) -> str:
    return json_text(value, ensure_ascii=False, separators=(",", ":"))


@dataclass(eq=False)
class ItemView:
    """Collects the view's data, one checkpoint and task at a time, as packed chunks."""

    numbers: dict[AskedKey, int] = field(default_factory=dict)
    gold: dict[int, list[str]] = field(default_factory=dict)
    chunks: dict[str, str] = field(default_factory=dict)  # element id -> base64
    where: dict[str, Chunks] = field(default_factory=dict)  # by checkpoint
    # by item number, once `index` has been called
    _questions: dict[int, str] | None = None
    # fates by checkpoint, likewise
    _letters: Mapping[str, str] = field(default_factory=dict)

    def add(self, records: pd.DataFrame) -> None:
        """Pack the records of one checkpoint and one task, with the run's own seed.
        Probes of texts have no items."""
        probes = [probe.name for probe in _shown()]
        records = _of_one_seed(records[records["probe"].isin(probes)])
        if records.empty:
            return
        checkpoint, task = map(str, records[["checkpoint", "task"]].iloc[0])
        shown = by_its_rule(records)[["language", *_READ]]
        shown["truncated"] = context_is_cut(shown)
        shown = shown.sort_values(["language", "item_id", "index"], kind="stable")
        plain = shown.astype(object)  # nullable values are slow to take one by one
        rows = plain.where(plain.notna(), None).itertuples(index=False)
        for language, part in groupby(rows, key=attrgetter("language")):
            chunk = self._chunk(task, str(language), part)
            self._keep(checkpoint, task, str(language), chunk)

    def _keep(self, checkpoint: str, task: str, language: str, chunk: Any) -> None:
        name = f"chunk-{len(self.chunks)}"
        self.chunks[name] = packed(chunk)
        tasks = self.where.setdefault(checkpoint, {})
        tasks.setdefault(task, {})[language] = name

    def _chunk(self, task: str, language: str, records: Iterable[Any]) -> Json:
        """`records`: with the columns _READ, None for a missing value."""
        strings: dict[str, int] = {}
        numbers, rows = [], []
        for item_id, of_item in groupby(records, key=attrgetter("item_id")):
            key = task, language, str(item_id)
            number = self.numbers.setdefault(key, len(self.numbers))
            cut = False
            entries: dict[str, list[list[Any]]] = {probe.name: [] for probe in _shown()}
            for record in of_item:
                view = PROBES[record.probe].view
                cut |= record.truncated
                entry = _entry(view, record, strings)
                if entry is not None:
                    entries[record.probe].append(entry)
                    if view == "options" and record.is_gold:
                        self.gold.setdefault(number, [str(record.option_text)])
            numbers.append(number)
            rows.append([int(cut), *entries.values()])
        return {"s": list(strings), "n": numbers, "r": rows}

    def add_items(self, items: pd.DataFrame) -> dict[int, str]:
        """Add the items' gold answers and pack their contexts; returns each item
        number's question."""
        questions: dict[int, str] = {}
        contexts: dict[tuple[str, str], dict[int, str]] = {}
        for item in items.to_dict("records"):
            task, language = item["task"], item["language"]
            number = self.numbers.get((task, language, item["item_id"]))
            if number is not None:
                questions[number] = item["question"]
                self.gold[number] = list(map(str, item["answers"]))
                contexts.setdefault((task, language), {})[number] = item["context"]
        for (task, language), texts in sorted(contexts.items()):
            self._keep("", task, language, {"n": list(texts), "s": [*texts.values()]})
        return questions

    def chunks_of(self, checkpoints: Collection[str]) -> dict[str, str]:
        """The chunks of some checkpoints, and all contexts."""
        chosen = {}
        for checkpoint in self.where:
            if not checkpoint or checkpoint in checkpoints:
                for name in self._names(checkpoint):
                    chosen[name] = self.chunks[name]
        return chosen

    def _names(self, checkpoint: str) -> Iterator[str]:
        for languages in self.where[checkpoint].values():
            yield from languages.values()

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each checkpoint's answers."""
        sizes = {}
        for checkpoint in filter(None, self.where):
            names = self._names(checkpoint)
            sizes[checkpoint] = sum(len(self.chunks[name]) for name in names)
        return sizes

    def index(
        self,
        inputs: Inputs,
        items: pd.DataFrame | None,
        only: Collection[str] | None = None,
    ) -> str:
        """The index as JSON for a <script> element, after every `add`. `only`: the
        checkpoints of one page."""
        if self._questions is None:
            self._questions = self.add_items(items) if items is not None else {}
            self._letters = self._fates(inputs)
        checkpoints: dict[str, Json] = {}
        for subject in inputs.checkpoints:
            name = subject.checkpoint
            if only is None or name in only:
                chunks = self.where.get(name, {})
                shown = {"name": name, "chunks": chunks, "base": subject.base}
                if name in self._letters:
                    shown["fates"] = self._letters[name]
                checkpoints[name] = shown
        keys = list(self.numbers)
        numbers = range(len(keys))
        order = sorted(numbers, key=lambda number: keys[number])
        tasks = sorted({task for task, _, _ in keys})
        languages = sorted({language for _, language, _ in keys})
        probes = [
            {"name": probe.name, "view": probe.view, "title": probe.title}
            for probe in _shown()
        ]
        return safe_json(
            {
                "formats": FORMATS,
                "probes": probes,
                "tasks": tasks,
                "languages": languages,
                "checkpoints": list(checkpoints.values()),
                "contexts": self.where.get("", {}),
                "order": order,
                "task": [tasks.index(task) for task, _, _ in keys],
                "language": [languages.index(language) for _, language, _ in keys],
                "id": [item_id for _, _, item_id in keys],
                "question": [self._questions.get(number, "") for number in numbers],
                "gold": [self.gold.get(number, []) for number in numbers],
            }
        )

    def _fates(self, inputs: Inputs) -> Mapping[str, str]:
        """The first letter of the fate, per item and pruned checkpoint; '.' for an
        item without records."""
        letters: dict[str, list[str]] = {}
        for subject in inputs.compared:
            line = letters.setdefault(subject.checkpoint, ["."] * len(self.numbers))
            both = inputs.of(subject).both
            keys = zip(both["language"], both["item_id"], fates_of(both), strict=True)
            for language, item_id, fate in keys:
                line[self.numbers[subject.task, str(language), str(item_id)]] = fate[0]
        return {name: "".join(line) for name, line in letters.items()}


def _shown() -> list[Probe]:
    """The probes of the item view, in the order of a row."""
    return [probe for probe in PROBES if probe.view is not None]


def _of_one_seed(records: pd.DataFrame) -> pd.DataFrame:
    """The records with greedy's lowest seed. A probe that lacks this seed uses its
    own lowest."""
    seed, kind = records["seed"], [records["format"], records["probe"]]
    own = seed[records["probe"] == "greedy"].min()
    return records[seed == seed.groupby(kind).transform(chosen_seed, own)]


def _entry(view: View | None, record: Any, strings: dict[str, int]) -> list[Any] | None:
    """The entry of one record; None if it has nothing to show."""

    def number_of(text: str | None) -> int:
        return strings.setdefault(text or "", len(strings))

    if view == "answer":
        also = [None if of is None else number_of(of) for of in _beside(record)]
        said = number_of(record.text)
        return [said, _hit(record), FORMATS.index(record.format), *also]
    if view == "answers":
        logprob = _rounded(record.logprob, 2)
        scores = [] if logprob is None else [logprob]
        return [number_of(record.text), _hit(record), *scores]
    if view == "options" and record.option_text is not None:
        tokens = None if record.token_ids is None else len(record.token_ids)
        gold, logprob = int(record.is_gold or False), _rounded(record.logprob, 3)
        return [number_of(record.option_text), gold, logprob, tokens]
    if view in ("rank", "aligned") and record.rank is not None:
        entry = [int(record.rank), _rounded(record.margin, 2)]
        if view == "aligned":
            entry += [number_of(record.text), number_of(record.option_text)]
            entry.append(_rounded(record.logprob, 2))
        return entry
    return None


def _beside(record: Any) -> list[str | None]:
    """An answer's thought, and what its grader read, without missing ones at the
    end."""
    read = [] if record.option_text is None else [record.option_text]
    return [record.thought, *read] if read or record.thought is not None else []


def _hit(record: Any) -> int:
    return _FAILED.get(record.status) or int(record.contains or False)


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
