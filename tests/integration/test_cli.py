"""The commands on tiny models, from the command line to the report, and the paper's
recipes on the bundled one."""

import json

import pandas as pd
import pytest

from evaluator.metrics import TABLES
from tests.support.models import save_tiny_model
from tests.support.runs import KEY, SECRET, finish, records

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    directory = tmp_path_factory.mktemp("models with spaces é")
    save_tiny_model(directory / "small", "qwen3")
    save_tiny_model(directory / "other", "mistral")
    return directory


@pytest.fixture(scope="module")
def run(models):
    """Two architectures, asked three questions of the user's own, one of which nobody
    could answer right."""
    items = models / "my items.jsonl"
    asked = {"language": "swahili", "question": "Watu wangapi?"}
    lines = [
        {
            "id": f"q{n}",
            "context": f"Mji wa Karo una watu {n}00.",
            "answers": [f"{n}00"] if n else ["  ?! "],
            **asked,
        }
        for n in range(3)
    ]
    items.write_text(
        "".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8"
    )
    out = models / "run"
    asked = ("--task", f"jsonl:{items}", "--items", "0", "--shard-items", "2")
    both, probes = (models / "small", models / "other"), ("--probes", "greedy,choice")
    done = finish("eval", *both, *asked, *probes, "--out", out)
    assert done.stderr == ""
    assert "other: engine started" in done.stdout
    return out


def test_new_architecture_gets_new_engine(run):
    """An empty answer is excluded and counted."""
    found = records(run)
    assert set(found["status"]) == {"ok", "excluded"}
    one, other = found["checkpoint"].value_counts()[["small", "other"]]
    assert one == other == len(found) / 2
    excluded = found[found["item_id"] == "q0"]
    assert set(excluded["status"]) == {"excluded"}
    assert set(excluded["text"]) == {"no gold answer that could be found in an output"}
    accuracy = pd.read_csv(run / "tables" / "accuracy.csv")
    greedy = accuracy[accuracy["probe"] == "greedy"]
    assert (set(greedy["excluded"]), set(greedy["n"])) == ({1}, {2})
    price = pd.read_csv(run / "tables" / "price.csv").set_index("checkpoint")
    measured = price.drop(columns=["task", "machine", "gpu_hours", "cost", "reason"])
    assert (measured.loc[["small", "other"]] > 0).all(axis=None)


def test_secrets_stay_out_of_files(run):
    """The report is rebuilt from the records alone."""
    files = [path for path in run.rglob("*") if path.is_file()]
    assert {path.relative_to(run).parts[0] for path in files} >= {
        "logs",
        "run.json",
        "records",
        "report",
    }
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]
    before = {path.name: path.read_bytes() for path in (run / "tables").iterdir()}
    for path in (run / "tables").iterdir():
        path.unlink()
    (run / "report" / "index.html").unlink()
    finish("report", run)
    assert {
        path.name: path.read_bytes() for path in (run / "tables").iterdir()
    } == before
    assert (run / "report" / "index.html").is_file()


@pytest.mark.long  # nine recipes and a judge
def test_small_recipes_fill_every_table(tmp_path):
    run = tmp_path / "paper"
    finish("sweep", "small/paper", "--out", run)
    found = records(run)
    assert set(found["status"]) == {"ok"}
    assert not found.duplicated(KEY).any()
    assert set(found["probe"]) == {
        "greedy",
        "beam",
        "sample",
        "choice",
        "rank",
        "hard_choice",
        "perplexity",
    }
    # what a matcher model decides comes afterwards
    finish("match", run, "--matcher", "bundled")
    # the paper compares no distributions and no prompts
    files = {file.stem: file for file in (run / "tables").glob("*.csv")}
    assert {*TABLES.names} - {*files} == {"fidelity", "prompts"}
    tables = {name: pd.read_csv(files[name]) for name in TABLES.names if name in files}
    for name, table in tables.items():
        counts = [
            column
            for column in ("n", "n_max", "items", "seeds", "parameters")
            if column in table
        ]
        assert counts, (name, list(table.columns))
        assert (table[counts].fillna(0).max(axis=1) > 0).any(), name
    page = (run / "report" / "index.html").read_text(encoding="utf-8")
    assert page.count("No rows: it needs") == 2
    finish("report", run, "--paper")
    page = (run / "report" / "paper.html").read_text(encoding="utf-8")
    assert "those of another model or setting" in page
    assert "What this run cannot fill" not in page
