"""What commands print with `--json`, a line of JSON each. `python -m
tests.support.schemas` writes their schemas to docs/schemas/.

A null is a number that does not exist. An infinite one is "Infinity" or "-Infinity"."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, TypeAdapter, WithJsonSchema

from evaluator.core.errors import Document, Json, json_text
from launch.run.events import State
from launch.sweep.estimate import Work

_INFINITE: Json = {"enum": ["Infinity", "-Infinity"]}
_NUMBER: Json = {"anyOf": [{"type": "number"}, _INFINITE, {"type": "null"}]}
Number = Annotated[float | None, WithJsonSchema(_NUMBER)]


Outcome = Literal["PASS", "WARN", "ANOMALOUS", "BLOCK"]


class Strict(BaseModel, extra="forbid"):
    """A part of a document. It has no other fields."""


class Printed(Strict):
    schema_version: int = 1


class Judgement(Strict):
    """The gate's verdict on a checkpoint, without its checks."""

    task: str
    checkpoint: str
    base: str
    verdict: Outcome
    advisory: bool
    usable: str
    why: str
    planned: int
    unjudged: int
    differences: Sequence[str] = ()


class Judged(Judgement):
    checks: Sequence[Document]


class Gate(Printed):
    """RUN/gate.json; shares are fractions of 1."""

    verdict: Outcome
    summary: str
    words: str
    thresholds: Mapping[str, bool | Number]
    policy: Document
    checkpoints: Sequence[Judged]
    not_judged: Sequence[Mapping[str, str]]
    not_in_this_run: Sequence[str]  # tasks and groups of the policy


class JudgedMeasure(Judged):
    measure: str  # of the log


class GateOfLogs(Gate):
    """Of two logs. `measures`, `differences`, `notes`: as `compare` has them."""

    checkpoints: Sequence[JudgedMeasure | Judged]
    not_in_these_logs: Sequence[str]
    differences: Sequence[Document]
    notes: Sequence[str]
    measures: Sequence[Document]


class Gates(Printed):
    """Of several runs: the worst verdict, and each document by the run's path."""

    verdict: Outcome
    runs: Mapping[str, Gate]


class Ended(Printed):
    """The end of a call of `sweep`, `eval` or `demo`; also in RUN/end.json."""

    run: str
    state: State
    why: str
    exit_code: int
    verdicts: Sequence[Judgement]


class Detached(Printed):
    """It is safe to leave: the checks are done, and this process holds the run."""

    run: str
    process: int
    log: str


class Report(Printed):
    """`headline`: as tables/headline.csv; shares are fractions of 1."""

    run: str
    page: str
    sentence: str
    headline: Sequence[Document]
    verdicts: Sequence[Judgement]


class Cost(Strict):
    """Of one checkpoint. Null: its model's size is unknown here."""

    checkpoint: str
    work: Work
    disk_bytes: int | None
    reference_bytes: int | None


class Estimate(Printed):
    """`seconds`: of one engine as fast as in the last run there; null without one."""

    seconds: float | None
    checkpoints: Sequence[Cost]
    notes: Sequence[str]


class JobCost(Printed):
    """`--dry-run` of `prune` and `compress`. Null: the model's size is unknown here."""

    disk_bytes: int | None


class Made(Printed):
    """A checkpoint that `prune` or `compress` made, or that `prune --verify` checked."""

    checkpoint: str
    problems: Sequence[str] = ()


class Explanation(Printed):
    """`stand_in`: small models stand in for the paper's."""

    recipe: str
    question: str
    fills: str
    stand_in: bool
    checkpoints: int
    made: int
    items: int
    requests: int
    excludes: str | None


class Names(Printed):
    """`names`: kind -> name -> description."""

    names: Mapping[str, Mapping[str, str]]


class Plan(Printed):
    """What `gate --plan` prints, for each tolerance in percent: the questions that it
    needs (null: more than 100,000), and the least that so many questions show."""

    questions: int
    tolerances: Sequence[Mapping[str, str | int | Number | None]]


class Matched(Printed):
    """`judges`: name -> what it judged. `controls`: what it made of the control
    pairs."""

    run: str
    judges: Mapping[str, str]
    controls: Mapping[str, str]


class Compared(Printed):
    """`moved`: the number of rows that moved by more than noise."""

    moved: int
    differences: Sequence[Document]
    notes: Sequence[str]
    rows: Sequence[Document]


class Checked(Strict):
    """One check of the doctor, of `n` items. `changed`: the share of other answers."""

    check: str
    passed: bool
    n: int
    failed: int
    changed: Annotated[float, WithJsonSchema(_NUMBER)]
    measured: Mapping[str, Number]
    allowed: Mapping[str, Number]


class Doctor(Printed):
    passed: bool
    verdict: str
    machine: Mapping[str, str]
    checks: Sequence[Checked]


def line_of(document: object) -> str:
    plain = TypeAdapter(type(document)).dump_python(document, mode="json")
    return json_text(plain)
