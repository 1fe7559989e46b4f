"""The gate's report for a merge request and for CI, on hostile answers and names."""

import json
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt

from evaluator import open_run
from evaluator.deciding.policy import Policy
from evaluator.report.gate_formats import FORMATS, LOST, Judged, lost_answers
from tests.support.synthetic import write_run

HOSTILE = "a|b`<img src=x>`[x](http://y) @all #1 \x1b[31m\u202e \\| www.y.org me@y.org"
NAMES = ("dense", "wanda-0.6", "<b>@all|`x`")


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    path = write_run(
        tmp_path_factory.mktemp("gate") / "run", 40, NAMES, languages=("english",)
    )
    run, policy = open_run(path), Policy(required=("gazetteer", "later"))
    verdicts, document = run.judged(policy)
    document["checkpoints"][0]["why"] += HOSTILE
    failed = {"checkpoint": HOSTILE, "task": "", "why": "x\x00y"}
    document["not_judged"].append(failed)
    return Judged(run, policy, verdicts, document)


def test_markdown_is_inert(judged):
    text = FORMATS["markdown"]([judged, judged])
    assert text.startswith("## Gate: BLOCK\n")
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(text)
    inner = [child for token in tokens for child in token.children or ()]
    assert {token.type for token in inner} <= {"text", "code_inline"}
    plain = "".join(token.content for token in inner if token.type == "text")
    assert not {*"<@|`"} & {*plain}
    assert "html_block" not in {token.type for token in tokens}
    assert not {*"\x1b\u202e\x00<@"} & {*text}
    assert [token.type for token in tokens].count("table_open") == 4
    widths = [line.count(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert set(widths[-10:]) == {len(LOST) - 1}


def test_clearest_answers_come_first(judged):
    run = judged.run
    lost = lost_answers(run)
    assert 0 < len(lost) <= 10
    assert len({row[1] for row in lost}) == len(lost)
    fates = []
    for checkpoint, item, fate, _, gold, said, own in lost:
        records = run.item("gazetteer", item)
        (asked,) = records.attrs["items"]
        assert gold == " / ".join(asked["answers"])
        greedy = records[(records["probe"] == "greedy") & (records["format"] == "open")]
        hits = greedy.set_index("checkpoint")["contains"]
        assert (hits["dense"], hits[checkpoint]) == (True, False)
        texts = greedy.set_index("checkpoint")["text"]
        assert " ".join(texts["dense"].split())[:200] == said
        assert " ".join(texts[checkpoint].split())[:200] == own
        outcomes = run.inputs.outcomes_of(checkpoint, "gazetteer")
        row = outcomes[outcomes["item_id"] == item].iloc[0]
        fates.append(bool(row["recognised"]))
        base = run.inputs.outcomes_of("dense", "gazetteer").set_index("item_id")
        known = {True: "picked only", False: "lost"}[fates[-1]]
        assert fate == (known if base["recognised"][item] else "not known")
    assert fates == sorted(fates)


def test_junit_has_a_case_each(judged):
    tree = ElementTree.fromstring(FORMATS["junit"]([judged]))
    (suite,) = tree
    cases = {(case.get("classname"), case.get("name")): case for case in suite}
    assert len(cases) == int(suite.get("tests")) == 5
    failures = {key for key, case in cases.items() if case.find("failure") is not None}
    assert failures >= {("later", "wanda-0.6"), ("later", NAMES[2])}
    assert int(suite.get("failures")) == len(failures)
    assert int(suite.get("skipped")) == len(suite.findall("testcase/skipped")) >= 1
    message = cases["later", "wanda-0.6"].find("failure").get("message")
    assert message.startswith("BLOCK: the policy requires this task: ")


def test_json_is_gate_json(judged):
    assert json.loads(FORMATS["json"]([judged])) == json.loads(
        json.dumps(judged.document)
    )
    told = json.loads(FORMATS["json"]([judged, judged]))
    assert (told["verdict"], len(told["runs"])) == ("BLOCK", 1)
