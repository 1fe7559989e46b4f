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


def entries(row: list) -> dict[str, list]:
    names = [probe.name for probe in PROBES if probe.view is not None]
    return dict(zip(names, row[1:], strict=True))


def test_rows_and_index():
    right = Seen(True, True)
    first = Seen(True, True, [True], [True], 1, 0.0)
    dense = records("dense", {"english/1": first, "english/2": right})
    measured = Seen(False, True, [True, False], [False], 3, -1.25, aligned=2)
    failed = Seen(True, True, status="engine_error")
    pruned = records("p", {"english/1": measured, "english/2": failed}, base="dense")
    view = ItemView()
    view.add(dense)
    view.add(pruned)
    chunk = unpacked(view.chunks[view.where["p"]["t"]["english"]])
    strings, (row, failed) = chunk["s"], chunk["r"]
    greedy, beams, samples, options, rank, aligned, hard, *_ = entries(row).values()
    assert chunk["n"] == [0, 1]
    assert [[format, strings[at], hit] for at, hit, format in greedy] == [[0, "bad", 0]]
    assert [[strings[at], hit] for at, hit, *_ in beams] == [["gold", 1], ["bad", 0]]
    assert [[strings[at], hit] for at, hit in samples] == [["bad", 0]]
    scores = [[strings[at], gold, score] for at, gold, score, _ in options]
    assert scores[:2] == [["gold", 1, -1.0], ["b", 0, -2.0]]
    assert (rank, row[0], hard) == ([[3, -1.25]], 0, [])
    ((place, margin, *_),) = aligned
    assert (place, margin) == (2, -0.5)
    assert entries(failed)["greedy"][0][1] == -2
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
    strings, rows = chunk["s"], chunk["r"]
    (read, _), (none, _) = (entries(row)["greedy"] + [0] for row in rows)
    assert read[3] is None
    assert [strings[read[4]], strings[none[3]], strings[none[4]]] == ["gold", "Hm.", ""]


def test_one_seed_and_no_windows():
    view = ItemView()
    parts = [records("m", {"english/1": Seen(greedy=True, hard=False)}, seed=5)]
    for seed, hit in ((5, False), (2, True)):
        parts.append(records("m", {"english/1": Seen(samples=[hit])}, seed=seed))
    view.add(pd.concat(parts))
    view.add(records("m", {"text/0": Seen(window=(-1.0, 3))}, task="text-wiki"))
    (row,) = unpacked(view.chunks[view.where["m"]["t"]["english"]])["r"]
    found = entries(row)
    assert len(found["greedy"]) == 1
    assert [hit for _, hit in found["sample"]] == [0]  # greedy was asked under seed 5
    assert list(view.where["m"]) == ["t"]
