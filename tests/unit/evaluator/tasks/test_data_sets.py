"""Any data set: files through `datasets`, the hub through a stand-in for it."""

import json
import sys

import pytest

from evaluator.tasks import Source, TaskSpec, items_by_language, load_task, task_name
from evaluator.tasks.loading import with_examples
from evaluator.tasks.rows import RowLocation, rows_at
from tests.support.sweeps import refused
from tests.unit.evaluator.tasks.conftest import Builder, Table

CHOICES = {"text": ["w", "x", "y"], "label": ["A", "B", "C"]}
ARC = {"id": "a1", "question": "q?", "choices": CHOICES, "answerKey": "B"}
PASSAGE = {"id": "1", "context": "c", "question": "q", "answers": {"text": ["x"]}}
PASSAGE["answers"]["answer_start"] = [0]
FIELDS = {"id": "n", "question": "q", "answers": "a"}
MINE = Source.model_validate({"language": "english", "fields": FIELDS})
ROW = {"n": 1, "q": "q", "a": "x"}


def lines(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def error_of(spec, said=None):
    return refused(load_task, spec, None, said=said)


def english(spec, said=None):
    return load_task(spec, None, said=said).pools["english"]


def ids(items):
    return [item.item_id for item in items]


def test_named_columns_and_splits(tmp_path):
    row = {"id": "1", "language": "thai", "question": "q", "answers": ["x"]}
    row |= {"context": "c", "page": 3}
    other = row | {"id": "2", "language": "hindi"}
    file = lines(tmp_path / "rows.jsonl", row, other)
    data = load_task(f"hf:{file}", ["hi"])
    assert list(data.every_pool) == ["hindi", "thai"]
    assert data.pools["hindi"][0].context == "c"
    lao = load_task(f"hf:{file}", None, said=Source(language="lao"))
    assert list(lao.pools) == ["lao"]
    file.unlink()
    for split in ("train", "validation", "test"):
        lines(tmp_path / f"{split}.jsonl", ROW | {"n": split})
    spec = f"hf:{tmp_path}"
    assert ids(english(spec, MINE)) == ["validation"]
    assert ids(english(spec, MINE.model_copy(update={"split": "test"}))) == ["test"]
    wrong = error_of(spec, MINE.model_copy(update={"split": "dev"}))
    assert "there is no split 'dev' (known: train, validation, test)" in wrong
    (tmp_path / "test.jsonl").unlink()
    (tmp_path / "validation.jsonl").rename(tmp_path / "dev.jsonl")
    # dev is called validation
    assert ids(english(spec, MINE)) == ["validation"]


def test_missing_file_of_a_mapping_asks_no_hub(tmp_path):
    mapping = tmp_path / "q.yaml"
    mapping.write_text("data: nope.csv\nfields: {question: q, answers: a}\n")
    told = refused(load_task, f"hf:{mapping}", None)
    assert told == "nope.csv: there is no such file, here or beside its mapping"


def test_examples_are_of_the_training_split(tmp_path):
    """Where the data set has one; they are a part of its digest."""
    for split in ("train", "test"):
        lines(tmp_path / f"{split}.jsonl", ROW | {"n": split})
    spec = f"hf:{tmp_path}"
    data = load_task(spec, None, said=MINE)
    shown = with_examples(data, spec, MINE)
    assert ids(shown.pools["english"]) == ["test"]
    assert ids(shown.examples["english"]) == ["train"]
    assert shown.digest != data.digest
    lines(tmp_path / "train.jsonl", ROW | {"n": "train", "a": "y"})
    assert with_examples(data, spec, MINE).digest != shown.digest
    (tmp_path / "train.jsonl").rename(tmp_path / "validation.jsonl")
    assert with_examples(data, spec, MINE) == data
    own = load_task("gazetteer", ["en"])
    assert with_examples(own, "gazetteer", None) == own


def test_splits_and_configurations(tmp_path):
    (item,) = english(f"arc_easy:{lines(tmp_path / 'mine.jsonl', ARC)}")
    assert (item.task, item.answers) == ("arc_easy", ("x",))
    for split in ("validation", "test"):
        lines(tmp_path / "both" / f"{split}.jsonl", ARC | {"id": split})
    spec = f"arc_easy:{tmp_path / 'both'}"
    assert ids(english(spec)) == ["test"]
    fields = {"question": ["=Science:", "question"]}
    said = Source.model_validate({"split": "validation", "fields": fields})
    (item,) = english(spec, said)
    assert (item.item_id, item.question) == ("validation", "Science:\nq?")
    lines(tmp_path / "mlqa.de.de" / "test.jsonl", PASSAGE)
    lines(tmp_path / "hi.jsonl", PASSAGE)
    lines(tmp_path / "notes.jsonl", {"x": 1})
    data = load_task(f"mlqa:{tmp_path}", None)
    assert list(data.pools) == ["german", "hindi"]
    left = "both/test.jsonl both/validation.jsonl mine.jsonl notes.jsonl"
    assert " ".join(data.left_out) == left
    assert items_by_language(f"mlqa:{tmp_path}", ["de"]) == {"german": 1}
    assert list(load_task(f"mlqa:{tmp_path / 'hi.jsonl'}", None).pools) == ["hindi"]
    message = error_of(f"mlqa:{tmp_path / 'notes.jsonl'}")
    assert "notes.jsonl: has nothing with the name of a configuration (mlqa" in message
    names = {"arc_easy": "ARC-Easy", "arc_challenge": "ARC-Challenge"}
    card = ""
    for task, name in names.items():
        lines(tmp_path / "data" / f"{task}.jsonl", ARC | {"id": task})
        files = f"[{{split: test, path: data/{task}.jsonl}}]"
        card += f"- config_name: {name}\n  data_files: {files}\n"
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n{card}---\n", encoding="utf-8")
    for task in names:
        assert ids(english(f"{task}:{tmp_path}")) == [task]


@pytest.mark.parametrize("config", ["zz", {"english": "zz"}])
@pytest.mark.parametrize("name", ["", "english.jsonl"])
def test_configuration_that_is_not_there(tmp_path, config, name):
    """Neither the file of the language nor the only file stands for the
    configuration that is named."""
    lines(tmp_path / "english.jsonl", ROW)
    language = {} if isinstance(config, dict) else {"language": "english"}
    said = Source.model_validate({"config": config, "fields": FIELDS} | language)
    told = error_of(f"hf:{tmp_path / name}", said)
    assert "field 'config': there is no folder or file 'zz'" in told
    lines(tmp_path / "zz.jsonl", ROW | {"n": 2})
    assert ids(english(f"hf:{tmp_path}", said)) == ["2"]


def test_mapping_file_and_other_files(tmp_path):
    lines(tmp_path / "rows.jsonl", ROW)
    file = tmp_path / "riddles.yaml"
    mapping = "data: rows.jsonl\nlanguage: english\n"
    file.write_text(f"{mapping}fields: {{id: n, question: q, answers: a}}\n")
    data = load_task(f"hf:{file}", None)
    assert (data.name, data.pools["english"][0].answers) == ("riddles", ("x",))
    # the same questions
    rows = f"hf:{tmp_path / 'rows.jsonl'}"
    assert data.digest == load_task(rows, None, said=MINE).digest
    other = Source.model_validate({"fields": {"answers": "q"}})
    assert english(f"hf:{file}", other)[0].answers == ("q",)
    file.write_text(f"{mapping}field: {{}}\n")
    told = error_of(f"hf:{file}")
    assert f"{file}: field: unknown key 'field'; did you mean 'fields'?" in told
    lines(tmp_path / "rows.pkl", "x")
    lines(tmp_path / "texts/train.txt", "x")
    (tmp_path / "empty").mkdir()
    told = error_of(f"hf:{tmp_path / 'rows.pkl'}", MINE)
    assert (
        "a file ending in .parquet, .json, .jsonl, .ndjson, .csv, .tsv is needed"
        in told
    )
    told = error_of(f"hf:{tmp_path / 'texts'}", MINE)
    assert "its files are 'text'; only Parquet, JSON and CSV are read" in told
    told = error_of(f"hf:{tmp_path / 'empty'}", MINE)
    assert "cannot be loaded: The directory at" in told


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rows.csv", 'n,q,a,team\n1,"Who; which?",x,legal\n'),
        ("rows.csv", "\ufeffn;q;a;team\r\n1;Who, which?;x;legal\r\n"),
        ("rows.csv", '"n";q;a;"team, of, 2026"\n1;Who, which?;x;legal\n'),
        ("rows.tsv", "n\tq\ta\tteam\n1\tWho, which?\tx\tlegal\n"),
    ],
)
def test_separators_of_csv_are_found(tmp_path, name, text):
    file = tmp_path / name
    file.write_text(text, encoding="utf-8", newline="")
    data = load_task(f"hf:{file}", None, said=MINE)
    (item,) = data.pools["english"]
    assert item.question.startswith("Who")
    assert item.answers == ("x",)
    (unread,) = data.left_out
    assert unread.startswith("columns team")
    assert "a mapping names this file's columns" in error_of(f"jsonl:{file}")
    file.write_text(text.replace("legal", "legal;x\t,y"), encoding="utf-8")
    assert "put a text that has the separator" in error_of(f"hf:{file}", MINE)
    file.write_text(text, encoding="utf-16")
    assert "iconv -f UTF-16 -t UTF-8" in error_of(f"hf:{file}", MINE)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ('{"n": 1, "q": "q", "a": "x"}\n{"n": [1,}\n', ": line 2: not JSON"),
        ('{"n": 1, "a": "x"}\n', ": field 'question': unknown column 'q'"),
        ('{"n": 1, "q": "q", "a": "x"}\n' * 2, "': language: 'english': field 'id' repeats '1'"),
        ('{"n": 1, "q": "q", "a": ""}\n', ": none of its 1 rows has a right answer; test"),
        # of two keys of one name, one would be lost
        ('{"q": "?", "q": "!", "a": "x"}', ": line 1: key 'q' occurs twice"),
        # columns, as pandas writes them, would be one question
        ('{"n": [1, 2], "q": ["?", "!"], "a": ["x", "y"]}', ": one object, whose fields are columns"),
    ],
)  # fmt: skip
def test_complaints_about_files(tmp_path, content, part):
    file = tmp_path / "rows.jsonl"
    file.write_text(content, encoding="utf-8")
    assert f"rows.jsonl{part}" in error_of(f"hf:{file}", MINE)


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "json"])
def test_data_without_rows_say_so(tmp_path, suffix):
    file = tmp_path / f"empty.{suffix}"
    file.write_text({"csv": "n,q,a\n", "json": "[]"}.get(suffix, ""))
    for task, said in (("hf", MINE), ("arc_easy", None), ("wikitext2", None)):
        told = error_of(f"{task}:{file}", said)
        assert told == f"{file}: has no rows (a header is none)"


def test_temporary_files_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    file = lines(tmp_path / "rows.jsonl", ROW)
    with rows_at(RowLocation(task="t", data=str(file), local=True)) as (split, rows):
        assert (rows.column_names, split) == (["n", "q", "a"], "train")
        assert len(list((tmp_path / "temporary").iterdir())) == 1
        assert list(rows.select_columns(["q"])) == [{"q": "q"}]
    assert not list((tmp_path / "temporary").iterdir())


def test_data_sets_of_the_hub(hub, monkeypatch):
    riddles = "org/riddles.v2"
    hub[riddles, None, None] = {"validation": Table([ROW | {"image": b""}])}
    hub[riddles, None, "v1"] = {"validation": Table([ROW | {"q": "old"}])}
    data = load_task(f"hf:{riddles}", None, said=MINE)
    assert (data.name, data.pools["english"][0].question) == ("riddles.v2", "q")
    assert english(f"hf:{riddles}@v1", MINE)[0].question == "old"
    arc = {"train": Table([ARC]), "test": Table([ARC | {"id": "t"}])}
    hub["allenai/ai2_arc", "ARC-Easy", None] = arc
    assert ids(english("arc_easy")) == ["t"]
    assert ids(english("arc_easy", Source(split="train"))) == ["a1"]
    for code in ["ar", "zh", "en", "de", "hi", "es", "vi"]:
        key = "facebook/mlqa", f"mlqa.{code}.{code}", "refs/convert/parquet"
        hub[key] = {"test": Table([PASSAGE])}
    data = load_task("mlqa", ["zh"])
    assert (list(data.pools), len(data.every_pool)) == (["chinese"], 7)
    hub["org/x", None, None] = {"test": Table([{"q": "q"}])}
    module = "datasets.packaged_modules.pandas.pandas"
    monkeypatch.setattr(Builder, "__module__", module)
    monkeypatch.setattr(sys.modules["datasets"], "load_dataset", None)
    told = error_of("hf:org/x", MINE)
    assert "'org/x': its files are 'pandas'; only Parquet, JSON and CSV are" in told


@pytest.mark.parametrize(
    ("error", "part"),
    [
        (None, "without a network, name a directory with its files (hf:DIR)"),
        (Exception("'org/x' is a gated dataset"), "accept its terms on its page, and"),
        (
            RuntimeError("scripts are no longer supported"),
            "revision: refs/convert/parq",
        ),
        (ValueError("BuilderConfig 'y' not found"), "BuilderConfig 'y' not found"),
    ],
)
def test_errors_of_the_hub(hub, error, part):
    if error is not None:
        hub["org/x", None, None] = error
    message = error_of("hf:org/x", MINE)
    assert message.startswith("task 'hf': data set 'org/x': cannot be loaded: ")
    assert part in message


def test_names_and_sizes_without_network(tmp_path):
    names = {"hf:org/x.y@main": "x.y", f"hf:{tmp_path}": tmp_path.name, "mmlu": "mmlu"}
    for spec, name in names.items():
        assert TaskSpec.parse(spec).task.name == spec.partition(":")[0]
        assert task_name(spec) == name
    for spec in ("hf:nowhere", "hf:/no/such/dir", "hf:a/b/c", "hf:no/mapping.yaml"):
        assert "nor the name of a data set of the hub (ORG/NAME)" in error_of(spec)
    sizes = items_by_language
    assert sizes("mlqa", ["de", "hindi"]) == {"german": 4517, "hindi": 4918}
    assert sizes("arc_easy", None, Source(split="train")) == {"english": 10_000}


@pytest.mark.parametrize("name", ["a[1].jsonl", "a*.jsonl"])
def test_file_name_is_no_pattern(tmp_path, name):
    for file in (name, "a1.jsonl"):
        lines(tmp_path / file, ROW | {"n": file})
    assert ids(english(f"hf:{tmp_path / name}", MINE)) == [name]


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ("a.jsonl exam-test.jsonl b.jsonl", "a.jsonl, b.jsonl"),
        ("a.jsonl sub/b.csv", "sub/b.csv"),
        ("a.jsonl b.jsonl c.tsv", "c.tsv"),
        ("b.jsonl A.JSONL", "A.JSONL"),
        ("a.jsonl sub/b.jsonl _c.ndjson notes.txt .cache/d.jsonl ._a.jsonl", ""),
        ("train.jsonl test.jsonl", ""),
    ],
)
def test_folder_is_read_or_refused(tmp_path, files, left):
    for name in files.split():
        lines(tmp_path / name, ROW | {"n": name})
    (tmp_path / "dataset_infos.json").write_text("{}")
    if left:
        told = error_of(f"hf:{tmp_path}", MINE)
        assert f"would leave out {left}: name one file" in told
    else:
        read = set(ids(english(f"hf:{tmp_path}", MINE)))
        assert read in ({"test.jsonl"}, {"a.jsonl", "sub/b.jsonl", "_c.ndjson"})
