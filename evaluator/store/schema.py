"""The columns of all files of a run, derived from the fields of
`evaluator.core.records`.

    python -m evaluator.store.schema > docs/records.md

Files are written with the Arrow schemas `RECORDS`, `ITEMS` and `VERDICTS`.
The report reads the columns `READ_RECORDS` and the other `READ_*`. `PANDAS` types a
frame of records. No other module lists the columns.
"""

import types
from dataclasses import dataclass
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import pyarrow as pa

from evaluator.core.records import Cell, Item, Meaning, Record, VerdictRow

_ARROW: dict[Any, str] = {
    str: "string",
    int: "int32",
    float: "double",
    bool: "bool",
    tuple[str, ...]: "list<string>",
    tuple[int, ...]: "list<int32>",
    tuple[float, ...]: "list<float>",
    tuple[bool, ...]: "list<bool>",
}
_PANDAS = {
    "string": "string",
    "int32": "Int64",
    "int64": "Int64",
    "double": "Float64",
    "bool": "boolean",
}


@dataclass(frozen=True, slots=True)
class Stored:
    name: str
    arrow: str  # "string", "int32", "int64", "double", "bool", "list<...>"
    nullable: bool
    values: tuple[str, ...]  # the allowed values, if its type lists them
    meaning: Meaning


def stored(kind: type) -> tuple[Stored, ...]:
    """The columns of a class, in order. Raises TypeError for a field without a
    Meaning or a type that files hold."""
    hints = get_type_hints(kind, include_extras=True)
    return tuple(
        _stored(name, hint)
        for name, hint in hints.items()
        if get_origin(hint) is not ClassVar
    )


def _stored(name: str, hint: Any) -> Stored:
    if get_origin(hint) is not Annotated:
        raise TypeError(f"field {name!r} states no Meaning")
    inner, meaning = get_args(hint)
    nullable = get_origin(inner) in (Union, types.UnionType)
    if nullable:
        (inner,) = (part for part in get_args(inner) if part is not type(None))
    values: tuple[str, ...] = ()
    if get_origin(inner) is Literal:
        inner, values = str, get_args(inner)
    if inner not in _ARROW:
        raise TypeError(f"field {name!r}: {inner} cannot be stored")
    return Stored(name, meaning.arrow or _ARROW[inner], nullable, values, meaning)


def _arrow(name: str) -> pa.DataType:
    if name.startswith("list<"):
        return pa.list_(_arrow(name[5:-1]))
    return pa.type_for_alias(name)


_RECORD, _ITEM = stored(Record), stored(Item)
_KEY = tuple(each for each in _RECORD if each.meaning.key)
_VERDICT = (*_KEY, *stored(VerdictRow))

_CELL = stored(Cell)

_ALL = _RECORD, _ITEM, _VERDICT
RECORDS, ITEMS, VERDICTS, NUMBERS = (
    pa.schema([(each.name, _arrow(each.arrow)) for each in kind])
    for kind in (*_ALL, _CELL)
)
KEY = tuple(each.name for each in _KEY)  # the columns that together name a record
READ_RECORDS, READ_ITEMS, READ_VERDICTS = (
    tuple(each.name for each in kind if each.meaning.reported) for kind in _ALL
)
# Every column of a file by name, for a reader that checks what others may have written.
RECORD_COLUMNS, ITEM_COLUMNS, VERDICT_COLUMNS = (
    {each.name: each for each in kind} for kind in _ALL
)
# The nullable pandas type of every record column that holds one value.
PANDAS = {each.name: _PANDAS[each.arrow] for each in _RECORD if each.arrow in _PANDAS}
# The same of a table of numbers, with NaN for a missing one.
NUMBER_TYPES = {
    each.name: _PANDAS[each.arrow].replace("Float", "float") for each in _CELL
}

_HEAD = """# What a run keeps

`python -m evaluator.store.schema > docs/records.md` generates this page.

Every part is a Parquet file that appears whole or not at all. A number that was not measured is null; types
with `?` permit null. Records under the present names:

```python
from evaluator import open_run

records = open_run("runs/mine").records()
```
"""
_NUMBERS = """A row for each number.

```python
from evaluator import open_run

run, other = open_run("runs/before"), open_run("runs/after")
numbers = run.numbers()
fates = numbers.query("table == 'fates' and language == 'all'")
wide = fates.pivot(index=[*numbers.columns[1:8]], columns="measure", values="value")
both = numbers.merge(other.numbers(), on=[*numbers.columns[:9]])
```"""
_FILES = (
    (
        "Records",
        "RUN/records/<key>/part-*.parquet",
        (
            "A row for each record: the outcome of one probe of one item on one"
            " checkpoint.\nA record is named by"
            f" {', '.join(f'`{name}`' for name in KEY)}.\n\n`<key>` is the digest of"
            " all that the numbers depend on but items, probes, formats and seeds: weights,\n"
            "configuration, tokenizer, chat template, base, data, settings, engine, dtype"
            " and vLLM's version. `RUN/records/keys.json`\nsays what each key is, and which"
            " checkpoint and task has it. Equal content under two names has one key. Parts\n"
            "keep the names of the call that wrote them. Of several records with one name,"
            " the last part's counts."
        ),
        _RECORD,
    ),
    ("Items", "RUN/items/<task>.parquet", "A row for each question.", _ITEM),
    (
        "Verdicts",
        "RUN/verdicts/<matcher>/<checkpoint>/<task>.parquet",
        (
            "A row for each judged record: its key, then these columns."
            " `controls.parquet` beside the checkpoints' folders judges claims whose"
            " answer is known."
        ),
        stored(VerdictRow),
    ),
    ("Numbers", "RUN/tables/numbers.parquet", _NUMBERS, _CELL),
)

_OUTCOMES = """## Outcomes

`RUN/outcomes/<checkpoint>.parquet`

One row for each item, format and seed: what every probe found. Each report derives them from the records again.
`<probe>_status` is that of its records, `<probe>_why` the reason for a null. `columns` of each probe
(`evaluator/probes/`) names the others.
"""


def document() -> str:
    """docs/records.md: every column of every file, with type, unit and meaning."""
    lines = [_HEAD]
    for title, path, rows, columns in _FILES:
        lines += [f"## {title}", "", f"`{path}`", "", rows, ""]
        for each in columns:
            optional = "?" if each.nullable else ""
            unit = f", {each.meaning.unit}" if each.meaning.unit else ""
            kind = f"`{each.arrow}{optional}`{unit}"
            values = [
                f"`{value}`"
                for value in each.values
                if f"`{value}`" not in each.meaning.text
            ]
            named = f" ({', '.join(values)})" if values else ""
            lines.append(f"- `{each.name}` ({kind}): {each.meaning.text}{named}")
        lines.append("")
    return "\n".join([*lines, _OUTCOMES])


if __name__ == "__main__":
    print(document(), end="")
