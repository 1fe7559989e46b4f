"""The item view's data, small enough to ship inside the page.

The page reads the index (plain JSON: items, questions, gold answers, fates) when it
opens. The answers are packed into one chunk per checkpoint, task and language:
strings interned, arrays instead of objects, gzip, base64. The browser unpacks a
chunk when a reader opens one of its items.

Model output is untrusted. The JSON escapes every character with a meaning in HTML,
base64 has no such characters, and the page shows model output only as text.

    chunk = {"s": [string...], "n": [item number...], one list for each column}

A chunk has the records as they are stored: a value a record in each column, with the
records of an item together. Texts are places in `s`. `probe` and `format` are places
in the index. An answer's `option_text` is what its grader read, and

    hit   = 1 contains a gold answer, 0 does not, -1 excluded, -2 engine error (the
          text says why)

The index names the probes in this order; those without a view are left out."""

import base64
import gzip
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from evaluator.core.errors import Json, json_text
from evaluator.core.records import FORMATS
from evaluator.core.reducing import by_its_rule
from evaluator.metrics.fates import fates_of
from evaluator.metrics.inputs import Inputs
from evaluator.metrics.items import Array
from evaluator.probes import PROBES
from evaluator.probes.base import Probe
from evaluator.store.outcomes import chosen_seed, context_is_cut

_ESCAPES = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}
_TEXTS = ["text", "option_text", "thought"]
_FAILED = {"excluded": -1, "engine_error": -2}

AskedKey = tuple[str, str, str]  # task, language, item id
Chunks = dict[str, dict[str, str]]  # task -> language -> element id


def safe_json(value: object) -> str:
    """JSON that is safe inside a <script> element, whatever its strings."""
    return _json(value).translate(_ESCAPES)


def packed(value: object) -> str:
    """JSON, gzip, base64; the same bytes for the same value."""
    data = gzip.compress(_json(value).encode(), compresslevel=6, mtime=0)
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
        shown = by_its_rule(records).sort_values(
            ["language", "item_id", "index"], kind="stable"
        )
        columns = _columns(shown, probes)
        kept = shown[["item_id", "is_gold", *_TEXTS]].to_numpy(object)
        for language, rows in shown.groupby("language").indices.items():
            here = slice(rows[0], rows[-1] + 1)
            chunk = self._chunk(task, str(language), kept[here])
            chunk |= {name: values[here] for name, values in columns.items()}
            self._keep(checkpoint, task, str(language), chunk)

    def _keep(self, checkpoint: str, task: str, language: str, chunk: Any) -> None:
        name = f"chunk-{len(self.chunks)}"
        self.chunks[name] = packed(chunk)
        tasks = self.where.setdefault(checkpoint, {})
        tasks.setdefault(task, {})[language] = name

    def _chunk(self, task: str, language: str, records: Array) -> Json:
        """The texts and item numbers of one language's records: of each its item,
        whether it is of a gold option, _TEXTS."""
        codes, items = pd.factorize(records[:, 0])
        keys = [(task, language, str(item)) for item in items]
        numbers = [self.numbers.setdefault(key, len(self.numbers)) for key in keys]
        gold = records[:, 1] == 1
        for code, option in zip(codes[gold], records[gold, 3], strict=True):
            if isinstance(option, str):
                self.gold.setdefault(numbers[code], [option])
        places, strings = pd.factorize(records[:, 2:].ravel())
        chunk: Json = {"s": [*strings], "n": [numbers[code] for code in codes]}
        for at, name in enumerate(_TEXTS):
            own = places[at :: len(_TEXTS)].tolist()
            chunk[name] = [None if place < 0 else place for place in own]
        return chunk

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
        return {
            name: self.chunks[name]
            for checkpoint in self.where
            if not checkpoint or checkpoint in checkpoints
            for name in self._names(checkpoint)
        }

    def _names(self, checkpoint: str) -> Iterator[str]:
        for languages in self.where[checkpoint].values():
            yield from languages.values()

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each checkpoint's answers."""
        return {
            checkpoint: sum(len(self.chunks[name]) for name in self._names(checkpoint))
            for checkpoint in filter(None, self.where)
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
        order = sorted(numbers, key=keys.__getitem__)
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


def _columns(records: pd.DataFrame, probes: list[str]) -> Json:
    """A chunk's columns of numbers."""
    hits = records["contains"].astype("boolean").fillna(False).astype(int)
    return {
        "probe": pd.Categorical(records["probe"], probes).codes.tolist(),
        "format": pd.Categorical(records["format"], FORMATS).codes.tolist(),
        "hit": _listed(records["status"].map(_FAILED).fillna(hits)),
        "gold": _listed(records["is_gold"]),
        "cut": _listed(context_is_cut(records)),
        "logprob": _listed(records["logprob"], 3),
        "margin": _listed(records["margin"], 2),
        "rank": _listed(records["rank"]),
    }


def _listed(column: pd.Series, digits: int | None = None) -> list[float | None]:
    """A column of numbers, rounded; a missing one is None."""
    values = column.to_numpy(np.float64, na_value=np.nan)
    known, listed = ~np.isnan(values), np.full(len(values), None)
    listed[known] = [round(each, digits) for each in values[known].tolist()]
    return [*listed]
