"""A run directory to CSV tables and a page, and everything that can be wrong with
the directory."""

import json
import re
import shutil

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from rich.console import Console

from evaluator.core.errors import InputError
from evaluator.deciding.verdict_text import summary
from evaluator.metrics import TABLES
from evaluator.probes import PROBES
from evaluator.report import Report, page, write_report
from evaluator.store.records import RecordStore, to_table
from evaluator.store.schema import RECORDS
from launch.commands.report import finish
from tests.support.sweeps import refused
from tests.support.synthetic import HOSTILE, SETTINGS, records_of, write_run

CHECKPOINTS = ("dense", "wanda-0.6")
LANGUAGES = ("english", "arabic")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    run = write_run(tmp_path_factory.mktemp("run"), 6, CHECKPOINTS, languages=LANGUAGES)
    return run, write_report(run)


@pytest.fixture(autouse=True)
def without_figures(made, monkeypatch):
    """They take half the time of a report; that of `made` has them."""
    monkeypatch.setattr(page, "draw_each", lambda *_: [])


@pytest.fixture
def copied(made, tmp_path):
    shutil.copytree(made[0] / "records", tmp_path / "records")
    return tmp_path


def section(report: Report, name: str) -> str:
    page = report.page.read_text(encoding="utf-8")
    return page.split(f'<section id="{name}"')[1].split("</section>")[0]


def test_tables_and_left_out(made):
    run, paths = made
    names = (*TABLES.names, "headline", "left_out")
    assert {path.name for path in (run / "tables").iterdir()} == {
        f"{name}.csv" for name in names
    }
    fates = pd.read_csv(paths.tables["fates"])
    assert fates["checkpoint"].unique().tolist() == ["wanda-0.6"]
    assert paths.results.headline["checkpoint"].tolist() == list(CHECKPOINTS)
    # the made-up records give no reason
    assert "the records do not say why" in section(made[1], "left_out")
    table = pd.read_csv(made[1].tables["left_out"])
    pooled = table.query(
        "language == 'all' and probe == 'greedy' and checkpoint == 'dense'"
    )
    assert dict(zip(pooled["status"], pooled["n"], strict=True)) == {
        "excluded": 2,
        "engine_error": 2,
    }
    assert set(pooled["asked"]) == {12}


def test_first_screen_loads_nothing(made):
    html = made[1].page.read_text(encoding="utf-8")
    assert not re.search(
        r"<link|<img|<iframe|@import|\bsrc=|url\((?!#)|href=\"(?!#)", html
    )
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html).group(1)
    assert policy.startswith("default-src &#39;none&#39;")
    assert "sha256-" in policy
    assert "unsafe-inline" not in policy.split("script-src")[1]
    lead = section(made[1], "headline")
    (verdict,) = made[1].results.verdicts
    assert f"<h1>{summary([verdict])}</h1>" in lead
    assert f'<b class="badge {verdict.outcome.lower()}">{verdict.outcome}</b>' in lead
    assert (
        lead.index("badge")
        < lead.index("Gone, or only no longer said?")
        < lead.index("<table>")
    )


def _luminance(colour):
    """WCAG 2.2's relative luminance of `#rrggbb`."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = [
        each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4
        for each in parts
    ]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_contrast_of_colours(theme):
    """4.5 to 1, WCAG's level AA; a badge has the paper's colour on a fate's."""
    style = page._asset("page.css").split("prefers-color-scheme: dark")[theme]
    values = {
        name: _luminance(value)
        for name, value in re.findall(r"--([a-z-]+): (#\w{6});", style)
    }
    pairs = [
        (word, ground)
        for word in ("ink", "muted", "accent")
        for ground in ("paper", "back", "soft")
    ]
    pairs += [
        (fate, "paper")
        for fate in (
            "kept",
            "mc-only",
            "produced-only",
            "lost",
            "greedy",
            "choice",
            "shown",
        )
    ]
    pairs += [("kept", "soft"), ("lost", "soft"), ("mc-only", "back"), ("ink", "mark")]
    ratios = {
        pair: (max(both) + 0.05) / (min(both) + 0.05)
        for pair in pairs
        if (both := [values[each] for each in pair])
    }
    assert {pair: ratio for pair, ratio in ratios.items() if ratio < 4.5} == {}


def test_empty_tables_are_left_out(made, tmp_path):
    alone = write_report(
        write_run(tmp_path / "run", 4, ("dense",), languages=("english",))
    )
    pages = [each.page.read_text(encoding="utf-8") for each in (made[1], alone)]
    for name in ("vote", "overlap"):
        assert [f'<section id="{name}">' in page for page in pages] == [True, False]
        assert f"<dt>{name}</dt>" not in pages[1]
    assert "<dt>fates</dt>" in pages[1]
    assert (
        "it needs the probes greedy and sample, the latter under at least two run seeds"
        in pages[0]
    )
    lead = section(alone, "headline")
    assert '<ul class="verdicts">' not in lead
    assert "<h1>No checkpoint here has a base" in lead


def test_sections_and_long_tables(made, tmp_path):
    for name in ("accuracy", "fates", "ladder", "recovery", "rank", "pr_gap"):
        assert '<svg class="figure"' in section(made[1], name)
        assert "<table>" in section(made[1], name)
    long = write_report(write_run(tmp_path / "run", 4, languages=("english",)))
    assert "rows; all are in tables/overlap.csv." in section(long, "overlap")


def test_failures_notes_and_wider_records(copied):
    path = next(iter(sorted(copied.glob("records/*/*/00001.parquet"))))
    table = pq.read_table(path)
    # of another program
    for name, value in (("rank", 2.0), ("index", 0), ("seed", 0), ("sparsity", None)):
        column = pa.array([value] * len(table))
        table = table.set_column(table.column_names.index(name), name, column)
    pq.write_table(table, path)
    rows = [
        {
            "checkpoint": "bad",
            "stage": "load",
            "reason": HOSTILE,
            "attempts": 3,
            "engine": "0",
            "node": "<b>",
        },
        {
            "checkpoint": "bad",
            "stage": "item",
            "task": "t",
            "item": HOSTILE,
            "reason": "SIGSEGV",
        },
        "no row",
        {"stage": "load"},
    ]
    stats = [
        {"checkpoint": name, "notes": ["scored <slowly>"]}
        for name in ("dense", "dense", "wanda-0.6")
    ]
    stats.append({"engine": 1, "checkpoint": "dense"})
    (copied / "run.json").write_text(
        json.dumps({"failures": rows, "engine_stats": stats})
    )
    report = write_report(copied)
    assert report.results.missed == ""
    fates = pd.read_csv(report.tables["fates"])
    assert set(fates["sparsity"]) == {0.6}
    assert (
        section(report, "headline").count("dense, wanda-0.6: scored &lt;slowly&gt;.")
        == 1
    )
    table = pd.read_csv(report.tables["failures"], keep_default_na=False)
    assert table["reason"].tolist() == [HOSTILE, "SIGSEGV"]
    assert table["attempts"].tolist() == [3, 1]
    told = section(report, "failures")
    assert (
        told.count("<tr>"),
        told.count("<script"),
        told.count("<b>"),
        told.count("&lt;b&gt;"),
    ) == (3, 0, 0, 1)
    (copied / "run.json").write_text(json.dumps({"failures": []}))
    assert "failures" not in write_report(copied).tables
    assert not (copied / "tables" / "failures.csv").exists()


def test_same_records_give_same_bytes(made, tmp_path, monkeypatch):
    """However they were cut into parts."""
    monkeypatch.undo()  # figures too
    again = write_run(tmp_path / made[0].name, 6, CHECKPOINTS, languages=LANGUAGES)
    for folder in (again / "records").glob("*/*"):
        whole = pa.concat_tables(
            [
                pq.read_table(path)
                for path in sorted(folder.glob("*.parquet"), reverse=True)
            ]
        )
        for path in folder.glob("*.parquet"):
            path.unlink()
        pq.write_table(whole, folder / "all.parquet")
    (again / "records" / "dense" / "gazetteer" / ".half.parquet.writing").write_bytes(
        b"PAR1"
    )
    assert write_report(again).page.read_bytes() == made[1].page.read_bytes()


def test_records_alone_are_enough(made, copied):
    stale = copied / "outcomes" / "removed.parquet"
    stale.parent.mkdir()
    stale.write_bytes(b"of a checkpoint without records")
    paths = write_report(copied)
    assert sorted(path.name for path in stale.parent.iterdir()) == [
        "dense.parquet",
        "wanda-0.6.parquet",
    ]
    outcomes = pd.read_parquet(stale.parent)
    assert outcomes.groupby("checkpoint")["item_id"].nunique().to_dict() == {
        "dense": 12,
        "wanda-0.6": 12,
    }
    assert "rebuilt from records alone" in paths.page.read_text(encoding="utf-8")
    alone, whole = (pd.read_csv(each.tables["pr_gap"]) for each in (paths, made[1]))
    # clusters move intervals only
    assert alone["delta_pr"].tolist() == whole["delta_pr"].tolist()


@pytest.mark.parametrize("probe", PROBES.names)
def test_single_probe_has_a_page(tmp_path, probe):
    seen = list(records_of("dense", "gazetteer", 4))
    alike = {
        "hard_choice": "choice",
        **dict.fromkeys(("perplexity", "fidelity", "text_fidelity"), "rank"),
    }
    asked = [
        replace(each, probe=probe)
        for each in seen
        if each.probe == alike.get(probe, probe)
    ]
    if probe == "perplexity":
        asked = [
            replace(each, logprob=-9.0, prompt_tokens=3)
            for each in asked
            if each.status == "ok"
        ]
    RecordStore(tmp_path).append("dense", "gazetteer", "00000", to_table(asked))
    page = write_report(tmp_path).page.read_text(encoding="utf-8")
    # else there is no headline
    assert ("Fates are shares" in page) == (probe in ("greedy", "choice"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"records: no \.parquet part"),
        (b"not parquet", r"0\.parquet: cannot be read as Parquet"),
        (
            pa.table({"checkpoint": ["dense"]}),
            r"0\.parquet: has no column 'weights_digest'",
        ),
    ],
)
def test_unreadable_records_are_named(tmp_path, content, message):
    path = tmp_path / "records" / "dense" / "t" / "0.parquet"
    path.parent.mkdir(parents=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        pq.write_table(content, path)
    with pytest.raises(InputError, match=message):
        write_report(tmp_path)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        (
            "status",
            pa.array(["fine"]),
            "holds 'fine' .known: ok, truncated, excluded, engine_error.",
        ),
        ("rank", pa.array([1.5]), "does not hold int32"),
        ("item_id", None, "holds null"),
    ],
)
def test_strange_columns_are_named(copied, name, values, message):
    path = next(iter(sorted(copied.glob("records/*/*/00001.parquet"))))
    table = pq.read_table(path)
    column = (
        pa.nulls(len(table))
        if values is None
        else values.take(pa.array([0] * len(table)))
    )
    pq.write_table(table.set_column(table.column_names.index(name), name, column), path)
    with pytest.raises(InputError, match=rf"00001\.parquet: column '{name}' {message}"):
        write_report(copied)


def test_strange_items_and_run_json(made, copied):
    for text, message in (("{", "not JSON"), ("[]", "must be a JSON object, is list")):
        (copied / "run.json").write_text(text)
        with pytest.raises(InputError, match=rf"run\.json: {message}"):
            write_report(copied)
    (copied / "run.json").unlink()
    (copied / "run.json").mkdir()
    assert "run.json: is no file" in refused(write_report, copied)
    (copied / "run.json").rmdir()
    (copied / "items").mkdir()
    table = pq.read_table(made[0] / "items" / "gazetteer.parquet")
    pq.write_table(
        table.set_column(0, "task", pa.array([1] * len(table))),
        copied / "items" / "gazetteer.parquet",
    )
    assert (
        "items/gazetteer.parquet: column 'task' has type int64, not string"
        in refused(write_report, copied)
    )


def test_missed_sparsity_is_shown(tmp_path, monkeypatch, capsys):
    """The name says what was requested; no page, file or terminal shows .99 as what
    the checkpoint is."""
    heads = {
        "method": "heads",
        "pattern": "heads",
        "sparsity": 0.2,
        "requested_sparsity": 0.99,
        "harm": 0.5,
    }
    monkeypatch.setitem(SETTINGS, "heads-0.99", heads)
    run = write_run(
        tmp_path, 4, ("dense", "heads-0.99", "wanda-0.6"), languages=LANGUAGES
    )
    report = write_report(run)
    told = "Achieved sparsity: heads-0.99 0.2 (requested 0.99)"
    assert report.results.missed == told
    assert told in section(report, "headline")
    assert "0.2 (requested 0.99)</td>" in section(report, "accuracy")
    rows = pd.read_csv(report.tables["accuracy"])
    rows = rows[rows["checkpoint"] == "heads-0.99"]
    assert (set(rows["sparsity"]), set(rows["requested_sparsity"])) == ({0.2}, {0.99})
    finish(Console(), run)
    assert told in capsys.readouterr().out


def test_published_numbers(tmp_path):
    run = write_run(
        tmp_path,
        6,
        ("dense", "wanda-0.5"),
        languages=LANGUAGES,
        tasks=("tydiqa",),
        items=False,
    )
    for path in run.glob("records/*/*/*.parquet"):
        table = pq.read_table(path).to_pandas()
        table["calibration"] = table["calibration"].where(table["base"].isna(), "c4")
        pq.write_table(
            pa.Table.from_pandas(table, schema=RECORDS, preserve_index=False), path
        )
    config = {
        "models": {"dense": "/models/Qwen3-8B"},
        "tasks": [{"task": "tydiqa", "items": 200, "chat": False}],
    }
    (run / "run.json").write_text(json.dumps({"config": config}))
    paths = write_report(run)
    reference = pd.read_csv(paths.tables["reference"])
    assert {"fates", "accuracy", "pr_gap"} <= set(reference["table"])
    told = section(paths, "pr_gap")
    assert "The paper's numbers in the same setting" in told.replace("&#39;", "'")
    assert "arXiv:2606.17609v1, section 4.1" in told
    (run / "run.json").unlink()
    assert "reference" not in write_report(run).tables
