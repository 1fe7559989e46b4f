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
    entry = by the probe's view   answer    [string, hit, format], and the thought's
    string if there was one
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
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any

import pandas as pd

from evaluator.core.errors import json_text
from evaluator.core.records import FORMATS
from evaluator.metrics.fates import item_fates
from evaluator.metrics.inputs import Inputs
from evaluator.probes import PROBES
from evaluator.probes.base import Probe, View
from evaluator.probes.reducing import by_its_rule
from evaluator.store.outcomes import chosen_seed, context_is_cut

FATE_CODES = {
    "kept": "k",
    "mc_only": "m",
    "produced_only": "p",
    "lost": "l",
    "not_known": "n",
    "unmeasured": "u",
}
_ESCAPES = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}
_TEXTS = [
    "item_id",
    "probe",
    "format",
    "status",
    "text",
    "option_text",
    "thought",
    "thought_state",
]
# The columns that the item view shows or sorts by.
_READ = [
    *_TEXTS,
    "index",
    "truncated",
    "contains",
    "is_gold",
    "token_ids",
    "logprob",
    "rank",
    "margin",
]

AskedKey = tuple[str, str, str]  # task, language, item id


def safe_json(value: object) -> str:
    """JSON that is safe inside a <script> element, whatever its strings."""
    return json_text(value, ensure_ascii=False, separators=(",", ":")).translate(
        _ESCAPES
    )


def packed(value: object) -> str:
    """JSON, gzip, base64; the same bytes for the same value."""
    data = json_text(value, ensure_ascii=False, separators=(",", ":")).encode()
    return base64.b64encode(gzip.compress(data, compresslevel=9, mtime=0)).decode(
        "ascii"
    )


@dataclass(eq=False)
class ItemView:
    """Collects the view's data, one checkpoint and task at a time, as packed chunks."""

    numbers: dict[AskedKey, int] = field(default_factory=dict)
    gold: dict[int, list[str]] = field(default_factory=dict)
    chunks: dict[str, str] = field(default_factory=dict)  # element id -> base64
    # checkpoint -> task -> language -> id
    where: dict[str, dict[str, dict[str, str]]] = field(default_factory=dict)
    # by item number, once `index` has been called
    _questions: dict[int, str] | None = None
    # fates by checkpoint, likewise
    _letters: Mapping[str, str] = field(default_factory=dict)

    def add(self, records: pd.DataFrame) -> None:
        """Pack the records of one checkpoint and one task, with the run's own seed.
        Probes of texts have no items."""
        records = _of_one_seed(
            records[records["probe"].isin([probe.name for probe in _shown()])]
        )
        if records.empty:
            return
        checkpoint, task = (
            str(records["checkpoint"].iloc[0]),
            str(records["task"].iloc[0]),
        )
        for language, part in records.groupby("language", sort=True):
            name = self._keep(packed(self._chunk(task, str(language), part)))
            self.where.setdefault(checkpoint, {}).setdefault(task, {})[
                str(language)
            ] = name

    def _keep(self, chunk: str) -> str:
        name = f"chunk-{len(self.chunks)}"
        self.chunks[name] = chunk
        return name

    def _chunk(self, task: str, language: str, records: pd.DataFrame) -> dict[str, Any]:
        strings: dict[str, int] = {}
        numbers, rows = [], []
        views = {probe.name: probe.view for probe in _shown()}
        ordered = by_its_rule(records)[_READ].sort_values(
            ["item_id", "index"], kind="stable"
        )
        # texts of Arrow are slow to take one by one
        ordered = ordered.astype(dict.fromkeys(_TEXTS, object))
        ordered["truncated"] = context_is_cut(ordered).to_numpy(bool)
        for item_id, part in groupby(
            ordered.itertuples(index=False), key=attrgetter("item_id")
        ):
            number = self.numbers.setdefault(
                (task, language, str(item_id)), len(self.numbers)
            )
            cut, gold = 0, None
            entries: dict[str, list[list[Any]]] = {name: [] for name in views}
            for each in part:
                record: Any = each
                cut |= int(record.truncated)
                entry = _entry(views[record.probe], record, strings)
                if entry is not None:
                    entries[record.probe].append(entry)
                    if views[record.probe] == "options" and _is(record.is_gold):
                        gold = str(record.option_text)
            if gold and number not in self.gold:
                self.gold[number] = [gold]
            numbers.append(number)
            rows.append([cut, *entries.values()])
        return {"s": list(strings), "n": numbers, "r": rows}

    def add_items(self, items: pd.DataFrame) -> dict[int, str]:
        """Add the items' gold answers and pack their contexts; returns each item
        number's question."""
        questions: dict[int, str] = {}
        contexts: dict[tuple[str, str], tuple[list[int], list[str]]] = {}
        columns = ["task", "language", "item_id", "question", "context", "answers"]
        for task, language, item_id, question, context, answers in items[
            columns
        ].itertuples(index=False, name=None):
            if (number := self.numbers.get((task, language, item_id))) is None:
                continue
            questions[number] = question
            self.gold[number] = [str(answer) for answer in answers]
            numbers, texts = contexts.setdefault((task, language), ([], []))
            numbers.append(number)
            texts.append(context)
        for (task, language), (numbers, texts) in sorted(contexts.items()):
            name = self._keep(packed({"n": numbers, "s": texts}))
            self.where.setdefault("", {}).setdefault(task, {})[language] = name
        return questions

    def chunks_of(self, checkpoints: Collection[str]) -> dict[str, str]:
        trees = [
            tree for name, tree in self.where.items() if not name or name in checkpoints
        ]
        return {
            each: self.chunks[each]
            for tree in trees
            for by in tree.values()
            for each in by.values()
        }

    @property
    def sizes(self) -> dict[str, int]:
        ids = {
            name: [each for by in tree.values() for each in by.values()]
            for name, tree in self.where.items()
        }
        return {
            name: sum(len(self.chunks[each]) for each in found)
            for name, found in ids.items()
            if name
        }

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
        questions = self._questions
        keys = list(self.numbers)
        tasks, languages = (sorted({key[part] for key in keys}) for part in (0, 1))
        order = sorted(range(len(keys)), key=lambda number: keys[number])
        checkpoints: dict[str, dict[str, Any]] = {}
        for subject in inputs.checkpoints:
            name = subject.checkpoint
            if only is None or name in only:
                checkpoints[name] = {
                    "name": name,
                    "chunks": self.where.get(name, {}),
                    "base": subject.base,
                }
        for name in checkpoints.keys() & self._letters.keys():
            checkpoints[name]["fates"] = self._letters[name]
        return safe_json(
            {
                "formats": FORMATS,
                "probes": [
                    {"name": probe.name, "view": probe.view, "title": probe.title}
                    for probe in _shown()
                ],
                "tasks": tasks,
                "languages": languages,
                "checkpoints": list(checkpoints.values()),
                "contexts": self.where.get("", {}),
                "order": order,
                "task": [tasks.index(key[0]) for key in keys],
                "language": [languages.index(key[1]) for key in keys],
                "id": [key[2] for key in keys],
                "question": [questions.get(number, "") for number in range(len(keys))],
                "gold": [self.gold.get(number, []) for number in range(len(keys))],
            }
        )

    def _fates(self, inputs: Inputs) -> Mapping[str, str]:
        """One letter per item and pruned checkpoint; '.' for an item without
        records."""
        letters: dict[str, list[str]] = {}
        for (task, checkpoint), each in inputs.comparisons().items():
            line = letters.setdefault(checkpoint, ["."] * len(self.numbers))
            keys = zip(
                each.outcomes["language"],
                each.outcomes["item_id"],
                item_fates(each.outcomes),
                strict=True,
            )
            for language, item_id, fate in keys:
                line[self.numbers[task, str(language), str(item_id)]] = FATE_CODES[fate]
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

    def number_of(text: object) -> int:
        return strings.setdefault(text if isinstance(text, str) else "", len(strings))

    if view == "answer":
        thought = [number_of(record.thought)] if isinstance(record.thought, str) else []
        return [
            number_of(record.text),
            _hit(record),
            FORMATS.index(record.format),
            *thought,
        ]
    if view == "answers":
        logprob = _number(record.logprob, 2)
        return [
            number_of(record.text),
            _hit(record),
            *([] if logprob is None else [logprob]),
        ]
    if (
        view == "options"
        and record.option_text is not None
        and not pd.isna(record.option_text)
    ):
        tokens = None if record.token_ids is None else len(record.token_ids)
        return [
            number_of(record.option_text),
            int(_is(record.is_gold)),
            _number(record.logprob, 3),
            tokens,
        ]
    if view == "rank" and not pd.isna(record.rank):
        return [int(record.rank), _number(record.margin, 2)]
    if view == "aligned" and not pd.isna(record.rank):
        said = [number_of(record.text), number_of(record.option_text)]
        return [
            int(record.rank),
            _number(record.margin, 2),
            *said,
            _number(record.logprob, 2),
        ]
    return None


def _hit(record: Any) -> int:
    failed = {"excluded": -1, "engine_error": -2}
    return (
        failed[record.status] if record.status in failed else int(_is(record.contains))
    )


def _is(value: object) -> bool:
    """True only for a true boolean: null is not true."""
    return bool(value) if value is not None and not pd.isna(value) else False  # type: ignore[call-overload]


def _number(value: float | None, digits: int) -> float | None:
    return None if value is None or pd.isna(value) else round(float(value), digits)
