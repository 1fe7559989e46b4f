"""Any data set: files through `datasets`, the hub through a stand-in for it."""

import gzip
import json
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evaluator.tasks import Source, TaskSpec, items_by_language, load_task, task_name
from evaluator.tasks.rows import RowLocation, rows_at
from tests.support.sweeps import refused
from tests.unit.evaluator.tasks.conftest import Builder, Table

ARC = {
    "id": "a1",
    "question": "q?",
    "choices": {"text": ["w", "x", "y"], "label": ["A", "B", "C"]},
    "answerKey": "B",
}
PASSAGE = {
    "id": "1",
    "context": "c",
    "question": "q",
    "answers": {"text": ["x"], "answer_start": [0]},
}
MINE = Source.model_validate(
    {"language": "english", "fields": {"id": "n", "question": "q", "answers": "a"}}
)


def lines(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def only_error(spec, said=None):
    return refused(load_task, spec, None, said=said)


# datasets 4.0 leaves a file of CSV open.
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)
@pytest.mark.parametrize("suffix", ["jsonl", "json", "parquet", "csv"])
def test_a_file_of_each_kind(tmp_path, suffix):
    rows = [
        {"n": 1, "q": "q1", "a": "007"},
        {"n": 2, "q": "q2", "a": "NA"},
        {"n": 3, "q": "q3", "a": ""},
    ]
    file = tmp_path / f"own.set.{suffix}"
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), file)
    elif suffix == "csv":
        file.write_text("n,q,a\n1,q1,007\n2,q2,NA\n3,q3,\n", encoding="utf-8")
    else:
        lines(file, *rows)
    data = load_task(f"hf:{file}", None, said=MINE)
    assert data.name == "own.set"
    found = [
        (each.item_id, each.question, each.answers) for each in data.pools["english"]
    ]
    # without an answer: excluded
    assert found == [("1", "q1", ("007",)), ("2", "q2", ("NA",)), ("3", "q3", ())]


def test_named_columns_and_splits(tmp_path):
    row = {
        "language": "thai",
        "question": "q",
        "answers": ["x"],
        "context": "c",
        "page": 3,
    }
    file = lines(
        tmp_path / "rows.jsonl",
        {**row, "id": "1"},
        {**row, "id": "2", "language": "hindi"},
    )
    data = load_task(f"hf:{file}", ["hi"])
    assert {language: len(pool) for language, pool in data.every_pool.items()} == {
        "hindi": 1,
        "thai": 1,
    }
    assert data.pools["hindi"][0].context == "c"
    assert list(load_task(f"hf:{file}", None, said=Source(language="lao")).pools) == [
        "lao"
    ]
    file.unlink()
    for split in ("train", "validation", "test"):
        lines(tmp_path / f"{split}.jsonl", {"n": split, "q": "q", "a": "x"})
    usual = load_task(f"hf:{tmp_path}", None, said=MINE)
    named = load_task(
        f"hf:{tmp_path}", None, said=MINE.model_copy(update={"split": "test"})
    )
    assert [data.pools["english"][0].item_id for data in (usual, named)] == [
        "validation",
        "test",
    ]
    assert usual.digest != named.digest
    wrong = only_error(f"hf:{tmp_path}", MINE.model_copy(update={"split": "dev"}))
    assert "there is no split 'dev' (known: train, validation, test)" in wrong
    (tmp_path / "test.jsonl").unlink()
    (tmp_path / "validation.jsonl").rename(tmp_path / "dev.jsonl")
    # dev is called validation
    assert load_task(f"hf:{tmp_path}", None, said=MINE).digest == usual.digest


def test_splits_and_configurations(tmp_path):
    data = load_task(f"arc_easy:{lines(tmp_path / 'mine.jsonl', ARC)}", None)
    assert (data.name, data.pools["english"][0].answers) == ("arc_easy", ("x",))
    for split in ("validation", "test"):
        lines(tmp_path / "both" / f"{split}.jsonl", {**ARC, "id": split})
    more = Source.model_validate(
        {"split": "validation", "fields": {"question": ["=Science:", "question"]}}
    )
    for said, found in ((None, ("test", "q?")), (more, ("validation", "Science:\nq?"))):
        item = load_task(f"arc_easy:{tmp_path / 'both'}", None, said=said).pools[
            "english"
        ][0]
        assert (item.item_id, item.question) == found
    lines(tmp_path / "mlqa.de.de" / "test.jsonl", PASSAGE)
    lines(tmp_path / "hi.jsonl", PASSAGE)
    lines(tmp_path / "notes.jsonl", {"x": 1})
    data = load_task(f"mlqa:{tmp_path}", None)
    assert list(data.pools) == ["german", "hindi"]
    assert data.left_out == (
        "both/test.jsonl",
        "both/validation.jsonl",
        "mine.jsonl",
        "notes.jsonl",
    )
    assert items_by_language(f"mlqa:{tmp_path}", ["de"]) == {"german": 1}
    assert list(load_task(f"mlqa:{tmp_path / 'hi.jsonl'}", None).pools) == ["hindi"]
    message = only_error(f"mlqa:{tmp_path / 'notes.jsonl'}")
    assert (
        "notes.jsonl: has nothing with the name of a configuration (mlqa.ar.ar,"
        in message
    )
    assert list(
        load_task(
            f"mlqa:{tmp_path / 'hi.jsonl'}", None, said=Source(language="tamil")
        ).pools
    ) == ["tamil"]
    names = {"arc_easy": "ARC-Easy", "arc_challenge": "ARC-Challenge"}
    card = ""
    for task, name in names.items():
        lines(tmp_path / "data" / f"{task}.jsonl", {**ARC, "id": task})
        card += (
            f"- config_name: {name}\n  data_files: [{{split: test, path:"
            f" data/{task}.jsonl}}]\n"
        )
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n{card}---\n", encoding="utf-8")
    for task in names:
        assert [
            item.item_id
            for item in load_task(f"{task}:{tmp_path}", None).pools["english"]
        ] == [task]


@pytest.mark.parametrize("config", ["zz", {"english": "zz"}])
@pytest.mark.parametrize("name", ["", "english.jsonl"])
def test_configuration_that_is_not_there(tmp_path, config, name):
    """Neither the file of the language nor the only file stands for the
    configuration that is named."""
    lines(tmp_path / "english.jsonl", {"n": 1, "q": "q", "a": "x"})
    said = Source.model_validate(
        {"config": config, "fields": MINE.fields}
        | ({"language": "english"} if config == "zz" else {})
    )
    assert "field 'config': there is no folder or file 'zz'" in only_error(
        f"hf:{tmp_path / name}", said
    )
    lines(tmp_path / "zz.jsonl", {"n": 2, "q": "q", "a": "x"})
    assert (
        load_task(f"hf:{tmp_path}", None, said=said).pools["english"][0].item_id == "2"
    )


def test_mapping_file_and_other_files(tmp_path):
    lines(tmp_path / "rows.jsonl", {"n": 1, "q": "q", "a": "x"})
    file = tmp_path / "riddles.yaml"
    file.write_text(
        "data: rows.jsonl\nlanguage: english\nfields: {id: n, question: q, answers:"
        " a}\n",
        encoding="utf-8",
    )
    data = load_task(f"hf:{file}", None)
    assert (data.name, data.pools["english"][0].answers) == ("riddles", ("x",))
    # the same questions
    assert (
        data.digest
        == load_task(f"hf:{tmp_path / 'rows.jsonl'}", None, said=MINE).digest
    )
    other = Source.model_validate({"fields": {"answers": "q"}})
    assert load_task(f"hf:{file}", None, said=other).digest != data.digest
    file.write_text(
        "data: rows.jsonl\nlanguage: english\nfield: {}\n", encoding="utf-8"
    )
    assert f"{file}: field: {{}}: Extra inputs are not permitted" in only_error(
        f"hf:{file}"
    )
    for file in ("rows.pkl", "texts/train.txt"):
        lines(tmp_path / file, "x")
    (tmp_path / "empty").mkdir()
    for place, part in (
        (
            "rows.pkl",
            "a file ending in .parquet, .json, .jsonl, .ndjson, .csv is needed",
        ),
        ("texts", "its files are 'text'; only Parquet, JSON and CSV are read"),
        ("empty", "cannot be loaded: The directory at"),
    ):
        assert part in only_error(f"hf:{tmp_path / place}", MINE)


@pytest.mark.parametrize(
    ("content", "said", "parts"),
    [
        (
            '{"n": 1, "q": "q", "a": "x"}\n{"n": [1,}\n',
            MINE,
            ["rows.jsonl: line 2: not JSON"],
        ),
        (
            '{"n": 1, "a": "x"}\n',
            MINE,
            ["rows.jsonl: field 'question': column 'q'", "(known: a, n)"],
        ),
        (
            '{"n": 1, "q": "q", "a": "x"}\n' * 2,
            MINE,
            ["rows.jsonl: language 'english': field 'id' repeats '1'"],
        ),
        (
            '{"n": 1, "q": "q", "a": ""}\n',
            MINE,
            ["none of its 1 rows has a right answer", "name another with split"],
        ),
    ],
)
def test_complaints_about_files(tmp_path, content, said, parts):
    file = tmp_path / "rows.jsonl"
    file.write_text(content, encoding="utf-8")
    message = only_error(f"hf:{file}", said)
    assert all(part in message for part in parts), message


def test_temporary_files_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    file = lines(tmp_path / "rows.jsonl", {"n": 1, "q": "q", "a": "x"})
    with rows_at(RowLocation(task="t", data=str(file), local=True)) as (split, rows):
        assert (rows.column_names, split) == (["n", "q", "a"], "train")
        assert len(list((tmp_path / "temporary").iterdir())) == 1
        assert list(rows.select_columns(["q"])) == [{"q": "q"}]
    lines(file, {"n": 1, "q": "another", "a": "x"})
    assert (
        load_task(f"hf:{file}", None, said=MINE).pools["english"][0].question
        == "another"
    )
    assert not list((tmp_path / "temporary").iterdir())


def test_data_sets_of_the_hub(hub, monkeypatch):
    hub["org/riddles.v2", None, None] = {
        "validation": Table([{"n": 1, "q": "q", "a": "x", "image": b""}])
    }
    hub["org/riddles.v2", None, "v1"] = {
        "validation": Table([{"n": 1, "q": "old", "a": "x"}])
    }
    revised = MINE.model_copy(update={"revision": "v1"})
    for spec, said, text in (
        ("", MINE, "q"),
        ("@v1", MINE, "old"),
        ("", revised, "old"),
    ):
        data = load_task(f"hf:org/riddles.v2{spec}", None, said=said)
        assert (data.name, data.pools["english"][0].question) == ("riddles.v2", text)
    hub["allenai/ai2_arc", "ARC-Easy", None] = {
        "train": Table([ARC]),
        "test": Table([{**ARC, "id": "t"}]),
    }
    assert [item.item_id for item in load_task("arc_easy", None).pools["english"]] == [
        "t"
    ]
    assert (
        load_task("arc_easy", None, said=Source(split="train"))
        .pools["english"][0]
        .item_id
        == "a1"
    )
    for code in ("ar", "zh", "en", "de", "hi", "es", "vi"):
        hub["facebook/mlqa", f"mlqa.{code}.{code}", "refs/convert/parquet"] = {
            "test": Table([PASSAGE])
        }
    data = load_task("mlqa", ["zh"])
    assert (list(data.pools), len(data.every_pool)) == (["chinese"], 7)
    hub["org/x", None, None] = {"test": Table([{"q": "q"}])}
    monkeypatch.setattr(
        Builder, "__module__", "datasets.packaged_modules.pandas.pandas"
    )
    monkeypatch.setattr(sys.modules["datasets"], "load_dataset", None)
    assert (
        "data set 'org/x': its files are 'pandas'; only Parquet, JSON and CSV are"
        in only_error("hf:org/x", MINE)
    )


@pytest.mark.parametrize(
    ("error", "parts"),
    [
        (
            None,
            [
                "Couldn't reach 'org/x' on the Hub",
                "without a network, name a directory with its files (hf:DIR)",
            ],
        ),
        (
            Exception("Dataset 'org/x' is a gated dataset on the Hub."),
            ["is a gated", "accept its terms", "HF_TOKEN"],
        ),
        (
            RuntimeError("Dataset scripts are no longer supported, but found x.py"),
            ["revision: refs/convert/parquet"],
        ),
        (
            ValueError("BuilderConfig 'y' not found. Available: ['z']"),
            ["BuilderConfig 'y' not found"],
        ),
    ],
)
def test_errors_of_the_hub(hub, error, parts):
    if error is not None:
        hub["org/x", None, None] = error
    message = only_error("hf:org/x", MINE)
    assert message.startswith("task 'hf': data set 'org/x': cannot be loaded: ")
    assert all(part in message for part in parts), message


def test_names_and_sizes_without_network(tmp_path):
    for spec, name in (
        ("hf:org/x.y@main", "x.y"),
        (f"hf:{tmp_path}", tmp_path.name),
        ("mmlu", "mmlu"),
    ):
        assert TaskSpec.parse(spec).task.name == spec.partition(":")[0]
        assert task_name(spec) == name
    for spec in ("hf:nowhere", "hf:/no/such/dir", "hf:a/b/c", "hf:no/mapping.yaml"):
        assert "nor the name of a data set of the hub (ORG/NAME)" in only_error(spec)
    assert "name its file, as in hf:ORG/NAME" in only_error("hf")
    assert "no such file or directory" in only_error("arc_easy:nowhere")
    assert items_by_language("mlqa", ["de", "hindi"]) == {"german": 4517, "hindi": 4918}
    assert items_by_language("arc_easy", None, Source(split="train")) == {
        "english": 10_000
    }
    assert items_by_language("hf:org/x", None, MINE) == {"english": 10_000}
    column = Source.model_validate({"fields": {"language": "l"}})
    assert items_by_language("hf:org/x", ["hi"], column) == {"hi": 10_000}
    assert items_by_language(
        "belebele", None, Source(config={"amharic": "amh_Ethi"})
    ) == {"amharic": 10_000}


@pytest.mark.parametrize("name", ["a[1].jsonl", "a?.jsonl", "a*.jsonl"])
def test_file_name_is_no_pattern(tmp_path, name):
    for file in (name, "a1.jsonl"):
        lines(tmp_path / file, {"n": file, "q": "q", "a": "x"})
    (item,) = load_task(f"hf:{tmp_path / name}", None, said=MINE).pools["english"]
    assert item.item_id == name


@pytest.mark.parametrize(
    ("files", "left"),
    [
        (["a.jsonl", "exam-test.jsonl", "b.jsonl"], "a.jsonl, b.jsonl"),
        (["a.jsonl", "sub/b.csv"], "sub/b.csv"),
        (["a.jsonl", "b.jsonl", "c.tsv"], "c.tsv"),
        (["a.jsonl", ".b.jsonl"], ".b.jsonl"),
        (["a.jsonl", "b.xlsx"], "b.xlsx"),
        (["b.jsonl", "A.JSONL"], "A.JSONL"),
        (
            [
                "a.jsonl",
                "sub/b.jsonl",
                "_c.ndjson",
                "notes.txt",
                ".cache/d.jsonl",
                "._a.jsonl",
            ],
            "",
        ),
        (["train.jsonl", "test.jsonl"], ""),
    ],
)
def test_folder_is_read_or_refused(tmp_path, files, left):
    for name in files:
        lines(tmp_path / name, {"n": name, "q": "q", "a": "x"})
    (tmp_path / "dataset_infos.json").write_text("{}")
    if left:
        assert f"would leave out {left}: name one file" in only_error(
            f"hf:{tmp_path}", MINE
        )
    else:
        found = {
            item.item_id
            for item in load_task(f"hf:{tmp_path}", None, said=MINE).pools["english"]
        }
        assert found == {"test.jsonl"} or found == {
            "a.jsonl",
            "sub/b.jsonl",
            "_c.ndjson",
        }


def test_compressed_files_are_read(tmp_path):
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write(json.dumps({"n": 1, "q": "q", "a": "2024-05-06"}))
    lines(tmp_path / "b.jsonl", {"n": 2, "q": "q", "a": "y"})
    items = load_task(f"hf:{tmp_path}", None, said=MINE).pools["english"]
    assert sorted(item.answers for item in items) == [("2024-05-06",), ("y",)]
