"""The way of a greedy question, measured: how many functions, files and forms it
passes from a task to a table."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from evaluator.checkpoints.tokenizer import load_tokenizer
from evaluator.metrics.columns import typed_frame
from evaluator.metrics.inputs import Inputs
from evaluator.metrics.tables import TABLES
from evaluator.probes.item import TaskRun
from evaluator.probes.planning import tokenised
from evaluator.probes.stream import Evaluation
from evaluator.store.outcomes import reduce_records
from evaluator.store.records import to_table
from tests.support import probing
from tests.support.fake import FakeEngine
from tests.support.models import save_tiny_model
from tests.support.stamps import STAMP

ROOT = Path(__file__).resolve().parents[1]
ENGINE = str(ROOT / "tests" / "support" / "fake.py")


class Way:
    """What runs within `measure`. A function counts once, however often it is
    called; comprehensions and lambdas count as part of their function. A file counts
    if one of its functions runs. A form is a class of the project of which an object
    is made. The scripted engine itself does not count."""

    def __init__(self) -> None:
        self.functions: set[tuple[str, str]] = set()
        self.forms: set[str] = set()

    def measure(self, work: Callable[[], Any]) -> Any:
        sys.setprofile(self._note)
        try:
            return work()
        finally:
            sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or code.co_filename == ENGINE:
            return
        if code.co_name == "__init__" and (
            kind := type(frame.f_locals.get("self"))
        ).__module__.startswith("evaluator"):
            self.forms.add(kind.__name__)
        if code.co_filename.startswith(
            str(ROOT / "evaluator")
        ) and not code.co_name.startswith("<"):
            self.functions.add((code.co_filename, code.co_qualname))

    @property
    def files(self) -> set[str]:
        return {file for file, _ in self.functions}


def test_way_of_a_greedy_question(tmp_path: Path) -> None:
    settings = probing.config(formats=("open",), probes=("greedy",), items=2)
    tokenizer = load_tokenizer(save_tiny_model(tmp_path))
    prompter, engine = (
        probing.prompter(tokenizer),
        FakeEngine(probing.answer(tokenizer, "answer 3")),
    )

    def to_records() -> list[Any]:
        plans = [
            tokenised(question, prompter, settings)
            for question in probing.questions(settings)
        ]
        chosen = settings.chosen
        task = TaskRun(config=settings, probes=chosen, prompter=prompter, columns=STAMP)
        evaluation = Evaluation([(plan, task) for plan in plans])
        return [record for _, records in evaluation.run(engine) for record in records]

    first, second = Way(), Way()
    records = first.measure(to_records)
    assert len(records) == 2
    first.forms.add(type(records[0]).__name__)  # made without a function of Python
    outcomes = second.measure(lambda: reduce_records(to_table(records).to_pandas()))
    accuracy = TABLES["accuracy"]
    table = second.measure(
        lambda: typed_frame(accuracy.columns, accuracy.rows(Inputs(outcomes)))
    )
    assert not table.empty
    assert len(first.functions) <= 81, sorted(first.functions)
    assert len(first.files) <= 14, sorted(first.files)
    assert len(first.forms) <= 10, sorted(first.forms)
    assert len(second.functions) <= 108, sorted(second.functions)
    assert len(second.files) <= 17, sorted(second.files)
    assert len(second.forms) <= 6, sorted(second.forms)
