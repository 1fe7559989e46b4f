"""A run directory whose every text was chosen to leave its place: in the page, in
tables, on disk."""

import functools
import json
import re
from html.parser import HTMLParser

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evaluator.report import write_report
from evaluator.report.item_view import safe_json
from tests.support.sweeps import refused
from tests.support.synthetic import write_run

HOSTILE = (
    "=\"'></script></style></svg></title><script>owned()</script><img src=x"
    " onerror=owned()><!-- var(--owned) {{ 7 * 7 }} {% raw %} $\\frac{$"
    " \x01\x1b[31m\x7f &lt; \u2028 javascript:owned()"
)
TEXTS = (
    *("base", "checkpoint", "language", "item_id", "cluster", "question"),
    *("context", "text", "option_text", "method", "pattern", "calibration", "engine"),
    *("engine_version", "dtype", "weights_digest"),
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
    def changed(name, value):
        if isinstance(value, list):
            return [change(name, each) for each in value]
        return None if value is None else change(name, value)

    for path in [*run.glob("records/*/*.parquet"), *run.glob("items/*.parquet")]:
        table = pq.read_table(path)
        for at, column in enumerate(table.schema):
            if column.name in (*TEXTS, "answers", "options"):
                values = [changed(column.name, each) for each in table[at].to_pylist()]
                table = table.set_column(at, column, pa.array(values, column.type))
        pq.write_table(table, path)
    keys = run / "records" / "keys.json"
    document = json.loads(keys.read_text(encoding="utf-8"))
    for cell in document["cells"]:
        for name, value in cell["origin"].items():
            cell["origin"][name] = changed(name, value) if name in TEXTS else value
    keys.write_text(json.dumps(document), encoding="utf-8")
    return run


def one_run(folder):
    return write_run(folder, 6, ("dense", "wanda-0.6"), languages=("english", "arabic"))


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    plain = write_report(one_run(tmp_path_factory.mktemp("plain") / "run"))
    run = one_run(tmp_path_factory.mktemp("hostile") / "run<img src=x>")
    rewritten(run, lambda _, value: value + HOSTILE)
    deep = functools.reduce(lambda inner, _: {HOSTILE: inner}, range(300), HOSTILE)
    notes = {"checkpoint": HOSTILE, "notes": [HOSTILE]}
    document = {
        "provenance": {HOSTILE: [HOSTILE, {HOSTILE: HOSTILE}]},
        "config": HOSTILE,
        HOSTILE: [HOSTILE],
        "checkpoints": 3,
        "identity": [],
        "planned": deep,
        "engine_stats": [notes, "no row", {"notes": None}, {"notes": 5}],
        "state": HOSTILE,
    }
    (run / "run.json").write_text(json.dumps(document))
    reports = plain, write_report(run)
    return [report.page.read_text(encoding="utf-8") for report in reports]


def test_no_text_becomes_an_element(pages):
    """And no script holds what ends it."""
    plain, hostile = map(Page, pages)
    added = {"details", "summary", "ul", "li"}
    assert {*hostile.tags} <= {*plain.tags} - {"img", "iframe", "link"} | added
    allowed = {(tag, name) for tag in ("details", "p") for name in ("class", "open")}
    assert hostile.attributes <= plain.attributes | allowed
    assert not [name for _, name in hostile.attributes if name.startswith("on")]
    assert len(hostile.scripts) == len(plain.scripts)
    for script in hostile.scripts[:-2]:  # the last two are the page's own
        assert not re.search("[<>&\u2028\u2029]", script)
    index = json.loads(hostile.scripts[0])
    # and nothing of it is lost
    assert all(question.endswith(HOSTILE) for question in index["question"])
    assert "(--owned) {{ 7 * 7 }}" in pages[1]  # no template either
    assert "(--owned) 49" not in pages[1]


def test_no_cell_is_a_formula(tmp_path):
    run = rewritten(one_run(tmp_path / "run"), lambda _, value: "=1+1;" + value)
    for path in write_report(run).tables.values():
        text = path.read_text(encoding="utf-8")
        assert not re.search(r'(^|,)"?=', text, re.MULTILINE), path.name
    fates = (run / "tables" / "fates.csv").read_text(encoding="utf-8")
    assert "'=1+1;wanda-0.6" in fates


@pytest.mark.parametrize("place", ["../../out", "a\\b"])
def test_an_item_chooses_no_path(tmp_path, place):
    """Nor does a checkpoint or a task."""
    columns = ("item_id", "language", "cluster", "checkpoint", "task")
    run = one_run(tmp_path / "run")
    rewritten(run, lambda name, value: place * (name in columns) + value)
    before = {*tmp_path.rglob("*")}
    assert write_report(run).page.is_file()
    written = {*tmp_path.rglob("*")} - before
    assert written
    assert all(path.is_relative_to(run) for path in written)
    assert not [path for path in written if "english" in path.name]


@pytest.mark.parametrize("place", ["../../out", "a\\b", "..", ""])
@pytest.mark.parametrize("name", ["checkpoint", "task", "key"])
def test_a_list_of_keys_chooses_no_path(tmp_path, name, place):
    run = one_run(tmp_path / "run")
    keys = run / "records" / "keys.json"
    document = json.loads(keys.read_text())
    document["cells"][0][name] = place
    keys.write_text(json.dumps(document))
    assert f"{keys}: no list of keys (" in refused(write_report, run)


@pytest.mark.parametrize(
    "text", ["</script>", "<!--", "\u2028", "&lt;", "]]>", "\x00\x1f"]
)
def test_embedded_json_holds_no_markup(text):
    written = safe_json({text: [text]})
    assert json.loads(written) == {text: [text]}
    assert not re.search("[<>&\u2028\u2029\x00-\x1f]", written)
