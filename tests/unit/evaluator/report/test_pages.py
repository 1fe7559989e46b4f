"""A run of many checkpoints has an index, and pages of some checkpoints each beside
their base."""

import json
import re
from types import SimpleNamespace

import pytest

from evaluator.report import page, results, write_report
from tests.support.synthetic import write_run

OTHERS = ("wanda-0.5", "wanda-0.6", "wanda-0.7")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The report of three checkpoints and their base, two on a page."""
    names, run = ("dense", *OTHERS), tmp_path_factory.mktemp("run")
    write_run(run, 3, names, languages=("english",))
    old = run / "report" / "pages" / "009.html"  # of a run of more checkpoints
    old.parent.mkdir(parents=True)
    old.touch()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(results, "MOST", 2)
        return write_report(run).page.parent


def test_each_checkpoint_has_one_page(folder):
    """Its base is beside it, and the index has no items."""
    seen, pages = [], sorted((folder / "pages").iterdir())
    assert [path.name for path in pages] == ["001.html", "002.html"]
    embedded = r'<script type="application/json" id="index">(.*?)</script>'
    for path in pages:
        text = path.read_text(encoding="utf-8")
        checkpoints = json.loads(re.search(embedded, text, re.S)[1])["checkpoints"]
        base, *names = (each["name"] for each in checkpoints)
        assert base == "dense"
        seen += names
        assert "../index.html" in text
        assert 'id="fates"' in text
        for absent in {*OTHERS}.difference(names):
            assert absent not in text
        chunks = [each["chunks"]["gazetteer"]["english"] for each in checkpoints]
        for name in chunks:
            assert f'id="{name}"' in text
        assert text.count('id="chunk-') == len(chunks) + 1  # and the passages
    assert sorted(seen) == sorted(OTHERS)
    index = (folder / "index.html").read_text(encoding="utf-8")
    for part in (*OTHERS, 'href="pages/001.html"', 'href="pages/002.html"'):
        assert part in index
    assert index.count("<script") == 1  # which sorts the headline
    assert 'id="fates"' not in index


@pytest.mark.parametrize(
    ("count", "megabytes", "on_pages"),
    # what is too large alone has a page nevertheless
    [(24, 0.5, []), (25, 0.5, [24, 1]), (10, 4, [5, 5]), (2, 40, [1, 1])],
)
def test_size_of_a_page(count, megabytes, on_pages):
    subjects = [
        SimpleNamespace(checkpoint=f"c{number}", base="c0" if number else None)
        for number in range(count + 1)
    ]
    sizes = {each.checkpoint: int(megabytes * 2**20) for each in subjects}
    found = results.pages_of(SimpleNamespace(checkpoints=subjects, readers=[]), sizes)
    assert {page.checkpoints[0] for page in found} <= {"c0"}
    assert [len(page.checkpoints) - 1 for page in found] == on_pages


def test_the_form_of_prompts_is_named():
    plain, chat = {"chat": False}, {"chat": True}
    told = [
        ({"a": {"t": plain}, "b": {"t": plain}}, " posed as plain text"),
        ({"a": {"t": chat}}, " posed in the chat template"),
        ({"a": {"t": chat, "u": plain}}, ": u as plain text; t in the chat template"),
        ({"a": [], "b": {"t": 3}}, " as plain text"),
        ({}, ""),
    ]
    for settings, end in told:
        form = page.prompt_form({"identity": {"task_settings": settings}})
        assert form.endswith(end)
        assert bool(form) == bool(end)


def test_how_answers_were_asked_and_graded_is_named():
    plain = {"grader": "text", "max_new_tokens": 32, "few_shot": 0, "template": None}
    shown = {
        "recheck_limit": 128,
        "few_shot": 2,
        "system": "Be brief",
        "template": {"name": "terse"},
    }
    read = plain | {"grader": None, "probes": ["perplexity"]}  # it writes nothing
    settings = {"a": {"t": plain, "u": plain | shown}, "b": {"t": plain, "v": 3}}
    settings["a"]["text"] = read
    assert page.asked({"identity": {"task_settings": settings}}) == (
        "t: grader text, at most 32 tokens; u: grader text, at most 32 tokens,"
        " cut answers again with 128, 2 examples, system prompt 'Be brief', prompt terse"
    )
    assert page.asked({}) == ""
