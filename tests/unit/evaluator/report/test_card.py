"""The card of a run, with texts that would be Markdown."""

import json
import re
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from evaluator import open_run
from evaluator.deciding.policy import Policy, spelled
from evaluator.report import write_report
from evaluator.report.card import write_card, write_sign_off
from evaluator.report.gate_formats import table_of
from evaluator.report.results import compute
from evaluator.store.schema import ITEMS
from tests.support.runs import typed
from tests.support.synthetic import write_run


def test_card_has_all_parts(tmp_path):
    names = ("dense", "wanda-0.6")
    run = write_run(tmp_path / "r`u`n", 8, names, languages=("english",))
    file = run / "run.json"
    config = {"prompts": {"mine": "a\n```\n# b"}}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"config": config}))
    card, figure = write_card(run, tmp_path / "deeper" / "card.md")
    text = card.read_text()
    assert "# `rˋuˋn`" in text
    assert "## Gate: WARN" in text
    assert "lost answers" not in text  # questions are not for the public
    assert re.search(r"\| `wanda-0.6` \| `gazetteer` \| `\d", text)
    assert f"](<{figure.name}>)" in text
    assert figure.read_text().startswith("<svg ")
    (quoted,) = re.findall("\n````yaml\n(.*)\n````\n", text, re.DOTALL)
    usual = {"default": {"max_drop": 2, "max_mc_only": 5, "max_lost": 2}}
    assert yaml.safe_load(quoted) == config | {"gate": usual}


def test_card_says_how_each_checkpoint_was_made_and_no_unused_calibration(tmp_path):
    run = write_run(tmp_path / "run", 8, ("dense", "wanda-0.6"), languages=("english",))
    file = run / "run.json"
    content, usual = json.loads(file.read_text()), {"source": "c4", "samples": 128}
    made = {"method": "wanda", "sparsity": 0.6, "calibration": "gazetteer"}

    def card_of(checkpoint, **config):
        config["calibration"] = usual
        rows = [{"name": "dense"}, {"name": "wanda-0.6", **checkpoint}]
        file.write_text(json.dumps(content | {"config": config, "checkpoints": rows}))
        return write_card(run, tmp_path / "card.md")[0].read_text()

    own = {"method": "wanda", "calibration": None}
    given = {"checkpoint": "made/wanda", "method": None}
    text = card_of(made, compress=[given], include=[{"calibration": usual}])
    assert "- `wanda-0.6`: `wanda 0.6, calibrated on gazetteer`\n" in text
    assert "- `dense`: `base`\n" in text
    assert "c4" not in text
    assert "c4" not in card_of({"method": "magnitude"}, prune=[own])
    assert "c4" not in card_of(made, prune=[own | {"calibration": {"samples": 8}}])
    assert "source: c4" in card_of(made, prune=[own])


def test_card_holds_the_policy_that_judged(tmp_path):
    """Which may not be that of its sweep."""
    run = write_run(tmp_path / "run", 8, ("dense", "wanda-0.6"), languages=("english",))
    own = {
        "default": {"max_drop": 9.0, "max_lost": None},
        "tasks": {"gazetteer": {"max_drop": 12.0}},
    }
    (run / "gate.yaml").write_text(yaml.safe_dump(own))
    card = write_card(run, tmp_path / "card.md")[0].read_text()
    (quoted,) = re.findall("\n```yaml\n(.*)\n```\n", card, re.DOTALL)
    gate = yaml.safe_load(quoted)["gate"]
    assert gate == own | {"default": {**own["default"], "max_mc_only": 5.0}}
    used, stated = Policy.model_validate(own), Policy.model_validate(gate)
    assert spelled(used) == spelled(stated)
    assert f"Tolerances: `{spelled(stated)}`" in card


def test_page_to_sign_has_numbers_and_their_origin(tmp_path):
    run = write_run(tmp_path / "<b>run", 12, ("dense", "wanda-0.6"))
    file = run / "run.json"
    more = {"config": {"tasks": [{"task": "jsonl:<i>q.jsonl"}]}, "digest": "d" * 64}
    failed = {"checkpoint": "awq", "stage": "load", "reason": "truncated"}
    more |= {"failures": [failed], "checkpoints": [{"name": "wanda-0.6"}]}
    file.write_text(json.dumps(json.loads(file.read_text()) | more))
    page = write_sign_off(run, write_report(run).results)
    text = page.read_text()
    assert "<b>run" not in text
    assert "jsonl:&lt;i&gt;q.jsonl" in text
    for part in ("McNemar p", "base tokens", "looping", "Tolerances: max_drop 2"):
        assert part in text
    assert "not measured: Noise of both sides" in text
    assert f"digest {'d' * 64}" in text
    assert "<dt>awq</dt><dd>set aside: no digest, as not read</dd>" in text
    assert "script" not in text


def test_group_with_a_tolerance_is_shown(tmp_path):
    """In the table of the gate and on the page to sign, whatever the criterion."""
    names = ("dense", "wanda-0.6")
    path = write_run(tmp_path / "run", 40, names, languages=("english",))
    file = path / "items" / "gazetteer.parquet"
    rows = pq.read_table(file).to_pylist()
    for number, row in enumerate(rows):
        row["groups"] = ["team=a"] if number % 2 else []
    pq.write_table(pa.Table.from_pylist(rows, schema=ITEMS), file)
    policy = Policy(groups={"team=a": {"max_lost": 90}})
    run = open_run(path)
    headings, ((*cells,),) = table_of(run.judged(policy)[0])
    worst = cells[headings.index("worst")]
    assert re.fullmatch(r"team=a \d+\.\d\?? \(lost\)", worst)
    text = write_sign_off(path, compute(run.inputs, policy)).read_text()
    table = text.partition("Groups with a tolerance</h2>")[2].partition("<h2>")[0]
    for part in ("team=a", "greedy", "choice", ">20<"):
        assert part in table
    assert "Groups with" not in write_sign_off(path, compute(run.inputs)).read_text()


def test_run_without_records_leaves_nothing(tmp_path, monkeypatch, capsys):
    run = write_run(tmp_path / "run", 8, ("dense",))
    shutil.rmtree(run / "records")
    out = tmp_path / "new" / "out"
    assert typed(monkeypatch, "export", run, "--to", "card", "--out", out) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "records" in error
    assert not out.parent.exists() or not list(out.parent.iterdir())
