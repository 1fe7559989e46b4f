"""A run directory whose every text was chosen to leave its place: in the page, in
tables, on disk."""

import functools
import json
import re
from html.parser import HTMLParser

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evaluator.report import write_part, write_report
from evaluator.report.item_view import safe_json
from evaluator.store.lm_eval import export
from tests.support.sweeps import refused
from tests.support.synthetic import write_run

HOSTILE = (
    "=\"'></script></style></svg></title><script>owned()</script><img src=x"
    " onerror=owned()><!-- var(--owned) {{ 7 * 7 }} {% raw %} $\\frac{$"
    " \x01\x1b[31m\x7f &lt; \u2028 javascript:owned()"
)
TEXTS = (
    "base",
    "checkpoint",
    "task",
    "language",
    "item_id",
    "cluster",
    "question",
    "context",
    "text",
    "option_text",
)
STAMPS = (
    "method",
    "pattern",
    "calibration",
    "engine",
    "engine_version",
    "dtype",
    "weights_digest",
)


class Page(HTMLParser):
    """What a browser would make elements of."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.scripts, self._in = [], set(), [], None
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes |= {(tag, name) for name, _ in attrs}
        self._in = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._in = None

    def handle_data(self, data):
        if self._in == "script":
            self.scripts[-1] += data


def rewritten(run, change):
    for path in [*run.glob("records/*/*/*.parquet"), *run.glob("items/*.parquet")]:
        table = pq.read_table(path)
        for name in {*TEXTS, *STAMPS} & {*table.column_names}:
            values = [
                None if value is None else change(name, value)
                for value in table[name].to_pylist()
            ]
            table = table.set_column(
                table.column_names.index(name), name, pa.array(values, pa.string())
            )
        for name in {"answers", "options"} & {*table.column_names}:
            lists = [
                [change(name, value) for value in values or []]
                for values in table[name].to_pylist()
            ]
            table = table.set_column(
                table.column_names.index(name),
                name,
                pa.array(lists, pa.list_(pa.string())),
            )
        pq.write_table(table, path)
    return run


def one_run(folder):
    return write_run(folder, 6, ("dense", "wanda-0.6"), languages=("english", "arabic"))


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    plain = write_report(one_run(tmp_path_factory.mktemp("plain") / "run"))
    run = rewritten(
        one_run(tmp_path_factory.mktemp("hostile") / "run<img src=x>"),
        lambda _, value: value + HOSTILE,
    )
    document = {
        "provenance": {HOSTILE: [HOSTILE, {HOSTILE: HOSTILE}]},
        "config": HOSTILE,
        HOSTILE: [HOSTILE],
    }
    notes = [
        {"checkpoint": HOSTILE, "notes": [HOSTILE]},
        "no row",
        {"notes": None},
        {"notes": 5},
    ]
    deep = functools.reduce(lambda inner, _: {HOSTILE: inner}, range(300), HOSTILE)
    odd = {"checkpoints": 3, "identity": [], "planned": deep}
    (run / "run.json").write_text(
        json.dumps(document | odd | {"engine_stats": notes, "state": HOSTILE})
    )
    hostile = write_report(run)
    return (
        tuple(each.page.read_text(encoding="utf-8") for each in (plain, hostile)),
        hostile,
    )


def test_no_text_becomes_an_element(pages):
    plain, hostile = map(Page, pages[0])
    assert {*hostile.tags} <= {*plain.tags} - {"img", "iframe", "link", "object"} | {
        "details",
        "summary",
        "ul",
        "li",
    }
    allowed = plain.attributes | {
        (tag, name) for tag in ("details", "p") for name in ("class", "open")
    }
    assert hostile.attributes <= allowed
    assert not [name for _, name in hostile.attributes if name.startswith("on")]
    assert len(hostile.scripts) == len(plain.scripts)
    for script in Page(pages[0][1]).scripts[:-1]:  # the last is the page's own
        assert not re.search("[<>&\u2028\u2029]", script)
    index = json.loads(Page(pages[0][1]).scripts[0])
    assert index["tasks"] == ["gazetteer" + HOSTILE]  # and nothing of it is lost
    assert all(question.endswith(HOSTILE) for question in index["question"])
    assert "(--owned) {{ 7 * 7 }}" in pages[0][1]  # no template either
    assert "(--owned) 49" not in pages[0][1]


def test_no_cell_is_a_formula(tmp_path):
    run = rewritten(one_run(tmp_path / "run"), lambda _, value: "=1+1;" + value)
    # what is sent to a tracker
    write_part(run, ["dense", "wanda-0.6"], tmp_path / "part")
    apart = [*(tmp_path / "part" / "tables").iterdir()]
    assert apart
    for path in [*write_report(run).tables.values(), *apart]:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r'(^|,)"?=', text, re.MULTILINE), path.name
    assert "'=1+1;wanda-0.6" in (run / "tables" / "fates.csv").read_text(
        encoding="utf-8"
    )


@pytest.mark.parametrize(
    ("column", "name"),
    [
        *(
            ("checkpoint", name)
            for name in ("../../out", "/tmp/out", "..", "a/b", "a\\b")
        ),
        ("task", "../../out"),
    ],
)
def test_names_choose_no_folder(tmp_path, name, column):
    run = rewritten(
        one_run(tmp_path / "run"), lambda each, value: name if each == column else value
    )
    before = {*tmp_path.rglob("*")}
    assert "cannot be the name of a file" in refused(
        export, run, tmp_path / "out" / "lm-eval"
    )
    assert all(
        (tmp_path / "out") in (path, *path.parents)
        for path in {*tmp_path.rglob("*")} - before
    )


@pytest.mark.parametrize(
    "text", ["</script>", "<!--", "\u2028", "&lt;", "]]>", "\x00\x1f"]
)
def test_embedded_json_holds_no_markup(text):
    written = safe_json({text: [text]})
    assert json.loads(written) == {text: [text]}
    assert not re.search("[<>&\u2028\u2029\x00-\x1f]", written)
