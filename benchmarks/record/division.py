"""A fixed division of evaluation work: which questions an engine answers, and how.

A nonce picks the questions and the seed, so that nobody can compute a record before
the nonce is drawn. The gazetteer has questions without end.
"""

import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from evaluator.asking.questions import Question
from evaluator.checkpoints.tokenizer import load_tokenizer
from evaluator.core.config import validated
from evaluator.core.document import digest
from evaluator.core.errors import (
    Document,
    InputError,
    field,
    parse,
    read_bytes,
    unknown,
)
from evaluator.core.files import write_atomically
from evaluator.core.records import Item
from evaluator.probes.config import EvalConfig
from evaluator.probes.planning import prompter_of, questions_of, tokenised
from evaluator.tasks import load_task
from evaluator.tasks.gazetteer import LANGUAGES, gazetteer_item
from launch.sweep.config import SweepConfig

DIVISIONS = {"closed": Path(__file__).with_name("closed.json")}
ITEMS = 400  # of each language
_POOL = 100  # at least, in the file: distractors are answers of others
_PASSAGES = 10**9  # the nonce draws from so many
Key = tuple[str, str]  # language, item id


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    name: str
    settings: Document  # of EvalConfig
    dtype: str
    digest: str  # of all above


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """The questions of one record, drawn by `nonce`: `items` of each language."""

    division: Division
    nonce: str
    items: int

    @property
    def seed(self) -> int:
        return int(hashlib.sha256(self.nonce.encode()).hexdigest()[:7], 16)

    def questions(self) -> Iterator[Item]:
        for language in LANGUAGES:
            draw = random.Random(f"{self.nonce}/{language}")
            count = max(self.items, _POOL)
            for index in draw.sample(range(_PASSAGES), count):
                yield gazetteer_item(language, index)

    def write(self, file: Path) -> None:
        """Write the questions as the file of task `jsonl`."""
        lines = []
        for item in self.questions():
            row = {
                "id": item.item_id,
                "language": item.language,
                "context": item.context,
                "question": item.question,
                "answers": item.answers,
            }
            lines.append(json.dumps(row, ensure_ascii=False) + "\n")
        write_atomically(file, "".join(lines).encode())

    def sweep(
        self, run_id: str, model: str, file: Path, engine: Document, resources: Document
    ) -> SweepConfig:
        """The sweep that evaluates the questions in `file`. Raises InputError for
        settings of the engine that the division fixes."""
        if "dtype" in engine:
            raise InputError(
                f"--engine-args: dtype: the division fixes it ({self.division.dtype})"
            )
        task = {
            **self.division.settings,
            "task": f"jsonl:{file}",
            "name": self.division.name,
            "items": self.items,
            "seed": self.seed,
            "seeds": [self.seed],
        }
        document = {
            "models": {run_id: model},
            "tasks": [task],
            "seed": self.seed,
            "resources": resources,
            "engine": {**engine, "dtype": self.division.dtype},
        }
        return validated(SweepConfig, document, "resurface bench record")

    @property
    def quarter(self) -> "Draw":
        """What the round without prefix caching asks."""
        return replace(self, items=-(-self.items // 4))

    def plans(self, model: Path, file: Path) -> tuple[EvalConfig, dict[Key, Question]]:
        """Every question of `file` in the model's token ids."""
        (config,) = self.sweep("model", "", file, {}, {}).tasks
        prompter = prompter_of(load_tokenizer(model), config)
        plans = {}
        for question in questions_of(load_task(config.task, None), config):
            key = question.item.language, question.item.item_id
            plan = tokenised(question, prompter, config)
            assert isinstance(plan, Question)  # as it was
            plans[key] = plan
        return config, plans


def stored_nonce(folder: Path) -> tuple[str, str] | None:
    """What a verifier drew for the record in `folder`, and when, in ISO 8601; None
    without a nonce."""
    file = folder / "nonce.json"
    if not file.exists():
        return None
    document = parse(read_bytes(file), str(file))
    nonce: str = field(document, "nonce", str, str(file))
    drawn: str = field(document, "drawn", str, str(file))
    return nonce, drawn


def division_of(name: str) -> Division:
    """A division by its name. Raises InputError for an unknown one and for a changed
    file."""
    if name not in DIVISIONS:
        raise unknown("division", name, DIVISIONS)
    file = DIVISIONS[name]
    document = parse(file.read_bytes(), str(file))
    stated = document.pop("digest")
    if stated != digest(document):
        raise InputError(f"{file}: digest: it is not that of the file")
    return Division(**document, digest=stated)
