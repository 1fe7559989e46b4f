"""The item view's data: complete, compact, the same bytes for the same records, and
harmless inside HTML."""

import base64
import gzip
import json

import pandas as pd

from evaluator.metrics import Inputs, reduce_records
from evaluator.probes import PROBES
from evaluator.report.item_view import ItemView, packed
from tests.support.records import Seen, records
from tests.support.synthetic import HOSTILE


def unpacked(data: str) -> dict:
    return json.loads(gzip.decompress(base64.b64decode(data)))


def test_packing_is_lossless():
    value = {"s": ["নদী", HOSTILE], "r": [[1, None]]}
    assert unpacked(packed(value)) == value
    assert packed(value) == packed(value)


def seen(chunk: dict, number: int, probe: str) -> list[dict]:
    """What a probe recorded of an item, with texts in place of their numbers."""
    strings = chunk.pop("s")
    rows = pd.DataFrame(chunk).astype(object)
    chunk["s"] = strings
    names = [each.name for each in PROBES if each.view is not None]
    rows = rows[(rows["n"] == number) & (rows["probe"] == names.index(probe))]
    for name in ("text", "option_text", "thought"):
        rows[name] = [None if pd.isna(at) else strings[int(at)] for at in rows[name]]
    return rows.to_dict("records")


def test_rows_and_index():
    right = Seen(True, True)
    first = Seen(True, True, [True], [True], 1, 0.0)
    dense = records("dense", {"english/1": first, "english/2": right})
    measured = Seen(False, True, [True, False], [False], 3, -1.25, aligned=2)
    failed = Seen(True, True, status="engine_error")
    answers = {"english/1": measured, "english/2": failed}
    pruned = records("p", answers, base="dense")
    view = ItemView()
    view.add(dense)
    view.add(pruned)
    chunk = unpacked(view.chunks[view.where["p"]["t"]["english"]])
    assert {*chunk["n"]} == {0, 1}
    (greedy,) = seen(chunk, 0, "greedy")
    assert (greedy["format"], greedy["text"], greedy["hit"]) == (0, "bad", 0)
    beams = [(each["text"], each["hit"]) for each in seen(chunk, 0, "beam")]
    assert beams == [("gold", 1), ("bad", 0)]
    samples = [(each["text"], each["hit"]) for each in seen(chunk, 0, "sample")]
    assert samples == [("bad", 0)]
    options = seen(chunk, 0, "choice")
    scores = [(each["option_text"], each["gold"], each["logprob"]) for each in options]
    assert scores[:2] == [("gold", 1, -1.0), ("b", 0, -2.0)]
    (rank,) = seen(chunk, 0, "rank")
    assert (rank["rank"], rank["margin"], rank["cut"]) == (3, -1.25, 0)
    assert seen(chunk, 0, "hard_choice") == []
    (aligned,) = seen(chunk, 0, "aligned_rank")
    assert (aligned["rank"], aligned["margin"]) == (2, -0.5)
    (failed,) = seen(chunk, 1, "greedy")
    assert failed["hit"] == -2
    item = {"task": "t", "language": "english", "item_id": "2", "question": "Q?"}
    items = pd.DataFrame([item | {"context": "C", "answers": ["g", "h"]}])
    outcomes = reduce_records(pd.concat([dense, pruned]))
    index = json.loads(view.index(Inputs(outcomes), items))
    base, pruned = index["checkpoints"]
    assert (base["name"], pruned["name"], pruned["fates"]) == ("dense", "p", "mu")
    assert index["gold"] == [["gold"], ["g", "h"]]
    assert index["question"] == ["", "Q?"]
    contexts = unpacked(view.chunks[index["contexts"]["t"]["english"]])
    assert contexts == {"n": [1], "s": ["C"]}


def test_answers_show_what_was_read():
    frame = records("m", {"english/1": Seen(True), "english/2": Seen(True)})
    frame["option_text"], frame["thought"] = ["gold", ""], [None, "Hm."]
    view = ItemView()
    view.add(frame)
    chunk = unpacked(view.chunks[view.where["m"]["t"]["english"]])
    (read,), (none,) = (seen(chunk, number, "greedy") for number in (0, 1))
    assert (read["option_text"], read["thought"]) == ("gold", None)
    assert (none["option_text"], none["thought"]) == ("", "Hm.")


def test_one_seed_and_no_windows():
    view = ItemView()
    parts = [records("m", {"english/1": Seen(greedy=True, hard=False)}, seed=5)]
    for seed, hit in ((5, False), (2, True)):
        parts.append(records("m", {"english/1": Seen(samples=[hit])}, seed=seed))
    view.add(pd.concat(parts))
    view.add(records("m", {"text/0": Seen(window=(-1.0, 3))}, task="text-wiki"))
    chunk = unpacked(view.chunks[view.where["m"]["t"]["english"]])
    assert len(seen(chunk, 0, "greedy")) == 1
    # greedy was asked under seed 5
    assert [each["hit"] for each in seen(chunk, 0, "sample")] == [0]
    assert list(view.where["m"]) == ["t"]
