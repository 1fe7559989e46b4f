"""The bundles of NeMo Evaluator from 0.3 on:

    DIR/<benchmark>/eval-<time>-<benchmark>.json     its settings and aggregated numbers
    DIR/<benchmark>/results.jsonl                    a line for each problem and repeat

Older versions start other programs: read the logs of those."""

from itertools import starmap
from pathlib import Path

from evaluator.core.errors import InputError, Json, field, mapping_at, text_field
from evaluator.logs.base import (
    LoggedTask,
    Reader,
    Sample,
    content_of,
    digest,
    lines_in,
    numbers_of,
    object_in,
)

_RESULTS = "results.jsonl"
_DECISIVE = (
    *("temperature", "top_p", "max_tokens", "seed", "system_prompt", "repeats"),
    *("shuffle_seed", "instruction_template"),
)


class Nemo(Reader):
    program = "NeMo Evaluator"
    names = "eval-*.json"

    def files(self, path: Path) -> list[Path]:
        """The newest bundle of each folder: its results replaced those of others."""
        if path.is_file():
            is_bundle = path.match(self.names) or path.name == _RESULTS
            folders = [path.parent] if is_bundle else []
        else:
            folders = sorted({file.parent for file in path.glob(f"**/{self.names}")})
        bundles = [max(each.glob(self.names), default=None) for each in folders]
        return [each for each in bundles if each is not None and _rows(each).is_file()]

    def lacking(self, path: Path) -> str:
        if any(path.glob(f"**/{self.names}")):
            return f"a bundle of NeMo Evaluator without its {_RESULTS}"
        return ""

    def read(self, path: Path, files: list[Path]) -> list[LoggedTask]:
        """Raises InputError for a benchmark of one model in two folders."""
        tasks: dict[tuple[str, str], LoggedTask] = {}
        for file in files:
            where = str(file)
            bundle = object_in(file)
            stated = field(bundle, "config", dict, where)
            task = text_field(mapping_at(bundle, "benchmark"), "name", where)
            model = str(stated.get("model") or file.parent.parent.name)
            if (model, task) in tasks:
                raise InputError(f"{path}: {task!r} of {model!r} twice: name a folder")
            decisive: Json = {name: stated.get(name) for name in _DECISIVE}
            settings = stated | {"sdk_version": bundle.get("sdk_version")} | decisive
            tasks[model, task] = LoggedTask(
                model=model,
                task=task,
                samples=starmap(_sample_of, lines_in(_rows(file))),
                settings=settings,
                decisive=decisive,
            )
        return list(tasks.values())


def _rows(bundle: Path) -> Path:
    return bundle.parent / _RESULTS


def _sample_of(where: str, row: Json) -> Sample:
    problem = row.get("problem_idx")
    if not isinstance(problem, int):
        raise InputError(f"{where}: field 'problem_idx' must be a whole number")
    rewards = {"reward": row.get("reward"), **mapping_at(row, "scorer_rewards")}
    scores, others = numbers_of(rewards)
    response = row.get("model_response")
    return Sample(
        number=f"{problem} repeat {row.get('repeat', 0)}",
        content=content_of(row.get("prompt"), row.get("expected_answer")),
        answer=str(row.get("extracted_answer") or response),
        response=digest(response),
        scores=scores,
        others=others,
        cluster=f"problem {problem}",
    )
