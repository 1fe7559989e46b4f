"""Calibration passages by the rules that their source spells, and a manifest that pins the tokens."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import struct

import datasets
import pytest

from evaluator.core.errors import InputError
from pruning import calibration as sequences
from pruning.config import CalibrationConfig
from tests.support import pruning as tiny


@pytest.fixture(scope="module")
def tokenizer():
    return tiny.tokenizer()


def load(source: str, tokenizer, samples: int = 4, length: int = 32, seed: int = 0, **sources):
    config = CalibrationConfig(source=source, samples=samples, sequence_length=length)
    return sequences.load(config, tokenizer, seed, sources)


def test_text_takes_the_first_lines_in_file_order(tokenizer, tmp_path):
    file = tmp_path / "a.txt"
    file.write_bytes("\ufeffw1 w2\r\n\n  \nw3 w4 w5\nw6\nw7\nw8\n".encode())
    found = load(f"text:{file}", tokenizer)
    wanted = [tokenizer(text)["input_ids"] for text in ("w1 w2", "w3 w4 w5", "w6", "w7")]
    assert [list(ids) for ids in found.sequences] == wanted
    assert [passage.row for passage in found.manifest.passages] == [0, 3, 4, 5]
    assert found.manifest.tokens == sum(map(len, wanted))
    assert found.manifest.files == {str(file): hashlib.sha256(file.read_bytes()).hexdigest()}
    packed = b"".join(struct.pack(f"<{len(ids) + 1}q", len(ids), *ids) for ids in wanted)
    assert found.manifest.ids_sha256 == hashlib.sha256(packed).hexdigest()


def test_long_passages_are_cut_to_the_sequence_length(tokenizer, tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("\n".join(["w1 " * 50, "w2"] * 2))
    found = load(f"text:{file}", tokenizer, length=10)
    assert [len(ids) == 10 for ids in found.sequences] == [True, False, True, False]
    assert found.manifest.cut == 2


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz"])
def test_json_lines_plain_or_compressed(suffix, tokenizer, tmp_path):
    file = tmp_path / f"a.{suffix}"
    content = "".join(json.dumps({"text": f"w{i}", "url": "x"}) + "\n" for i in range(9)).encode()
    file.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    found = load(f"jsonl:{file}", tokenizer)
    assert [list(ids) for ids in found.sequences] == [tokenizer(f"w{i}")["input_ids"] for i in range(4)]


def test_files_are_read_one_after_another(tokenizer, tmp_path):
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text("w1\nw2\nw3")
    second.write_text("w4\nw5")
    found = load(f"text:{first},{second}", tokenizer)
    assert [passage.origin for passage in found.manifest.passages] == [str(first)] * 3 + [str(second)]


def test_a_caller_s_name_wins(tokenizer):
    found = load("c4", tokenizer, seed=5, c4=lambda samples, seed: (f"w{seed + i}" for i in range(samples + 2)))
    assert [list(ids) for ids in found.sequences] == [tokenizer(f"w{i}")["input_ids"] for i in range(5, 9)]
    assert found.manifest.passages[0].origin == "c4"


@pytest.fixture
def hub(monkeypatch):
    """A hub whose data sets hold numbered rows; remembers what was asked."""
    asked = []

    def load_dataset(path, **arguments):
        asked.append((path, arguments))
        words = 30 if path == "allenai/c4" else 1
        rows = [{"text": ""}] + [{"text": " ".join(f"w{i}" for _ in range(words + i))} for i in range(50)]
        return iter(rows) if arguments.get("streaming") else rows

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return asked


def test_c4_is_the_first_passages_of_shard_zero(hub, tokenizer):
    found = load("c4", tokenizer)
    assert hub == [
        (
            "allenai/c4",
            {"split": "train", "streaming": True, "data_files": {"train": "en/c4-train.00000-of-01024.json.gz"}},
        )
    ]
    assert [passage.row for passage in found.manifest.passages] == [1, 2, 3, 4]


def test_c4_windows_draw_from_the_whole_shard_as_the_authors_loader_does(hub, tokenizer):
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


def test_windows_longer_than_every_document_are_given_up(hub, tokenizer):
    with pytest.raises(InputError, match="longer than 5000 tokens"):
        load("c4:windows", tokenizer, length=5000)


def test_wikipedia_and_balanced_divide_passages_by_language(hub, tokenizer):
    found = load("wikipedia:swahili,te", tokenizer, samples=5)
    assert [arguments["name"] for _, arguments in hub] == ["20231101.sw", "20231101.te"]
    assert [passage.row for passage in found.manifest.passages] == [1, 2, 3, 1, 2]
    assert found.manifest.passages[4].origin == "wikimedia/wikipedia:20231101.te"
    assert len(load("balanced:en,sw", tokenizer).sequences) == 4


def test_a_language_with_too_few_passages_says_how_many(hub, tokenizer):
    with pytest.raises(InputError, match=r"20231101.sw has 50 passages, 60 were requested"):
        load("balanced:sw,en", tokenizer, samples=120)


def test_a_hub_out_of_reach_is_one_clear_line(monkeypatch, tokenizer):
    def load_dataset(path, **_):
        raise ConnectionError("Couldn't reach the hub\nmore")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(InputError, match=r"allenai/c4 cannot be read .*offline, use text:FILE") as caught:
        load("c4", tokenizer)
    assert "\n" not in str(caught.value)


def test_a_passage_without_tokens_is_named(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("w1\nw2\n")

    def silent(text, verbose):
        return {"input_ids": [] if text == "w2" else [3]}

    with pytest.raises(InputError, match=f"passage 1 of {file}: gives no token"):
        load(f"text:{file}", silent, samples=2)
