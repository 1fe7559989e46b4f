"""A run directory to CSV tables and a page, and everything that can be wrong with
the directory."""

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evaluator import open_run
from evaluator.deciding.verdict_text import summary
from evaluator.metrics import TABLES
from evaluator.report import page, write_report
from evaluator.store.run_json import need_run
from launch.commands.report import finish
from tests.support.runs import typed
from tests.support.sweeps import refused
from tests.support.synthetic import HOSTILE, SETTINGS, write_run

CHECKPOINTS = ("dense", "wanda-0.6")
LANGUAGES = ("english", "arabic")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    run = write_run(tmp_path_factory.mktemp("run"), 6, CHECKPOINTS, languages=LANGUAGES)
    return run, write_report(run)


@pytest.fixture
def copied(made, tmp_path):
    shutil.copytree(made[0] / "records", tmp_path / "records")
    return tmp_path


def section(run: Path, name: str) -> str:
    page = (run / "report" / "index.html").read_text(encoding="utf-8")
    return page.split(f'<section id="{name}"')[1].split("</section>")[0]


def test_tables_and_headline(made):
    run, report = made
    written = {path.stem: pd.read_csv(path) for path in (run / "tables").glob("*.csv")}
    assert all(map(len, written.values()))
    assert {*written} <= {*TABLES.names, "headline", "left_out"}
    fates = pd.read_csv(report.tables["fates"])
    assert set(fates["checkpoint"]) == {"wanda-0.6"}
    assert report.results.headline["checkpoint"].tolist() == list(CHECKPOINTS)
    assert re.search(r"<small>\d\d\.\d to \d", section(run, "headline"))
    # the made-up records give no reason
    assert "the records do not say why" in section(run, "left_out")


def test_page_uses_one_vocabulary(made):
    """Said, picked, picked only, said only; the CSVs keep their names."""
    texts = [section(made[0], "headline"), section(made[0], "fates")]
    texts += [f"{word}: {meaning}" for word, meaning in page.DEFINITIONS.items()]
    for table in map(TABLES.__getitem__, TABLES.names):
        texts += [table.title, table.reading]
        texts += [column.heading for column in table.columns]
    for text in texts:
        spoken = re.sub(r"max_mc_only|var\(.*?\)", "", text).lower()
        assert not re.search(r"mc[_ ]only|produced|recogni", spoken), text
        assert not re.search(r"\b(open|choice) accuracy", spoken), text
    assert {"mc_only", "produced_only"} <= {*pd.read_csv(made[1].tables["fates"])}


def test_first_screen_loads_nothing(made):
    """It is the verdict."""
    html = made[1].page.read_text(encoding="utf-8")
    loading = r"<link|<img|<iframe|@import|\bsrc=|url\((?!#)|href=\"(?!#)"
    assert not re.search(loading, html)
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html)[1]
    assert policy.startswith("default-src &#39;none&#39;")
    assert "sha256-" in policy
    assert "unsafe-inline" not in policy.split("script-src")[1]
    lead = section(made[0], "headline")
    (verdict,) = made[1].results.verdicts
    assert f"<h1>{summary([verdict])}</h1>" in lead
    assert f'<b class="badge {verdict.outcome.lower()}">{verdict.outcome}</b>' in lead
    question = lead.index("Gone, or only no longer said?")
    assert lead.index("badge") < question < lead.index("<table>")


def test_sections_of_tables(made, tmp_path):
    """A table without rows has none: a line says what it needs."""
    for name in ("accuracy", "fates", "ladder", "recovery", "rank", "pr_gap"):
        assert '<svg class="figure"' in section(made[0], name)
        assert "<table>" in section(made[0], name)
    lacks = "it needs the probes greedy and sample, the latter under at least two run"
    assert lacks in made[1].page.read_text(encoding="utf-8")
    run = write_run(tmp_path / "alone", 4, ("dense",), languages=("english",))
    alone = write_report(run)
    page = alone.page.read_text(encoding="utf-8")
    for name in ("prompts", "price"):
        assert f'<section id="{name}">' not in page
        assert f"<dt>{name}</dt>" in page
    assert "<h1>No checkpoint here has a base" in section(run, "headline")


def with_column(path, name, column):
    table = pq.read_table(path)
    column = column if isinstance(column, pa.Array) else pa.array(column * len(table))
    pq.write_table(table.set_column(table.column_names.index(name), name, column), path)


def a_part(folder):
    return min(folder.glob("records/*/part-000001*.parquet"))


def test_failures_and_notes(copied):
    load = {"checkpoint": "bad", "stage": "load", "reason": HOSTILE, "attempts": 3}
    item = {"checkpoint": "bad", "stage": "item", "task": "t", "reason": "SIGSEGV"}
    rows = [load | {"engine": "0", "node": "<b>"}, item, "no row", {"stage": "load"}]
    names = ("dense", "dense", "wanda-0.6")
    stats = [{"checkpoint": name, "notes": ["scored <slowly>"]} for name in names]
    stats.append({"engine": 1, "checkpoint": "dense"})
    state = {"failures": rows, "engine_stats": stats}
    (copied / "run.json").write_text(json.dumps(state))
    report = write_report(copied)
    assert report.results.missed == ""
    note = "dense, wanda-0.6: scored &lt;slowly&gt;."
    lead = section(copied, "headline")
    assert lead.count(note) == 1
    table = pd.read_csv(report.tables["failures"], keep_default_na=False)
    assert table["reason"].tolist() == [HOSTILE, "SIGSEGV"]
    assert table["attempts"].tolist() == [3, 1]
    assert "1 not judged" in lead
    assert '<span class="who">bad</span>' in lead
    shown = section(copied, "failures")
    for part, count in (("<tr>", 3), ("<script", 0), ("<b>", 0), ("&lt;b&gt;", 1)):
        assert shown.count(part) == count


def test_same_records_give_same_bytes(made, tmp_path):
    """However they were cut into parts."""
    again = write_run(tmp_path / made[0].name, 6, CHECKPOINTS, languages=LANGUAGES)
    for folder in (again / "records").glob("*/"):
        parts = sorted(folder.glob("*.parquet"), reverse=True)
        whole = pa.concat_tables(map(pq.read_table, parts))
        for path in parts:
            path.unlink()
        pq.write_table(whole, folder / "part-000007.parquet")
    (folder / ".part-9.parquet.writing").write_bytes(b"PAR1")
    assert write_report(again).page.read_bytes() == made[1].page.read_bytes()


def test_records_alone_are_enough(made, copied):
    """Also with wider types of the same kind, which another program writes."""
    for name, value in (("rank", 2.0), ("index", 0), ("seed", 0), ("sparsity", None)):
        with_column(a_part(copied), name, [value])
    stale = copied / "outcomes" / "removed.parquet"
    stale.parent.mkdir()
    stale.write_bytes(b"of a checkpoint without records")
    paths = write_report(copied)
    assert {path.stem for path in stale.parent.iterdir()} == set(CHECKPOINTS)
    outcomes = pd.read_parquet(stale.parent)
    counts = outcomes.groupby("checkpoint")["item_id"].nunique().to_dict()
    assert counts == dict.fromkeys(CHECKPOINTS, 12)
    assert "rebuilt from records alone" in paths.page.read_text(encoding="utf-8")
    alone, whole = (pd.read_csv(each.tables["pr_gap"]) for each in (paths, made[1]))
    # clusters move intervals only
    assert alone["delta_pr"].tolist() == whole["delta_pr"].tolist()
    assert set(pd.read_csv(paths.tables["fates"])["sparsity"]) == {0.6}


def test_part_of_another_cell_is_named(copied):
    """A copy, whose columns the cell's own would hide."""
    ours, others = sorted({part.parent for part in copied.glob("records/*/*.parquet")})[
        :2
    ]
    copy = ours / "part-000009.parquet"
    shutil.copy(min(others.glob("*.parquet")), copy)
    told = refused(write_report, copied)
    assert f"{copy}: has records of other weights than" in told


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not parquet", ".parquet: cannot be read as Parquet"),
        (pa.table({"checkpoint": ["dense"]}), ".parquet: has no column 'weights_"),
        (("status", ["fine"]), "column 'status' holds 'fine' (known: ok, truncated, "),
        (("rank", [1.5]), "column 'rank' does not hold int32"),
        (("text", [1]), "column 'text' has type int64, not string"),
        (("item_id", [None]), "column 'item_id' holds null"),
    ],
)
def test_unreadable_records_are_named(copied, content, message):
    path = a_part(copied)
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, pa.Table):
        pq.write_table(content, path)
    else:
        with_column(path, *content)
    assert message in refused(write_report, copied)


@pytest.mark.parametrize(
    ("text", "message"), [("{", ": not JSON"), ("[]", " must be an object, not []")]
)
def test_unreadable_run_json_is_named(copied, text, message):
    (copied / "run.json").write_text(text)
    assert f"run.json{message}" in refused(write_report, copied)


@pytest.mark.parametrize("name", ["outcomes", "tables", "report", "report/pages"])
def test_links_out_of_a_run_are_refused(copied, name, tmp_path_factory):
    """`report` would write and remove files of whoever reads a foreign run."""
    mine = tmp_path_factory.mktemp("mine")
    (mine / "old.parquet").write_text("precious")
    (copied / name).parent.mkdir(exist_ok=True)
    (copied / name).symlink_to(mine)
    for command in (write_report, need_run):  # gate and match begin with the latter
        told = refused(command, copied)
        assert f"{name}: is a link to {mine}, outside the run" in told
    assert [file.name for file in mine.iterdir()] == ["old.parquet"]


@pytest.mark.more
@pytest.mark.parametrize("damage", ["repeated", "missing", "no questions"])
def test_what_a_finished_run_lacks_is_named(made, tmp_path, capsys, damage):
    """And records that stand twice count once."""
    run = Path(shutil.copytree(made[0], tmp_path / "run"))
    planned = {name: {"gazetteer": 12} for name in CHECKPOINTS}
    document = json.loads((run / "run.json").read_text())
    document |= {"state": "finished", "planned": planned}
    (run / "run.json").write_text(json.dumps(document))
    before = (run / "tables" / "accuracy.csv").read_bytes()
    (part, _) = sorted(run.glob("records/dense-gazetteer/*.parquet"))
    finish(run, headline=False)
    assert "warning" not in capsys.readouterr().err
    if damage == "repeated":
        shutil.copy(part, part.parent / "part-000009.parquet")
        told = f"{part.parent}: parts repeat records: the last counts"
    elif damage == "missing":
        part.unlink()
        told = "dense on gazetteer has records of 6 of 12 items"
    else:
        (run / "items" / "gazetteer.parquet").unlink()
        told = f"{run}/items: has no gazetteer.parquet: each of its items counts as"
    finish(run, headline=False)
    assert told in capsys.readouterr().err
    after = (run / "tables" / "accuracy.csv").read_bytes()
    assert (after == before) is (damage == "repeated")
    with pytest.warns(UserWarning, match="parts repeat|has records of|has no gaz"):
        open_run(run).table("accuracy")


def test_absent_probe_and_table_are_named(copied, monkeypatch, capsys):
    """A plugin's records and table outlive the plugin."""
    for part in (copied / "records").glob("*/*.parquet"):
        probes = pq.read_table(part)["probe"].to_pylist()
        renamed = ["sure" if name == "rank" else name for name in probes]
        with_column(part, "probe", pa.array(renamed))
    (copied / "tables").mkdir()
    (copied / "tables" / "sure.csv").write_text("n\n3\n")
    (copied / "tables" / "reference.csv").write_text("of an earlier call\n")
    finish(copied, headline=False)
    told = capsys.readouterr().err
    assert "no number counts the records of sure: no such probe is installed" in told
    assert "sure.csv: is stale: no table 'sure' is installed" in told
    assert told.count("warning") == 2
    assert not (copied / "tables" / "reference.csv").exists()
    typed(monkeypatch, "gate", copied)
    assert "no number counts the records of sure" in capsys.readouterr().err


def test_missed_sparsity_and_published_numbers(tmp_path, monkeypatch, capsys):
    """A name says what was requested; no page, file or terminal shows .99 as what the
    checkpoint is. The paper's numbers stand in the sections of their tables."""
    layers = {"method": "layers", "pattern": "layers", "harm": 0.5}
    layers |= {"sparsity": 0.2, "requested_sparsity": 0.99}
    monkeypatch.setitem(SETTINGS, "layers-0.99", layers)
    names, tasks = ("dense", "layers-0.99", "wanda-0.5"), ("tydiqa",)
    run = write_run(tmp_path, 6, names, languages=LANGUAGES, tasks=tasks, items=False)
    keys = run / "records" / "keys.json"
    keys.write_text(
        keys.read_text().replace('"calibration": "gazetteer"', '"calibration": "c4"')
    )
    task = {"task": "tydiqa", "items": 200, "chat": False}
    config = {"models": {"dense": "/models/Qwen3-8B"}, "tasks": [task]}
    (run / "run.json").write_text(json.dumps({"config": config}))
    finish(run)
    told = "Achieved sparsity: layers-0.99 0.2 (requested 0.99)"
    assert told in capsys.readouterr().out
    assert told in section(run, "headline")
    assert "0.2 (requested 0.99)</td>" in section(run, "accuracy")
    reference = pd.read_csv(run / "tables" / "reference.csv")
    assert {"fates", "accuracy", "pr_gap"} <= set(reference["table"])
    shown = section(run, "pr_gap")
    assert "s numbers in the same setting" in shown
    assert "arXiv:2606.17609v1, section 4.1" in shown
