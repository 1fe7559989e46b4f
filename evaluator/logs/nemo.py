"""The bundles of NeMo Evaluator from 0.3 on:

    DIR/<benchmark>/eval-<time>-<benchmark>.json     its settings and aggregated numbers
    DIR/<benchmark>/results.jsonl                    a line for each problem and repeat

Older versions start other programs: read the logs of those."""

from itertools import starmap
from pathlib import Path

from evaluator.core.errors import (
    InputError,
    Json,
    field,
    mapping_at,
    spelled,
    text_field,
)
from evaluator.logs.base import (
    LoggedTask,
    Reader,
    Sample,
    content_of,
    digest,
    instant,
    lines_in,
    newest,
    numbers_of,
    object_in,
    text_or_none,
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
        bundles = []
        for folder in folders:
            known = [each for each in folder.glob(self.names) if _rows(each).is_file()]
            if len(known) > 1:
                times = {
                    each: instant(object_in(each).get("timestamp")) for each in known
                }
                known = [newest(times)[0]]
            bundles += known
        return bundles

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
            model = text_or_none(stated.get("model")) or file.parent.parent.name
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
    scores, others = numbers_of(_rewards(row))
    response, answer = row.get("model_response"), row.get("extracted_answer")
    repeat = row.get("repeat")
    return Sample(
        number=f"{problem} repeat {0 if repeat is None else repeat}",
        content=content_of(row.get("prompt"), row.get("expected_answer")),
        answer=spelled(response if answer is None else answer),
        response=digest(response),
        scores=scores,
        others=others,
        cluster=f"problem {problem}",
        more_is_better=scores,  # each is a reward
    )


def _rewards(row: Json) -> Json:
    """Without those that a failure outside the model hides: NeMo calls one of the model
    itself `graceful`, and scores every other one as 0 too. So it does where a scorer
    could not start, or was replaced by the comparison of whole texts."""
    details = mapping_at(row, "scoring_details")
    category, error = details.get("error_category"), details.get("error")
    replaced = details.get("method") == "exact_match_fallback"
    failed = isinstance(error, str) if category is None else category != "graceful"
    if failed or replaced or details.get("unscored"):
        return {}
    rewards = dict(mapping_at(row, "scorer_rewards"))
    for name in tuple(rewards):
        if mapping_at(details, f"scorer:{name}").get("error") is not None:
            del rewards[name]
    judge = mapping_at(details, "judge")
    if judge.get("error") is None and not judge.get("parse_error"):
        rewards["reward"] = row.get("reward")
    return rewards
