"""A fixed division of evaluation work: what is asked, and how."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.serving import workload
from evaluator.asking.questions import Posed
from evaluator.core.errors import InputError, parse, unknown
from evaluator.probes.config import EvalConfig
from evaluator.probes.planning import questions_of, tokenised
from evaluator.tasks import load_task
from launch.sweep.config import SweepConfig
from launch.sweep.document import digest, validated

DIVISIONS = {"closed": Path(__file__).with_name("closed.json")}
# closed-first-2: two items of each language, another division, for tests
SMALLER = "-first-"
Item = tuple[str, str]  # language, id


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """`digest` covers all of it."""

    name: str
    task: str
    data: str  # the digest of the task's data
    # language -> ids, in the order in which they are asked
    items: Mapping[str, Sequence[str]]
    settings: Mapping[str, Any]  # of EvalConfig
    dtype: str
    digest: str

    def sweep(
        self,
        run_id: str,
        model: str,
        engine: Mapping[str, Any],
        resources: Mapping[str, Any],
    ) -> SweepConfig:
        """The sweep that runs it. Raises InputError for settings of the engine that
        the division fixes."""
        if "dtype" in engine:
            raise InputError(
                f"--engine-args: dtype: the division fixes it ({self.dtype})"
            )
        task = {
            "task": self.task,
            "languages": list(self.items),
            "items": len(next(iter(self.items.values()))),
            **self.settings,
        }
        document = {
            "models": {run_id: model},
            "tasks": [task],
            "seed": self.settings["seed"],
            "resources": resources,
            "engine": {**engine, "dtype": self.dtype},
        }
        return validated(SweepConfig, document, "resurface bench record")

    def plans(self, model: Path) -> tuple[EvalConfig, dict[Item, Posed]]:
        """Every item in the model's token ids. Raises InputError if this checkout's
        data are others."""
        (config,) = self.sweep("model", "", {}, {}).tasks
        data = load_task(self.task, list(self.items))
        prompter = workload.prompter_of(model)
        plans = {}
        for question in questions_of(data, config):
            item = question.item.language, question.item.item_id
            plans[item] = tokenised(question, prompter, config)
        wanted = [
            (language, name) for language in self.items for name in self.items[language]
        ]
        if data.digest != self.data or [*plans] != wanted:
            raise InputError(
                f"division {self.name}: this checkout has other data of task"
                f" {self.task}"
            )
        return config, plans


def division_of(name: str) -> Division:
    """A division by its name, or its first items. Raises InputError for an unknown
    one and for a changed file."""
    known, smaller, count = name.partition(SMALLER)
    if known not in DIVISIONS or (smaller and not (count.isdecimal() and int(count))):
        raise unknown("division", name, DIVISIONS)
    file = DIVISIONS[known]
    document = parse(file.read_bytes(), str(file))
    if document.pop("digest") != digest(document):
        raise InputError(f"{file}: digest: it is not that of the file")
    if smaller:
        items = document["items"]
        document["name"] = name
        document["items"] = {
            language: items[language][: int(count)] for language in items
        }
    return Division(**document, digest=digest(document))
