"""Checkpoint + items -> records -> numbers: the evaluator of compressed language
models.

run = open_run("runs/grid") run.table("fates") grade("It was in 1863.", ["1863"],
"english")     # {"contains": True, "exact_match": False, "token_f1": 0.4}
"""

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evaluator.report.notebook import OpenRun


def open_run(path: str | Path) -> "OpenRun":
    """A run directory, running or finished, for Python and notebooks. Raises
    InputError if there is none."""
    # late: a process that only imports a part needs no pandas
    from evaluator.report.notebook import OpenRun

    return OpenRun(Path(path), aloud=True)


def grade(
    response: str,
    answers: Iterable[str],
    language: str,
    rule: str = "strict",
    *,
    grader: str = "text",
    options: Iterable[str] = (),
) -> dict[str, Any]:
    """`contains`, `exact_match` and `token_f1` by rule `strict` or `paper`
    (`evaluator.core.grading`). A text in place of the answers is the only one. Another
    `grader`, as `number`, decides `contains`, and `extracted` has what it took as the
    answer; `options`: those that the prompt listed. Warns of a language that no table
    has. Raises InputError for an unknown rule or grader, or answers it cannot read."""
    from evaluator.core import grading
    from evaluator.core.errors import InputError
    from evaluator.core.graders import GRADERS
    from evaluator.core.records import Item
    from evaluator.core.text import UNKNOWN, is_known

    if not is_known(language):
        warnings.warn(f"{language!r} {UNKNOWN}", stacklevel=2)
    golds = (answers,) if isinstance(answers, str) else answers
    item = Item(
        task="",
        language=language,
        item_id="",
        context="",
        question="",
        answers=tuple(golds),
        cluster="",
        options=tuple(options),
    )
    graded = grading.grade(response, item.answers, language, rule)
    if grader != "text":
        chosen = GRADERS[grader]
        if problem := chosen.problem(item):
            raise InputError(f"grader {grader!r}: {problem}")
        graded["contains"], graded["extracted"] = chosen.graded(
            grading.strip_thinking(response), item
        )
    return graded
