"""Calibration passages by the rules that their source spells, and none of what is
asked about."""

import gzip
import hashlib
import random
import struct

import datasets
import pytest

from evaluator.checkpoints.manifests import PruneManifest, read_manifest
from pruning import calibration as sequences
from pruning.calibration import Passage, check_disjoint, text_digest
from pruning.config import CalibrationConfig
from pruning.run import check, prune
from tests.support import pruning as tiny
from tests.support.sweeps import refused


@pytest.fixture(scope="module")
def tokenizer():
    return tiny.tokenizer()


def load(
    source: str, tokenizer, samples: int = 4, length: int = 32, seed: int = 0, **sources
):
    config = CalibrationConfig(source=source, samples=samples, sequence_length=length)
    return sequences.load(config, tokenizer, seed, sources)


def test_text_files_give_first_lines(tokenizer, tmp_path):
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_bytes(("\ufeffw1 w2\r\n\n  \nw3 w4 w5\n" + "w6 " * 50).encode())
    second.write_text("w7\nw8\n")
    found = load(f"text:{first},{second}", tokenizer, length=10)
    wanted = [
        tokenizer(text)["input_ids"][:10]
        for text in ("w1 w2", "w3 w4 w5", "w6 " * 50, "w7")
    ]
    assert [list(ids) for ids in found.sequences] == wanted
    rows = [(passage.origin, passage.row) for passage in found.manifest.passages]
    assert rows == [(str(first), 0), (str(first), 3), (str(first), 4), (str(second), 0)]
    assert (found.manifest.tokens, found.manifest.cut) == (sum(map(len, wanted)), 1)
    assert found.manifest.files == {
        str(f): hashlib.sha256(f.read_bytes()).hexdigest() for f in (first, second)
    }
    packed = b"".join(
        struct.pack(f"<{len(ids) + 1}q", len(ids), *ids) for ids in wanted
    )
    assert found.manifest.ids_sha256 == hashlib.sha256(packed).hexdigest()


def test_json_lines_may_be_compressed(tokenizer, tmp_path):
    content = b'{"text": "w0", "url": "x"}\n{"text": "w1"}\n'
    (tmp_path / "plain.jsonl").write_bytes(content)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(content))
    wanted = [tuple(tokenizer(word)["input_ids"]) for word in ("w0", "w1")]
    for name in ("plain.jsonl", "a.jsonl.gz"):
        found = load(f"jsonl:{tmp_path / name}", tokenizer, samples=2)
        assert list(found.sequences) == wanted


@pytest.fixture
def hub(monkeypatch):
    asked = []

    def load_dataset(path, **arguments):
        asked.append((path, arguments))
        words = 30 if path == "allenai/c4" else 1
        rows = [{"text": ""}] + [
            {"text": " ".join(f"w{i}" for _ in range(words + i))} for i in range(50)
        ]
        return iter(rows) if arguments.get("streaming") else rows

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return asked


def origins(found):
    return [(passage.origin, passage.row) for passage in found.manifest.passages]


def test_c4_gives_first_passages(hub, tokenizer):
    found = load("c4", tokenizer)
    files = {"train": "en/c4-train.00000-of-01024.json.gz"}
    arguments = {"split": "train", "streaming": True, "data_files": files}
    assert hub == [("allenai/c4", arguments)]
    assert origins(found) == [("c4:train:00000", row) for row in (1, 2, 3, 4)]


def test_wikipedia_takes_turns(hub, tokenizer):
    found = load("wikipedia:swahili,te", tokenizer, samples=5)
    assert [arguments["name"] for _, arguments in hub] == ["20231101.sw", "20231101.te"]
    wiki = "wikimedia/wikipedia:20231101"
    assert origins(found) == [(f"{wiki}.sw", row) for row in (1, 2, 3)] + [
        (f"{wiki}.te", row) for row in (1, 2)
    ]
    assert len(load("balanced:en,sw", tokenizer).sequences) == 4


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("source", "fields", "message"),
    [
        ("c4:windows", {"length": 5000}, "longer than 5000 tokens"),
        (
            "balanced:sw,en",
            {"samples": 120},
            "20231101.sw has 50 passages, 60 were requested",
        ),
    ],
)
def test_short_hub_sources_are_refused(source, fields, message, tokenizer):
    assert message in refused(load, source, tokenizer, **fields)


def test_c4_windows_follow_the_authors(hub, tokenizer):
    found = load("c4:windows", tokenizer, samples=6, length=70, seed=3)
    assert [arguments.get("streaming", False) for _, arguments in hub] == [False]
    texts = [""] + [" ".join(f"w{i}" for _ in range(30 + i)) for i in range(50)]
    generator = random.Random(3)
    for passage, ids in zip(found.manifest.passages, found.sequences, strict=True):
        while True:
            row = generator.randint(0, len(texts) - 1)
            whole = tokenizer(texts[row])["input_ids"]
            if len(whole) > 70:
                break
        start = generator.randint(0, len(whole) - 70 - 1)
        assert (passage.row, passage.offset) == (row, start)
        assert ids == tuple(whole[start : start + 70])


def test_held_out_passage_is_named():
    assert (
        text_digest("The  Caf\u00e9,\nopen.")
        == text_digest("the cafe\u0301 OPEN")
        != text_digest("the cafe open")
    )
    assert text_digest(" ?!\n") == ""
    # JSON lines may hold half of a surrogate pair
    assert len(text_digest("\ud800")) == 64
    held_out = {text_digest("b"): "item 7"}
    check_disjoint([Passage("a", "f.txt", 0), Passage("?", "f.txt", 1)], held_out)
    told = refused(
        check_disjoint, [Passage("a", "f.txt", 0), Passage("B.", "f.txt", 2)], held_out
    )
    assert told.startswith(
        "calibration.source: passage 2 of f.txt is also item 7; leave"
    )


def test_held_out_network_passage_ends_job(
    checkpoints, passages, tmp_path, monkeypatch
):
    source, out = checkpoints("qwen3"), tmp_path / "out"
    third = passages.read_text().splitlines()[2]
    held_out = {text_digest(third.upper() + "."): "the context of item 'x'"}
    told = refused(check, tiny.job(source, passages, samples=4), out, held_out=held_out)
    assert (
        "passages.txt is also the context of item 'x'"
        in told.partition("passage 2 of ")[2]
    )

    def rows(origin, **_):
        return (
            Passage(line, origin, row)
            for row, line in enumerate(passages.read_text().splitlines())
        )

    monkeypatch.setattr("pruning.calibration._hub", rows)
    job = tiny.job(source, "c4", samples=4)
    check(job, out, held_out=held_out)  # reads one passage
    assert "passage 2 of c4:train:00000 is also" in refused(
        prune, job, out, held_out=held_out
    )
    assert not out.exists()
    assert prune(job, out, held_out={text_digest("other"): "x"}).calibration is not None


def test_finished_checkpoint_knows_its_passages(checkpoints, passages, tmp_path):
    out, config = tmp_path / "out", tiny.job(checkpoints("qwen3"), passages, samples=4)
    prune(config, out)
    manifest = read_manifest(out, PruneManifest)
    held_out = {manifest.calibration.passages[3].text_digest: "the context of item 'y'"}
    for again in (check, prune):
        assert "is also the context of item 'y'" in refused(
            again, config, out, held_out=held_out
        )
    check(config, out, held_out={})


def test_unusable_passages_are_one_line(monkeypatch, tokenizer, tmp_path):
    def load_dataset(path, **_):
        raise ConnectionError("Couldn't reach the hub\nmore")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert (
        "allenai/c4 cannot be read from the hub (Couldn't reach the hub more)"
        in refused(load, "c4", tokenizer)
    )
    file = tmp_path / "a.txt"
    file.write_text("w1\nw2\n")

    def silent(text, verbose):
        return {"input_ids": [] if text == "w2" else [3]}

    assert f"passage 1 of {file}: gives no token" in refused(
        load, f"text:{file}", silent, samples=2
    )
