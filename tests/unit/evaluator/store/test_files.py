"""Tables that are opened in a spreadsheet."""

import csv
import io

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.store.files import csv_bytes


def cells(frame):
    return list(csv.reader(io.StringIO(csv_bytes(frame).decode(), newline="")))


@pytest.mark.parametrize(
    "text", ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1", "-", "=", "\t1"]
)
def test_a_text_that_a_spreadsheet_would_compute_is_marked_as_text(text):
    marked = f"'{text}".replace("\r", "\n")
    assert cells(pd.DataFrame({text: [text], "n": [1]})) == [[marked, "n"], [marked, "1"]]
    assert cells(pd.DataFrame({"task": pd.Categorical([text, None])}))[1:] == [[marked], [""]]


@pytest.mark.parametrize("text", ["-0.5", "+1", "-inf", "2:4", "a=b", "wanda-0.5", "", "'=1", "É", "-1e-3"])
def test_any_other_text_stays(text):
    assert cells(pd.DataFrame({"reason": [text], "n": [1]}))[1] == [text, "1"]


@pytest.mark.parametrize("text", ["a\r=1+1", "a\r\n=1+1", "a\n=1+1", 'a",=1+1', "a,=1+1", 'a"\r=1'])
def test_no_text_ends_its_cell(text):
    frame = pd.DataFrame({"reason": [text], "n": [1]})
    assert cells(frame)[1:] == [[text.replace("\r\n", "\n").replace("\r", "\n"), "1"]]
    assert b"\r" not in csv_bytes(frame)  # which ends a row for some readers, quoted or not


def test_numbers_stay_numbers():
    frame = pd.DataFrame({"difference": [-0.25, 0.5, None], "n": pd.array([-1, None, 3], dtype="Int64"), "b": True})
    assert csv_bytes(frame) == frame.to_csv(index=False).encode()
    assert pd.read_csv(io.BytesIO(csv_bytes(frame)))["difference"].tolist()[:2] == [-0.25, 0.5]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1))
def test_no_cell_of_text_begins_as_a_formula(texts):
    for row in cells(pd.DataFrame({"reason": texts, "more": "x"}))[1:]:
        if row[0][:1] in "=+-@\t\r\n＝＋－＠":
            float(row[0])  # only numbers may
