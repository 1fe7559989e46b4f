"""The schemas of what commands print with `--json`, and checks against them. `python -m
tests.support.schemas` writes docs/schemas/."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import jsonschema
from pydantic import TypeAdapter, create_model

from evaluator.core.errors import Json, json_text
from evaluator.deciding import comparison
from evaluator.metrics import headline
from evaluator.metrics.columns import COUNT, FLAG, TEXT, Column
from launch import documents
from launch.status import RunStatus
from tests.support.documents import ROOT

FOLDER = ROOT / "docs" / "schemas"
_TYPES: Sequence[tuple[Any, Any]] = (
    (TEXT, str | None),
    (FLAG, bool | None),
    (COUNT, int | None),
)


def _with_rows(model: type, name: str, columns: Sequence[Column]) -> Any:
    """The model, with a table's columns in its rows."""
    fields: dict[str, Any] = {}
    for column in columns:
        kind = next((made for kind, made in _TYPES if kind is column.kind), None)
        for each in column.names:
            fields[each] = (kind or documents.Number), ...
    row = create_model("Row", __base__=documents.Strict, **fields)
    rows: dict[str, Any] = {name: (Sequence[row], ...)}
    return create_model(model.__name__, __base__=model, __doc__=model.__doc__, **rows)


MODELS: Mapping[str, Any] = {
    "status": RunStatus,
    "report": _with_rows(documents.Report, "headline", headline.COLUMNS),
    "compare": _with_rows(documents.Compared, "rows", comparison.COLUMNS),
    "gate": documents.Gate,
    "gate-of-logs": _with_rows(documents.GateOfLogs, "measures", comparison.COLUMNS),
    "gates": documents.Gates,
    "plan": documents.Plan,
    "run": documents.Ended,
    "detach": documents.Detached,
    "dry-run": documents.Estimate,
    "dry-run-job": documents.JobCost,
    "made": documents.Made,
    "explain": documents.Explanation,
    "names": documents.Names,
    "match": documents.Matched,
    "doctor": documents.Doctor,
}


def schemas() -> dict[str, Json]:
    """By the name of the file."""
    return {
        name: TypeAdapter(model).json_schema(mode="serialization")
        for name, model in MODELS.items()
    }


def valid(name: str, text: str) -> Any:
    """The one line of JSON. It must fit the schema of that name."""
    (line,) = text.splitlines()
    schema = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    document = json.loads(line)
    jsonschema.Draft202012Validator(schema).validate(document)
    return document


if __name__ == "__main__":
    for name, schema in schemas().items():
        (FOLDER / f"{name}.json").write_text(json_text(schema, indent=1) + "\n")
