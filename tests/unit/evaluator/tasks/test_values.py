"""What a value means as text, and that a table gives the same items whatever format
it is saved in."""

import datetime
import json
from decimal import Decimal

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.core.errors import InputError
from evaluator.tasks import Source, load_task
from evaluator.tasks.values import Texts
from tests.support.sweeps import refused

MINE = Source.model_validate(
    {"language": "english", "fields": {"id": "i", "question": "q", "answers": "a"}}
)
# datasets 4.0 leaves a file of CSV open.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)


def text(*values, csv=False, alone=True):
    texts = Texts(csv=csv)
    found = [
        texts.read(value, "a", f"row {row}: a", alone=alone, prose=False)
        for row, value in enumerate(values)
    ]
    texts.finish()
    return found


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([1701.0, float("nan"), -3.0, 0.0], ["1701", None, "-3", "0"]),
        ([np.float32(1871.0), np.float16(12.0)], ["1871", "12"]),
        ([2.5, 1e-7, 1.25e20 + 0.5], None),
        ([2.5, 1e-7, -0.1], ["2.5", "0.0000001", "-0.1"]),
        ([np.float32(0.1), np.float32(3.7)], ["0.1", "3.7"]),
        ([2**63 - 1, 2**64 - 1, -1], [str(2**63 - 1), str(2**64 - 1), "-1"]),
        ([Decimal("1701.000"), Decimal("12")], ["1701", "12"]),
        ([Decimal("3.140"), Decimal("0.5")], ["3.14", "0.5"]),
        ([Decimal(2**70)], [str(2**70)]),
        ([datetime.date(1871, 2, 3), None], ["1871-02-03", None]),
        (["29.0", " 1871-02-03 ", "1e3", "True", "None", "NA", "[sic]"],
         ["29.0", "1871-02-03", "1e3", "True", "None", "NA", "[sic]"]),
    ],
)  # fmt: skip
def test_meaning_of_values(values, texts):
    if texts is None:
        refused(text, *values)
    else:
        assert text(*values) == texts


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ([1.5, 2.0], ["row 1: a is 2.0, in a column with fractions (row 0: a is 1.5)", "as texts"]),
        ([Decimal("2.0"), 1.5], ["row 0: a is 2.0, in a column with fractions"]),
        ([2.0**53], ["row 0: a is 9007199254740992.0, a float without its last digits"]),
        ([np.float32(2**24)], ["16777216.0, a float without its last digits"]),
        ([float("inf")], ["a is inf"]),
        ([True], ["must be text or a number, not True: write it as the text that is meant"]),
        ([datetime.datetime(1871, 2, 3)], ["not datetime.datetime(1871, 2, 3, 0, 0): write it as the text"]),
        ([datetime.time(1, 2)], ["not datetime.time(1, 2)"]),
        ([b"x"], ["not b'x'"]),
        *(([hole], [f"is the text {hole!r}", "leave it empty"]) for hole in ("nan", "NaT", "<NA>", "NULL", "#N/A")),
        *(
            ([listed], ["is a list as text", "use JSON or Parquet"])
            for listed in ("['a', 'b']", '["a"]', "['a' 'b']", "('a', 'b')", "[['a'], ['b']]", "array(['a'])",
                           "{'text': array(['a'], dtype=object)}", '{"text": ["a"]}')
        ),
    ],
)  # fmt: skip
def test_ambiguous_values_are_refused(values, parts):
    message = refused(text, *values)
    assert all(part in message for part in parts), message


def test_lists_hold_any_text():
    """In a list, a text is meant as it is."""
    assert text("nan", "['a']", alone=False) == ["nan", "['a']"]


@pytest.mark.parametrize("value", ["[1486 1487]", "[a, b]", "[]", "{a}"])
def test_csv_refuses_brackets(value):
    assert "row 0: a is a list as text" in refused(text, value, csv=True)
    assert text(value) == [value]
    assert Texts(csv=True).read(value, "c", "c", alone=True, prose=True) == value


def test_csv_refuses_whole_numbers_with_point():
    assert "row 1: a is 1701.0, and every value of this column is a number" in refused(
        text, "", "1701.0", csv=True
    )
    assert "row 0: a is 1701.0" in refused(text, "1701.0", "1.5", csv=True)
    for values in (["1701.0", "x"], ["x", "1701.0"], ["1701", "1.5"]):
        assert text(*values, csv=True) == values


@pytest.mark.parametrize("value", ["True", "FALSE", "true"])
def test_csv_refuses_boolean_answers(tmp_path, value):
    """pandas wrote a boolean; a text in JSON is meant."""
    file = tmp_path / "f.csv"
    file.write_text(f"i,q,a\n1,{value},x\n2,?,{value}\n", encoding="utf-8")
    told = refused(load_task, f"hf:{file}", None, said=MINE)
    assert (
        f"f.csv: row 1 (the first is 0): field 'answers' (a) is {value}, a boolean in CSV"
        in told
    )
    assert text(value) == [value]


@pytest.mark.parametrize("head", ["i,q,a,q", '\ufeffq,"a",a,i', "\na,a,i,q"])
def test_csv_refuses_columns_named_twice(tmp_path, head):
    file = tmp_path / "f.csv"
    file.write_text(f"{head}\n1,2,3,4\n", encoding="utf-8")
    told = refused(load_task, f"hf:{file}", None, said=MINE)
    assert "f.csv: column " in told
    assert "occurs twice" in told


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ("i,q,a\n1,Where?,Bern, Basel\n", "line 2: has 4 fields, and the header 3"),
        ("i,q,a\n1,Who, when?,Ada\n2,x,y,z\n", "line 2: has 4 fields"),
        ("i,q,a\n1,?,x\n2,?\n", "line 3: has 2 fields"),
        ('i,q,a\n\n1,"a\nb",x\n2,?,x,\n', "line 5: has 4 fields"),
        ("i,q,a\r\n1,?,Bern\\, Basel\r\n", "line 2: has 4 fields"),
        (r'i,q,a|1,"say \"yes\", no",x', "line 2: ',' expected after '\"'"),
        (r"i,q,a|1,say \"yes\",x", "line 2: column 'q': 'say"),
        (r'i,q,a|1,"One.\nTwo?",x', "line 2: column 'q': 'One."),
        (r"i,q,a|1,?,\N", "line 2: column 'a': "),
        ('i,q,a\n1,"?,x\n', "line 2: unexpected end of data"),
    ],
)
def test_csv_rows_are_as_long_as_the_header(tmp_path, rows, told):
    """Else `datasets` takes the first column for an index, and shifts the others."""
    file = tmp_path / "f.csv"
    file.write_bytes(rows.replace("|", "\n").encode())
    assert f"f.csv: {told}" in refused(load_task, f"hf:{file}", None, said=MINE)


def test_csv_is_read_as_it_stands(tmp_path):
    long = "x" * 200_000
    file = tmp_path / "f.csv"
    row = rf'007,"say ""a, b"" {long}","$3\,cm \nu$"'
    file.write_text(f"\ufeffi,q,a\r\n\r\n{row}", encoding="utf-8")
    (item,) = load_task(f"hf:{file}", None, said=MINE).pools["english"]
    assert (item.item_id, item.question) == ("007", f'say "a, b" {long}')
    assert item.answers == (r"$3\,cm \nu$",)


def english(file, said):
    said = Source.model_validate({"language": "english"} | said)
    return load_task(f"hf:{file}", None, said=said).pools["english"]


@pytest.mark.parametrize(
    ("names", "fields", "golds"),
    [
        (["bad", "good"], {}, "no yes"),
        (["bad", "good"], {"labels": ["=good", "=bad"]}, "yes no"),
        (["bad", "good"], {"labels": ["=1", "=0"]}, "yes no"),
        (["A", "B"], {}, "no yes"),
    ],
)
def test_class_label_picks_option(tmp_path, names, fields, golds):
    kinds = {"q": datasets.Value("string"), "a": datasets.ClassLabel(names=names)}
    rows = {"q": ["x", "y"], "a": [0, 1]}
    table = datasets.Dataset.from_dict(rows, features=datasets.Features(kinds))
    table.to_parquet(tmp_path / "f.parquet")
    fields = {"question": "q", "answer": "a", "options": ["=no", "=yes"], **fields}
    items = english(tmp_path / "f.parquet", {"fields": fields})
    assert " ".join(item.answers[0] for item in items) == golds


VALUES = {
    "years": st.integers(1000, 2100),
    "large": st.integers(2**53, 2**63 - 1),
    "small": st.floats(1e-9, 1e-3),
    "fractions": st.floats(0.001, 1e6).filter(lambda value: value != int(value)),
    "whole floats": st.integers(-(10**6), 10**6).map(float),
    "texts": st.sampled_from(
        [*("1871-02-03", "1871-02-03T04:05:06", "007", "NA"), "a,b", 'say "x"', "ß"]
    ),
}


@pytest.mark.parametrize("kind", VALUES)
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_formats_agree(tmp_path_factory, kind, data):
    """Written as Parquet, JSON Lines and CSV, and by pandas with a hole: the same
    gold answers, or a refusal."""
    values = data.draw(st.lists(VALUES[kind], min_size=1, max_size=4))
    folder = tmp_path_factory.mktemp("formats")
    rows = [{"i": f"r{n}", "q": "?", "a": value} for n, value in enumerate(values)]
    pq.write_table(pa.Table.from_pylist(rows), folder / "arrow.parquet")
    (folder / "lines.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "list.json").write_text(json.dumps(rows, indent=1))
    pd.DataFrame(rows).to_csv(folder / "pandas.csv", index=False)
    holed = pd.DataFrame([*rows, {"i": "hole", "q": "?"}])
    holed.to_parquet(folder / "holed.parquet")
    holed.to_csv(folder / "holed.csv", index=False)
    lines = {"orient": "records", "lines": True, "double_precision": 15}
    holed.to_json(folder / "holed.jsonl", **lines)
    found = {}
    for file in sorted(folder.iterdir()):
        try:
            pool = load_task(f"hf:{file}", None, said=MINE).pools["english"]
        except InputError:
            continue
        found[file.name] = [item.answers for item in pool if item.item_id != "hole"]
    assert "arrow.parquet" in found
    first = found["arrow.parquet"]
    if kind == "large":
        first = [(str(value),) for value in values]
    if kind in ("fractions", "small"):  # pandas' JSON has 15 decimals
        found.pop("holed.jsonl", None)
    assert all(answers == first for answers in found.values()), found


def test_json_keys_may_lack_in_some_rows(tmp_path):
    file = tmp_path / "f.jsonl"
    rows = [{"q": "?", "a": inner} for inner in ({"x": "1"}, {}, {"x": 2})]
    file.write_text("\n".join(map(json.dumps, rows)))
    items = english(file, {"fields": {"question": "q", "answers": "a.x"}})
    assert [item.answers for item in items] == [("1",), (), ("2",)]
