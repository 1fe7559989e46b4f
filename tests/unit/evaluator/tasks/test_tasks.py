"""The registry, and every complaint of the readers."""

import json
import os

import pytest

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
from evaluator.tasks.squad import read_tydiqa
from evaluator.tasks.user_files import read_jsonl
from tests.support.registries import temporarily
from tests.support.stamps import make_item
from tests.support.sweeps import refused

LINE = {"id": "a", "language": "english", "context": "c", "question": "q?"}
LINE["answers"] = ["x"]


def squad(*questions, context="c", title="T"):
    paragraph = {"context": context, "qas": list(questions)}
    return {"data": [{"title": title, "paragraphs": [paragraph]}]}


def question(item_id, *answers):
    texts = [{"text": text, "answer_start": 0} for text in answers]
    return {"id": item_id, "question": "q?", "answers": texts}


def write(path, content):
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_text(text, encoding="utf-8")
    return path


def write_lines(path, *records):
    lines = [each if isinstance(each, str) else json.dumps(each) for each in records]
    return write(path, "\n".join(lines) + "\n")


def loaded(path, *records):
    return load_task(f"jsonl:{write_lines(path, *records)}", None)


def test_fields_of_a_line_make_groups(tmp_path):
    """Of the content, only the groups differ: the records of a run stay."""
    named = {
        "groups": ["team", "level", "team"],
        "team": "le\ngal",
        "level": 2,
        "note": "",
    }
    path = tmp_path / "q.jsonl"
    data = loaded(path, LINE | named, LINE | {"id": "b", "team": "it"})
    first, second = data.pools["english"]
    assert first.groups == ("team=le gal", "level=2")
    assert second.groups == ()
    team = "team in lines whose groups lack it"
    assert data.left_out[0].startswith(f"fields note, {team} (known: ")
    assert loaded(path, LINE, LINE | {"id": "b"}).digest == data.digest
    assert loaded(path, LINE | named | {"team": None}).pools["english"][0].groups == (
        "level=2",
    )
    for wrong, told in (
        ({"groups": ["team"]}, "line 1: field 'groups': the line has no field 'team'"),
        ({"groups": {"team": "it"}}, "field 'groups' must be a list"),
        ({"groups": ["team"], "team": ["it"]}, "field 'team' must be text or a number"),
        ({"group": "it"}, "unknown field 'group'; did you mean 'groups'?"),
        ({"language": "team=it"}, "'team=it' (item 'a') looks like a group's name"),
    ):
        assert told in refused(loaded, path, LINE | wrong)


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ("gazeteer", "unknown task 'gazeteer'; did you mean 'gazetteer'?"),
        ("", "unknown task ''"),
        ("gazetteer:", "takes no path"),
        ("jsonl", "jsonl:FILE"),
        ("jsonl:", "path after ':' is empty"),
        ("xquad:/no/such/dir", "/no/such/dir: no such file"),
        ("jsonl:/", "is a directory"),
        ("jsonl:~nobody-of-that-name/x.jsonl", "no such file or directory"),
    ],
)
def test_bad_specs(spec, part):
    assert part in refused(TaskSpec.parse, spec)
    assert part in refused(load_task, spec, None)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("my items (v2)", "my-items-v2"),
        ("own.set", "own.set"),
        ("-rf;$ä", "rf-ä"),
        # pyarrow skips names that begin with . or _
        *((name, "q") for name in ("_q", ".q", "__q", "._-q", "-q")),
    ],
)
def test_task_names_of_files(tmp_path, file, name):
    data = loaded(tmp_path / f"{file}.jsonl", LINE)
    assert data.name == data.pools["english"][0].task == name


def test_languages_and_digests(tmp_path):
    found = load_task("gazetteer", ["sw", "English", "swahili"])
    assert list(found.pools) == ["swahili", "english"]
    for language in ("en", "th"):
        write(tmp_path / f"xquad.{language}.json", squad(question("1", "x")))
    assert list(load_task(f"xquad:{tmp_path}", ["thai"]).pools) == ["th"]
    assert items_by_language("xquad", ["thai", "en"]) == {"th": 1190, "en": 1190}
    assert items_by_language("tydiqa", ["sw"]) == {"swahili": 499}
    assert "did you mean 'th'?" in refused(load_task, f"xquad:{tmp_path}", ["tai"])
    assert found.digest == load_task("gazetteer", None).digest
    other = LINE | {"id": "b"}
    same = loaded(tmp_path / "a.jsonl", LINE, other).digest
    assert same == loaded(tmp_path / "renamed.jsonl", LINE, other).digest
    fields = {"answers": ["y"], "context": "d", "options": ["z"], "language": "finnish"}
    changes = [(LINE, other | {name: value}) for name, value in fields.items()]
    changes += [(other, LINE), (LINE,)]
    digests = {loaded(tmp_path / "b.jsonl", *rows).digest for rows in changes}
    assert len({same, *digests}) == 1 + len(changes)


def test_a_task_is_one_object(tmp_path):
    toy = Task(
        name="toy",
        help="a toy",
        argument=Argument("DIR", words={"own": "toy-own"}),
        read_items=lambda path: [make_item(context=str(path))],
    )
    with temporarily(TASKS, toy):
        assert toy.spellings == ("toy", "toy:DIR")
        assert load_task("toy", None).pools["english"][0].task == "toy"
        assert task_name("toy:own") == "toy-own"
        assert task_name(f"toy:{tmp_path}") == "toy"
        assert items_by_language(f"toy:{tmp_path}", None) == {"english": 1}
    assert "unknown task 'toy'" in refused(TaskSpec.parse, "toy")
    with temporarily(
        TASKS, Task(name="empty", help="nothing", read_items=lambda _: [])
    ):
        assert refused(load_task, "empty", None) == "task 'empty': holds no items"


def test_jsonl_items_and_bad_files(tmp_path):
    thai = {"language": "thai", "context": "ก\u2028ข", "options": ["o", "p"]}
    file = write_lines(
        tmp_path / "items.jsonl",
        "\ufeff"
        + json.dumps(LINE | {"id": "b", "answers": ["x", "y", "x"], "extra": 1}),
        "",
        json.dumps(LINE | thai, ensure_ascii=False),
        json.dumps(LINE | {"answers": []}) + "\r",
        "   ",
        LINE | {"id": "d", "context": "", "options": None},
        {key: LINE[key] for key in LINE if key != "context"} | {"id": "e"},
        LINE | {"id": "f", "context": "", "answers": ["other"]},
        LINE | {"id": "g", "context": f" {LINE['context']}\t"},
    )
    items = read_jsonl(file, "items")
    assert [item.item_id for item in items] == ["b", "a", "a", *"defg"]
    assert [item.answers for item in items[:3]] == [("x", "y"), ("x",), ()]
    assert (items[1].language, items[1].context) == ("thai", "ก\u2028ข")
    assert items[1].options == ("o", "p")
    # Questions on one context share a cluster, whatever its white space. No context is
    # no common one, but an item that is there twice counts once.
    assert [item.cluster for item in items] == ["b", "a", "b", "d", "d", "f", "b"]
    file.write_bytes(json.dumps(LINE).encode() + b"\n" + '{"id": "ä'.encode("latin-1"))
    assert "line 2: not UTF-8" in refused(read_jsonl, file, "items")
    twice = write_lines(tmp_path / "twice.jsonl", LINE, LINE)
    problem = refused(load_task, f"jsonl:{twice}", None)
    assert problem.endswith("line 2: field 'id' repeats 'a' of line 1")
    os.mkfifo(tmp_path / "xquad.en.json")
    for task in ("xquad", "hf", "arc_easy"):
        told = refused(load_task, f"{task}:{tmp_path}", None)
        assert "xquad.en.json: is a pipe" in told


@pytest.mark.parametrize(
    ("change", "part"),
    [
        *(
            ({name: ...}, f"field {name!r} is missing")
            for name in LINE
            if name != "context"
        ),
        ({"id": ..., "question": ...}, "fields id, question are missing"),
        ({"id": 7}, "field 'id' must be a string, not 7"),
        ({"id": " "}, "field 'id' is empty"),
        ({"answers": "x"}, "field 'answers' must be a list, not \"x\""),
        ({"answers": ["x", 3]}, "field 'answers'[1] must be a string, not 3"),
        ({"options": ["x", " "]}, "field 'options'[1] is empty"),
        ("[]", "must be an object"),
    ],
)
def test_jsonl_errors(tmp_path, change, part):
    line = change
    if isinstance(change, dict):
        line = {name: v for name, v in (LINE | change).items() if v is not ...}
    file = write_lines(tmp_path / "items.jsonl", LINE, "", line)
    message = refused(read_jsonl, file, "items")
    assert message.startswith(f"{file}: line 3")
    assert part in message


def test_xquad_languages_and_clusters(tmp_path):
    """Languages come from file names; paragraphs are clusters."""
    first = {"context": "c1", "qas": [question("1", "x"), question("2", "y")]}
    second = {"context": "c1", "qas": [question("3", "z")]}
    article = {"title": "A", "paragraphs": [first, second]}
    for language in ("th", "en"):
        write(tmp_path / f"xquad.{language}.json", {"data": [article]})
    write(tmp_path / "notes.json", "not read")
    data = load_task(f"xquad:{tmp_path}", None)
    assert (list(data.pools), data.left_out) == (["en", "th"], ("notes.json",))
    assert [item.item_id for item in data.pools["th"]] == ["1", "2", "3"]
    clusters = [item.cluster for item in data.pools["en"]]
    assert clusters[0] == clusters[1] != clusters[2]
    assert clusters == [item.cluster for item in data.pools["th"]]


def test_tydiqa_languages(tmp_path):
    first = squad(question("arabic-1", "x", "x"), question("swahili-2-0", "x", "y"))
    named = squad(question("77", "z"), question("korean-78", "z"))
    write(tmp_path / "a-dev.json", first)
    write(tmp_path / "tydiqa-goldp-dev-finnish.json", named)
    write(tmp_path / "tydiqa.te.json", squad(question("train-1", "z")))
    (arabic,), (finnish,), (korean,), (swahili,), (telugu,) = load_task(
        f"tydiqa:{tmp_path}", None
    ).pools.values()
    assert [finnish.item_id, korean.item_id] == ["77", "korean-78"]
    assert (telugu.item_id, telugu.language) == ("train-1", "telugu")
    assert (arabic.answers, swahili.answers) == (("x",), ("x", "y"))
    assert swahili.cluster == "swahili-2-0"
    assert len(read_tydiqa(tmp_path / "a-dev.json")) == 2


@pytest.mark.parametrize("name", ["dev.json", "english-to-finnish.json"])
def test_tydiqa_without_a_language(tmp_path, name):
    write(tmp_path / name, squad(question("77", "z")))
    message = refused(read_tydiqa, tmp_path)
    assert f"{name}: id '77' has no language" in message
    assert "arabic" in message


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (None, "holds no file 'xquad.*.json'"),
        ({"data": [7]}, "data[0] must be an object, not 7"),
        ({"data": [{"title": 3, "paragraphs": []}]}, "data[0]: field 'title' must be a string"),
        ({"data": [{"paragraphs": [{"qas": []}]}]}, "data[0].paragraphs[0]: field 'context' is missing"),
        (squad({"id": "1", "question": "q", "answers": ["x"]}), "qas[0].answers[0] must be an object"),
        (squad(question("1", "x"), question("1", "y")), "language: 'en': field 'id' repeats '1'"),
    ],
)  # fmt: skip
def test_squad_errors(tmp_path, content, part):
    if content is not None:
        write(tmp_path / "xquad.en.json", content)
    message = refused(load_task, f"xquad:{tmp_path}", None)
    assert str(tmp_path) in message
    assert part in message


def row(item_id, context="c", answers=("x", "x")):
    answers = {"text": list(answers), "answer_start": []}
    return {"id": item_id, "context": context, "question": "q?", "answers": answers}


def test_items_of_the_hub(hub):
    message = refused(load_task, "xquad", None)
    assert "data set 'google/xquad' (config 'xquad.ar', split 'val" in message
    assert "Couldn't reach 'google/xquad'" in message
    assert "name a directory with its files (xquad:DIR)" in message
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
        rows = [row("1"), row("2"), row("3", context="d")]
        hub["google/xquad", f"xquad.{language}", None] = {"validation": rows}
    assert len(load_task("xquad", ["ro"]).every_pool) == 12
    rows = [row("telugu-1"), row("arabic-2-0", answers=["x", "y"])]
    tydiqa = "google-research-datasets/tydiqa", "secondary_task", None
    hub[tydiqa] = {"validation": rows}
    pools = load_task("tydiqa", None).pools
    assert [item.answers for (item,) in pools.values()] == [("x", "y"), ("x",)]
    assert pools["telugu"][0].cluster == "telugu-1"


def test_clusters_of_translations_only(tmp_path):
    """Equal ids in two languages are one cluster where translations are declared."""
    rows = [
        LINE | {"id": "1", "language": each, "context": each}
        for each in ("thai", "lao")
    ]
    file = write_lines(tmp_path / "q.jsonl", *rows)

    def clusters(spec, said=None):
        pools = load_task(spec, None, said=said).pools
        return [pool[0].cluster for pool in pools.values()]

    for task in ("jsonl", "hf"):
        assert clusters(f"{task}:{file}") == ["lao: 1", "thai: 1"]
    assert clusters(f"hf:{file}", Source(translations=True)) == ["1", "1"]
    for name, declared in (("belebele", True), ("squad", None)):
        assert TASKS[name].data.source(None)[0].translations is declared


def test_digest_tells_what_was_asked(tmp_path):
    def digest(**changes):
        data = loaded(tmp_path / "q.jsonl", LINE | changes)
        return data.every_pool.popitem()[1][0].digest

    changed = {"context": "d", "question": "!", "answers": ["x", "y"], "options": ["y"]}
    digests = {digest(**{name: value}) for name, value in changed.items()}
    assert len({digest(), digest(id="2", language="lao"), *digests}) == 5


@pytest.mark.parametrize(
    ("names", "part"),
    [
        (["en", "english"], "language: 'en' and 'english' are one language"),
        (["zh", "cmn"], "language: 'zh' and 'cmn' are one language"),
        (["all"], "language: 'all' (item 'all') names a row of the tables"),
        (["All"], "language: 'All' (item 'All') names a row"),
    ],
)
def test_impossible_languages(tmp_path, names, part):
    rows = [LINE | {"id": name, "language": name} for name in names]
    assert part in refused(loaded, tmp_path / "q.jsonl", *rows)
