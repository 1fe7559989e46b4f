"""A run of many checkpoints has an index, and pages of some checkpoints each beside
their base."""

import json
import re
from types import SimpleNamespace

import pytest

from evaluator import report
from evaluator.report import page, results, write_report
from tests.support.synthetic import write_run

OTHERS = ("wanda-0.5", "wanda-0.6", "wanda-0.7")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The report of three checkpoints and their base, two on a page; without
    figures, which take their time."""
    run = write_run(
        tmp_path_factory.mktemp("run"), 3, ("dense", *OTHERS), languages=("english",)
    )
    (run / "report" / "pages").mkdir(parents=True)
    (run / "report" / "pages" / "009.html").write_text(
        "of a run that had more checkpoints"
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(results, "MOST", 2)
        patched.setattr(page, "draw_each", lambda *_: [])
        return write_report(run).page.parent


def test_each_checkpoint_has_one_page(folder):
    """Its base is beside it, and the index has no items."""
    assert sorted(path.name for path in (folder / "pages").iterdir()) == [
        "001.html",
        "002.html",
    ]
    seen = []
    for path in (folder / "pages").iterdir():
        text = path.read_text(encoding="utf-8")
        found = re.search(
            r'<script type="application/json" id="index">(.*?)</script>', text, re.S
        )
        base, *others = json.loads(found[1])["checkpoints"]
        assert base["name"] == "dense"
        names = [each["name"] for each in others]
        seen += names
        assert "../index.html" in text
        assert 'id="fates"' in text
        assert not [
            absent for absent in OTHERS if absent not in names and absent in text
        ]
        chunks = [
            name
            for each in (base, *others)
            for by in each["chunks"].values()
            for name in by.values()
        ]
        assert [name for name in chunks if f'id="{name}"' not in text] == []
        assert text.count('id="chunk-') == len(chunks) + 1  # and the passages
    assert sorted(seen) == sorted(OTHERS)
    index = (folder / "index.html").read_text(encoding="utf-8")
    parts = (*OTHERS, 'href="pages/001.html"', 'href="pages/002.html"')
    assert [part for part in parts if part not in index] == []
    assert "<script" not in index
    assert 'id="fates"' not in index


def test_old_pages_stay_until_replaced(tmp_path, monkeypatch):
    before = tmp_path / "report" / "pages" / "009.html"
    before.parent.mkdir(parents=True)
    before.write_text("of a run that had more checkpoints")
    there = []

    def render(*_, **__):
        there.append(before.exists())
        return "page"

    for name, fake in (
        ("part_of", lambda *_: None),
        ("without_tables", lambda _: None),
        ("render_page", render),
    ):
        monkeypatch.setattr(report, name, fake)
    monkeypatch.setattr(
        report, "pages_of", lambda *_: [results.Page("pages/001.html", ("dense",))]
    )
    inputs = SimpleNamespace(run={}, items=None)
    view = SimpleNamespace(sizes={}, index=lambda *_: "", chunks_of=lambda _: {})
    report._write_pages(tmp_path, inputs, None, view)
    assert there == [True, True]
    assert [path.name for path in before.parent.iterdir()] == ["001.html"]


@pytest.mark.parametrize(
    ("count", "bytes_each", "on_pages"),
    # what is too large alone has a page nevertheless
    [
        (24, 2**19, []),
        (25, 2**19, [24, 1]),
        (10, 4 * 2**20, [5, 5]),
        (2, 40 * 2**20, [1, 1]),
    ],
)
def test_size_of_a_page(count, bytes_each, on_pages):
    subjects = [
        SimpleNamespace(checkpoint=f"c{number}", base="c0" if number else None)
        for number in range(count + 1)
    ]
    sizes = {each.checkpoint: bytes_each for each in subjects}
    found = results.pages_of(SimpleNamespace(checkpoints=subjects, readers=[]), sizes)
    names = [name for page in found for name in page.checkpoints[1:]]
    assert names == [each.checkpoint for each in subjects[1:]] or not found
    assert all(page.checkpoints[0] == "c0" for page in found)
    assert [len(page.checkpoints) - 1 for page in found] == on_pages
