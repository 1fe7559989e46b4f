"""The registry, and every complaint of the readers."""

import json
import os

import pytest

from evaluator.core.errors import InputError
from evaluator.tasks import (
    TASKS,
    Argument,
    Source,
    Task,
    TaskSpec,
    items_by_language,
    load_task,
    task_name,
)
from evaluator.tasks.squad import read_tydiqa, read_xquad
from evaluator.tasks.user_files import read_jsonl
from tests.support.stamps import make_item
from tests.support.sweeps import refused

LINE = {
    "id": "a",
    "language": "english",
    "context": "c",
    "question": "q?",
    "answers": ["x"],
}


def squad(*questions, context="c", title="T"):
    return {
        "data": [
            {
                "title": title,
                "paragraphs": [{"context": context, "qas": list(questions)}],
            }
        ]
    }


def question(item_id, *answers):
    return {
        "id": item_id,
        "question": "q?",
        "answers": [{"text": text, "answer_start": 0} for text in answers],
    }


def write(path, content):
    path.write_text(
        content if isinstance(content, str) else json.dumps(content), encoding="utf-8"
    )
    return path


def write_lines(path, *records):
    return write(
        path,
        "\n".join(r if isinstance(r, str) else json.dumps(r) for r in records) + "\n",
    )


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("gazeteer", ["unknown task 'gazeteer'", "did you mean 'gazetteer'?"]),
        ("", ["unknown task ''"]),
        ("gazetteer:", ["takes no path"]),
        ("jsonl", ["jsonl:FILE"]),
        ("jsonl:", ["path after ':' is empty"]),
        ("xquad:/no/such/dir", ["/no/such/dir: no such file"]),
        ("jsonl:/", ["is a directory"]),
        ("jsonl:~nobody-of-that-name/x.jsonl", ["no such file or directory"]),
    ],
)
def test_bad_specs(spec, parts):
    for function in (TaskSpec.parse, lambda spec: load_task(spec, None)):
        message = refused(function, spec)
        assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    ("file", "name"), [("my items (v2).jsonl", "my-items-v2"), ("-rf;$ä.jsonl", "rf-ä")]
)
def test_task_names_of_files(tmp_path, file, name):
    data = load_task(f"jsonl:{write_lines(tmp_path / file, LINE)}", None)
    assert data.name == data.pools["english"][0].task == name


def test_languages_and_digests(tmp_path):
    assert list(load_task("gazetteer", ["sw", "English", "swahili"]).pools) == [
        "swahili",
        "english",
    ]
    for language in ("en", "th"):
        write(tmp_path / f"xquad.{language}.json", squad(question("1", "x")))
    assert list(load_task(f"xquad:{tmp_path}", ["thai"]).pools) == ["th"]
    assert items_by_language("xquad", ["thai", "en"]) == {"th": 1190, "en": 1190}
    assert items_by_language("tydiqa", ["sw"]) == {"swahili": 499}
    assert "did you mean 'th'?" in refused(load_task, f"xquad:{tmp_path}", ["tai"])
    assert "no language is asked for" in refused(load_task, "gazetteer", [])

    def digest(name, *records):
        return load_task(f"jsonl:{write_lines(tmp_path / name, *records)}", None).digest

    other = {**LINE, "id": "b"}
    same = digest("a.jsonl", LINE, other)
    assert same == digest("renamed.jsonl", LINE, other)
    fields = {"answers": ["y"], "context": "d", "options": ["z"], "language": "finnish"}
    changes = [
        (other, LINE),
        (LINE,),
        *((LINE, other | {name: value}) for name, value in fields.items()),
    ]
    assert len(
        {same, *(digest("b.jsonl", *records) for records in changes)}
    ) == 1 + len(changes)
    assert (
        load_task("gazetteer", ["swahili"]).digest
        == load_task("gazetteer", None).digest
    )


def test_a_task_is_one_object(tmp_path):
    argument = Argument("DIR", words={"own": "toy-own"})
    toy = Task(
        name="toy",
        help="a toy",
        argument=argument,
        read_items=lambda path: [make_item(context=str(path))],
    )
    with TASKS.temporarily(toy):
        assert toy.spellings == ("toy", "toy:DIR")
        assert load_task("toy", None).pools["english"][0].task == "toy"
        assert (task_name("toy:own"), task_name(f"toy:{tmp_path}")) == (
            "toy-own",
            "toy",
        )
        assert items_by_language(f"toy:{tmp_path}", None) == {"english": 1}
    assert "unknown task 'toy'" in refused(TaskSpec.parse, "toy")
    with pytest.raises(
        ValueError, match="exactly one of read_items, data and read_text"
    ):
        Task(name="toy", help="neither")


def test_jsonl_items_and_bad_files(tmp_path):
    lines = [
        "\ufeff"
        + json.dumps({**LINE, "id": "b", "answers": ["x", "y", "x"], "extra": 1}),
        "",
        json.dumps(
            {**LINE, "language": "thai", "context": "ก\u2028ข", "options": ["o", "p"]},
            ensure_ascii=False,
        ),
        json.dumps({**LINE, "answers": []}) + "\r",
        "   ",
        json.dumps({**LINE, "id": "d", "context": "", "options": None}),
        json.dumps({**LINE, "id": "e", "context": ""}),
    ]
    items = read_jsonl(write_lines(tmp_path / "items.jsonl", *lines), "items")
    assert [item.item_id for item in items] == ["b", "a", "a", "d", "e"]
    assert items[0].answers == ("x", "y")
    assert (items[1].language, items[1].context, items[1].options) == (
        "thai",
        "ก\u2028ข",
        ("o", "p"),
    )
    assert items[2].answers == ()
    # questions on one context share a cluster; no context is no common one
    assert [item.cluster for item in items] == ["b", "a", "b", "d", "e"]
    file = tmp_path / "items.jsonl"
    file.write_bytes(json.dumps(LINE).encode() + b"\n" + '{"id": "ä'.encode("latin-1"))
    assert "line 2: not UTF-8" in refused(read_jsonl, file, "items")
    assert "holds no items" in refused(read_jsonl, write(file, "\n \n"), "items")
    with TASKS.temporarily(Task(name="empty", help="nothing", read_items=lambda _: [])):
        assert refused(load_task, "empty", None) == "task 'empty': holds no items"
    os.mkfifo(tmp_path / "xquad.en.json")
    for spec in (f"xquad:{tmp_path}", f"hf:{tmp_path}", f"arc_easy:{tmp_path}"):
        assert "xquad.en.json: is a pipe" in refused(load_task, spec, None)


def without(name):
    return {key: value for key, value in LINE.items() if key != name}


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        *((without(name), [f"field {name!r} is missing"]) for name in LINE),
        ({**LINE, "id": 7}, ["field 'id' must be a string, not 7"]),
        ({**LINE, "id": " "}, ["field 'id' is empty"]),
        ({**LINE, "context": None}, ["field 'context' must be a string, not null"]),
        ({**LINE, "answers": "x"}, ["field 'answers' must be a list, not \"x\""]),
        ({**LINE, "answers": ["x", 3]}, ["field 'answers'[1] must be a string, not 3"]),
        ({**LINE, "options": ["x", " "]}, ["field 'options'[1] is empty"]),
        ('{"id": "b", "id": "c"}', ["key 'id' occurs twice"]),
        (
            {**LINE, "context": "\ud800"},
            ["field 'context' holds a lone surrogate at character 0"],
        ),
        (LINE, ["field 'id' repeats 'a' of line 1"]),
        ([LINE], ["must be an object"]),
        ('{"id": "b"', ["not JSON"]),
    ],
)
def test_jsonl_errors(tmp_path, line, parts):
    file = write_lines(tmp_path / "items.jsonl", LINE, "", line)
    message = refused(read_jsonl, file, "items")
    assert message.startswith(f"{file}: line 3")
    assert all(part in message for part in parts), message
    assert len(message) < 400 + len(str(file))


def test_xquad_languages_and_clusters(tmp_path):
    first = {"context": "c1", "qas": [question("1", "x"), question("2", "y")]}
    second = {"context": "c1", "qas": [question("3", "z")]}
    for language in ("th", "en"):
        write(
            tmp_path / f"xquad.{language}.json",
            {"data": [{"title": "A", "paragraphs": [first, second]}]},
        )
    write(tmp_path / "notes.json", "not read")
    data = load_task(f"xquad:{tmp_path}", None)
    assert (list(data.pools), data.left_out) == (["en", "th"], ("notes.json",))
    assert [item.item_id for item in data.pools["th"]] == ["1", "2", "3"]
    clusters = [item.cluster for item in data.pools["en"]]
    assert clusters[0] == clusters[1] != clusters[2]
    assert clusters == [item.cluster for item in data.pools["th"]]


def test_tydiqa_languages(tmp_path):
    write(
        tmp_path / "a-dev.json",
        squad(question("arabic-1", "x", "x"), question("swahili-2-0", "x", "y")),
    )
    write(
        tmp_path / "tydiqa-goldp-dev-finnish.json",
        squad(question("77", "z"), question("korean-78", "z")),
    )
    write(tmp_path / "tydiqa.te.json", squad(question("train-1", "z")))
    data = load_task(f"tydiqa:{tmp_path}", None)
    assert {
        language: [i.item_id for i in pool] for language, pool in data.pools.items()
    } == {
        "arabic": ["arabic-1"],
        "finnish": ["77"],
        "korean": ["korean-78"],
        "swahili": ["swahili-2-0"],
        "telugu": ["train-1"],
    }
    assert [data.pools[language][0].answers for language in ("arabic", "swahili")] == [
        ("x",),
        ("x", "y"),
    ]
    assert data.pools["swahili"][0].cluster == "swahili-2-0"
    assert [i.item_id for i in read_tydiqa(tmp_path / "a-dev.json")] == [
        "arabic-1",
        "swahili-2-0",
    ]


@pytest.mark.parametrize("name", ["dev.json", "english-to-finnish.json"])
def test_tydiqa_without_a_language(tmp_path, name):
    write(tmp_path / name, squad(question("77", "z")))
    message = refused(read_tydiqa, tmp_path)
    assert all(part in message for part in (name, "'77'", "arabic"))


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (None, ["holds no file 'xquad.*.json'"]),
        ([], ["must be an object, not []"]),
        ({}, ["field 'data' is missing"]),
        ({"data": []}, ["holds no items"]),
        ({"data": [7]}, ["data[0] must be an object, not 7"]),
        (
            {"data": [{"title": 3, "paragraphs": []}]},
            ["data[0]: field 'title' must be a string"],
        ),
        (
            {"data": [{"paragraphs": [{"qas": []}]}]},
            ["data[0].paragraphs[0]: field 'context' is missing"],
        ),
        (
            squad({"question": "q", "answers": []}),
            ["data[0].paragraphs[0].qas[0]: field 'id' is missing"],
        ),
        (
            squad({"id": "1", "question": "q", "answers": ["x"]}),
            ["qas[0].answers[0] must be an object"],
        ),
        (squad(question("1", "\udfff")), ["lone surrogate"]),
        (
            squad(question("1", "x"), question("1", "y")),
            ["language 'en': field 'id' repeats '1'"],
        ),
    ],
)
def test_squad_errors(tmp_path, content, parts):
    if content is not None:
        write(tmp_path / "xquad.en.json", content)
    message = refused(read_xquad, tmp_path)
    assert str(tmp_path) in message
    assert all(part in message for part in parts), message


def row(item_id, context="c", answers=("x", "x")):
    return {
        "id": item_id,
        "context": context,
        "question": "q?",
        "answers": {"text": list(answers), "answer_start": []},
    }


def test_items_of_the_hub(hub):
    message = refused(load_task, "xquad", None)
    parts = (
        "cannot load data set 'google/xquad'",
        "Couldn't reach 'google/xquad'",
        "use xquad:DIR",
    )
    assert all(part in message for part in parts)
    for language in [
        "ar",
        "de",
        "el",
        "en",
        "es",
        "hi",
        "ru",
        "th",
        "tr",
        "vi",
        "zh",
        "ro",
    ]:
        hub["google/xquad", f"xquad.{language}", None] = {
            "validation": [row("1"), row("2"), row("3", context="d")]
        }
    data = load_task("xquad", ["ro"])
    assert len(data.every_pool) == 12
    clusters = [item.cluster for item in data.pools["ro"]]
    assert clusters[0] == clusters[1] != clusters[2]
    rows = [row("telugu-1"), row("arabic-2-0", answers=["x", "y"])]
    hub["google-research-datasets/tydiqa", "secondary_task", None] = {
        "validation": rows
    }
    pools = load_task("tydiqa", None).pools
    found = {
        language: [item.answers for item in pool] for language, pool in pools.items()
    }
    assert found == {"arabic": [("x", "y")], "telugu": [("x",)]}
    assert pools["telugu"][0].cluster == "telugu-1"


@pytest.mark.parametrize("name", ["_q", ".q", "__q", "._-q", "-q"])
def test_names_are_visible_to_pyarrow(tmp_path, name):
    (tmp_path / f"{name}.jsonl").write_text("{}")
    assert task_name(f"jsonl:{tmp_path / name}.jsonl") == "q"


def test_clusters_of_translations_only(tmp_path):
    """Equal ids in two languages are one cluster where translations are declared."""
    rows = [
        {
            "id": "1",
            "language": language,
            "context": f"{language} c",
            "question": "?",
            "answers": ["x"],
        }
        for language in ("thai", "lao")
    ]
    file = tmp_path / "q.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))

    def clusters(spec, said=None):
        return [
            pool[0].cluster for pool in load_task(spec, None, said=said).pools.values()
        ]

    for task in ("jsonl", "hf"):
        assert clusters(f"{task}:{file}") == ["lao: 1", "thai: 1"]
    assert clusters(f"hf:{file}", Source(translations=True)) == ["1", "1"]
    assert [
        TASKS[name].data.described(None, Source()).translations
        for name in ("belebele", "squad")
    ] == [True, None]


def test_digest_tells_what_was_asked(tmp_path):
    file = tmp_path / "q.jsonl"
    row = {
        "id": "1",
        "language": "thai",
        "context": "c",
        "question": "?",
        "answers": ["x"],
    }

    def digest(**changes):
        file.write_text(json.dumps(row | changes))
        return load_task(f"jsonl:{file}", None).every_pool.popitem()[1][0].digest

    same = digest()
    assert digest(id="2", language="lao") == same
    changes = (
        {"context": "d"},
        {"question": "!"},
        {"answers": ["x", "y"]},
        {"options": ["y"]},
    )
    assert len({same, *(digest(**each) for each in changes)}) == 5


@pytest.mark.parametrize(
    "names", [("en", "english"), ("English", "english"), ("zh", "cmn")]
)
def test_one_language_has_one_spelling(tmp_path, names):
    rows = [
        {"id": name, "language": name, "context": "", "question": "?", "answers": ["x"]}
        for name in names
    ]
    file = tmp_path / "q.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(
        InputError, match=f"{names[0]!r} and {names[1]!r} are one language"
    ):
        load_task(f"jsonl:{file}", None)


@pytest.mark.parametrize("name", ["all", "mean", "All"])
def test_row_names_are_no_languages(tmp_path, name):
    file = tmp_path / "q.jsonl"
    file.write_text(
        json.dumps(
            {
                "id": "q1",
                "language": name,
                "context": "",
                "question": "?",
                "answers": ["x"],
            }
        )
    )
    with pytest.raises(
        InputError, match=rf"{file}.*language: '{name}' \(item 'q1'\) names a row"
    ):
        load_task(f"jsonl:{file}", None)
