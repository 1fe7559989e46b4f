"""What fails costs what failed, is named with its reason, and is done by the same
command once it has been mended."""

import contextlib
import json
import os
import shutil
import time

import pandas as pd
import psutil
import pytest
import yaml

from evaluator.checkpoints.info import inspect_checkpoint
from tests.support.kills import ENGINE, family, gone, when
from tests.support.models import collapse, save_tiny_model
from tests.support.runs import assert_alike, finish, folder_of, records, start

pytestmark = pytest.mark.slow

PROBES = ["greedy", "rank"]
ITEMS = 4
KILLER = '''
"""An item of which the engine dies, whoever asks it."""

import os
import signal

from evaluator.engine.torch_engine import TorchEngine
from evaluator.probes.stream import Evaluation

deadly = set()
step, run = Evaluation._step, TorchEngine.run


def noted(self, probe, responses=()):
    requests = step(self, probe, responses)
    if probe.item.item.item_id == os.environ["DEADLY"]:
        deadly.update(request.prompt_ids for request in requests)
    return requests


class Watched:
    def __init__(self, source):
        self.source = source

    def take(self, limit):
        taken = self.source.take(limit)
        if any(getattr(request, "prompt_ids", None) in deadly for request in taken):
            os.kill(os.getpid(), signal.SIGKILL)
        return taken


Evaluation._step = noted
TorchEngine.run = lambda self, source: run(self, Watched(source))
'''


def _sweep(directory, models, *, kind="torch", items=ITEMS, sections=None, **resources):
    """A sweep file; `sections`: more of it, or in place of what is here."""
    file = directory / "questions.jsonl"
    rows = [
        {"id": f"q{n}", "language": "english", "context": f"Lake {n} is deep.", "question": f"Is {n}?",
         "answers": ["x"]}
        for n in range(items)
    ]  # fmt: skip
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    document = {
        "models": {name: str(directory / name) for name in models},
        "tasks": [
            {"task": f"jsonl:{file}", "name": "lakes", "items": 0, "probes": PROBES}
        ],
        "engine": {"kind": kind},
        "resources": {"shard_items": 2, "attempts": 2, **resources},
        **(sections or {}),
    }
    file = directory / f"{'-'.join(models)}.yaml"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    return file


def _state(run):
    return json.loads((run / "run.json").read_text())["state"]


def _failures(run):
    return pd.read_csv(
        run / "tables" / "failures.csv", keep_default_na=False, dtype={"engine": str}
    )


@pytest.mark.more
def test_bad_checkpoints_wait_for_their_mending(tmp_path):
    """They are set aside, and evaluated by the next call once they are mended."""
    for seed, name in enumerate(("good", "broken", "nan")):
        save_tiny_model(tmp_path / name, seed=seed)
    config = tmp_path / "broken" / "config.json"
    sound = json.loads(config.read_text())
    # as many rows, other heads
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 64}
    config.write_text(json.dumps(sound | heads))
    collapse(tmp_path / "nan", 3e38)

    sweep, run = (
        _sweep(tmp_path, ["good", "broken", "nan"], kind="vllm"),
        tmp_path / "run",
    )
    done = finish("sweep", sweep, "--out", run, code=3)
    assert done.stderr.startswith("not done: 2 checkpoints, wholly or in part: ")
    assert done.stderr.endswith("the same command repeats only these\n")
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stdout
    assert _state(run) == "finished_with_failures"
    found = _failures(run).set_index("checkpoint")
    assert set(found.index) == {"broken", "nan"}
    assert found["stage"].to_dict() == {"broken": "load", "nan": "evaluate"}
    assert found["attempts"]["broken"] == 1
    assert (
        "self_attn.k_norm.weight' of shape [64], but the files have [32]"
        in found["reason"]["broken"]
    )
    assert "NaN" in found["reason"]["nan"]
    page = (run / "report" / "index.html").read_text(encoding="utf-8")
    assert "NaN" in page.split('<section id="failures">')[1].split("</section>")[0]
    assert "broken" not in set(records(run)["checkpoint"])

    good = {path: path.stat().st_mtime_ns for path in folder_of(run, "good").glob("*")}
    config.write_text(json.dumps(sound))
    # what `good` is, which was asked among failures
    save_tiny_model(tmp_path / "nan", seed=0)
    finish("sweep", sweep, "--out", run)
    assert _state(run) == "finished"
    assert not (run / "tables" / "failures.csv").exists()
    everything = records(run)
    assert set(everything["checkpoint"]) == {"good", "broken", "nan"}
    assert set(everything["status"]) == {"ok"}
    assert everything.groupby("checkpoint").size().nunique() == 1
    assert {path: path.stat().st_mtime_ns for path in good} == good
    among, alone = (
        everything[everything["checkpoint"] == name].drop(columns="checkpoint")
        for name in ("good", "nan")
    )
    assert_alike(among, alone)


@pytest.mark.long
def test_damaged_checkpoint_costs_only_itself(tmp_path):
    """It and what would be made of it are set aside. So is what is found damaged
    when the run goes on."""
    files = {"cut": "model.safetensors", "mute": "tokenizer.json"}
    for seed, name in enumerate(("good", *files)):
        save_tiny_model(tmp_path / name, seed=seed)
    whole = {
        name: (tmp_path / name / file).read_bytes() for name, file in files.items()
    }

    def write(**contents):
        for name, content in contents.items():
            (tmp_path / name / files[name]).write_bytes(content)

    def reasons(code):
        finish("sweep", sweep, "--out", run, code=code)
        return (
            _failures(run).set_index("checkpoint")["reason"].to_dict() if code else {}
        )

    pruned = {"prune": [{"method": "magnitude", "sparsity": 0.5}]}
    sweep, run = _sweep(tmp_path, ["good", *files], sections=pruned), tmp_path / "run"
    write(cut=whole["cut"][:-99], mute=b"{")
    found = reasons(3)
    stages = {
        "cut": "load",
        "cut-magnitude-0.5": "prune",
        "mute": "load",
        "mute-magnitude-0.5": "prune",
    }
    assert _failures(run).set_index("checkpoint")["stage"].to_dict() == stages
    assert "model.safetensors: truncated" in found["cut"]
    assert found["cut-magnitude-0.5"] == "cut, its source, cannot be used"
    assert set(records(run)["checkpoint"]) == {"good", "good-magnitude-0.5"}

    write(mute=whole["mute"])
    assert set(reasons(3)) == {"cut", "cut-magnitude-0.5"}
    expected = records(run)

    # The other one is mended. Of what is finished, one is damaged, one has lost its
    # records, one its weights.
    made = run / "checkpoints" / "good-magnitude-0.5"
    write(mute=b"{", cut=whole["cut"])
    os.truncate(made / "model.safetensors", 99)
    shutil.rmtree(folder_of(run, "good"))
    found = reasons(3)
    assert set(found) == {"mute", "mute-magnitude-0.5", "good-magnitude-0.5"}
    assert found["good-magnitude-0.5"].endswith(
        f"remove {made}, and the same command makes it again"
    )

    write(mute=whole["mute"])
    shutil.rmtree(made)
    assert reasons(0) == {}
    everything = records(run)
    assert everything.groupby("checkpoint").size().to_dict() == dict.fromkeys(
        [name + end for name in ("good", *files) for end in ("", "-magnitude-0.5")],
        len(expected) // 4,
    )
    keys = ["checkpoint", "item_id", "probe", "index"]
    before = everything[
        everything["checkpoint"].isin(expected["checkpoint"])
    ].sort_values(keys)
    assert_alike(before, expected.sort_values(keys))


def test_unusable_base_refuses_the_sweep(tmp_path):
    """Nothing can be compared without it. A sweep with no other checkpoint has
    nothing to do."""
    for name in ("good", "cut"):
        save_tiny_model(tmp_path / name)
    (tmp_path / "cut" / "model.safetensors").write_bytes(b"")
    given = {
        "compress": [
            {"checkpoint": str(tmp_path / "good"), "base": "cut", "label": "given"}
        ]
    }
    for sections, models in ((given, ["good", "cut"]), (None, ["cut"])):
        sweep = _sweep(tmp_path, models, kind="vllm", sections=sections)
        refused = finish("sweep", sweep, "--out", tmp_path / "refused", code=2)
        assert refused.stderr.count("\n") == 1
        assert "cut" in refused.stderr
        assert not (tmp_path / "refused").exists()


@pytest.mark.more
def test_checkpoint_replaced_during_the_run(tmp_path):
    """One by another's weights, one cut off in the middle, one by a copy of itself,
    before they are loaded."""
    for seed, name in enumerate(("first", "other", "cut", "copied", "replacement")):
        save_tiny_model(tmp_path / name, seed=seed)
    weights = {
        name: tmp_path / name / "model.safetensors"
        for name in ("other", "cut", "copied", "replacement")
    }
    whole = weights["cut"].read_bytes()
    sweep, run = _sweep(tmp_path, ["first", "other", "cut", "copied"]), tmp_path / "run"
    log = tmp_path / "log"
    driver = start("sweep", sweep, "--out", run, log=log)
    when(driver, lambda: family(driver, ENGINE), log)
    shutil.copy(weights["replacement"], weights["other"])
    weights["cut"].write_bytes(whole[: len(whole) // 2])
    weights["copied"].write_bytes(weights["copied"].read_bytes())
    assert driver.wait() == 3, log.read_text()
    found = _failures(run).set_index("checkpoint")
    assert (set(found.index), set(found["stage"])) == ({"other", "cut"}, {"load"})
    assert "was replaced while the run went on" in found["reason"]["other"]
    assert str(weights["cut"]) in found["reason"]["cut"]
    assert set(records(run)["checkpoint"]) == {"first", "copied"}

    weights["cut"].write_bytes(whole)
    finish("sweep", sweep, "--out", run)
    digests = records(run).groupby("checkpoint")["weights_digest"].agg(set).to_dict()
    assert digests == {
        name: {inspect_checkpoint(tmp_path / name).weights_digest}
        for name in ("first", "other", "cut", "copied")
    }
    assert digests["other"] == {
        inspect_checkpoint(tmp_path / "replacement").weights_digest
    }


@pytest.mark.long
def test_item_that_kills_its_engine(tmp_path, monkeypatch):
    save_tiny_model(tmp_path / "model")
    sweep, run = _sweep(tmp_path, ["model"]), tmp_path / "run"
    (tmp_path / "killer.py").write_text(KILLER, encoding="utf-8")
    with monkeypatch.context() as patched:
        patched.setenv(
            "PYTHONPATH",
            os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
        )
        patched.setenv("RESURFACE_PLUGINS", "killer")
        patched.setenv("DEADLY", "q3")
        finish("sweep", sweep, "--out", run, code=3)
    (failure,) = _failures(run).to_dict("records")
    assert (failure["checkpoint"], failure["stage"], failure["task"]) == (
        "model",
        "item",
        "lakes",
    )
    assert (failure["language"], failure["item"]) == ("english", "q3")
    assert (
        failure["reason"]
        == "its process ended without a word: it was killed, or out of memory, or Ray's disk is full"
    )
    first = records(run)
    lost = first[first["item_id"] == "q3"]
    assert (set(lost["status"]), set(lost["text"])) == (
        {"engine_error"},
        {failure["reason"]},
    )
    assert set(lost["probe"]) == set(PROBES)
    assert set(first[first["item_id"] != "q3"]["status"]) == {"ok"}

    finish("sweep", sweep, "--out", run)  # with an engine that survives it
    again = records(run)
    assert (len(again), set(again["status"])) == (ITEMS * len(PROBES), {"ok"})
    kept = again["item_id"] != "q3"
    assert_alike(again[kept], first[first["item_id"] != "q3"])


@pytest.mark.long
def test_hanging_and_failing_prune_jobs(tmp_path):
    """A job that hangs is repeated; one that cannot succeed is set aside."""
    save_tiny_model(tmp_path / "model")
    texts, calibration = (
        tmp_path / "texts.txt",
        "\n".join(f"The town of Karo lies on river {n}." for n in range(8)),
    )
    texts.write_text(calibration, encoding="utf-8")
    pruned = {
        "prune": [
            {"method": "magnitude", "sparsity": 0.5},
            {"method": "wanda", "sparsity": 0.5},
        ],
        "calibration": {"source": f"text:{texts}", "samples": 8, "sequence_length": 16},
    }
    sweep = _sweep(tmp_path, ["model"], sections=pruned, attempts=3, load_seconds=20)
    run, log = tmp_path / "run", tmp_path / "log"
    driver = start("sweep", sweep, "--out", run, log=log)
    # until then it looks whether everything is there
    when(driver, lambda: list(run.glob("run.json")), log)
    texts.unlink()
    pid = 0
    while not pid:
        assert driver.poll() is None, log.read_text()
        # not there, or just being written
        with contextlib.suppress(OSError, ValueError):
            pid = json.loads((run / "logs" / "prune-magnitude-0.5.pulse").read_text())[
                "where"
            ]["pid"]
        time.sleep(0.01)
    hung = psutil.Process(pid)
    hung.suspend()
    assert driver.wait() == 3, log.read_text()
    assert "magnitude-0.5 could not be made (no sign of progress for" in log.read_text()
    assert gone([hung])
    assert _state(run) == "finished_with_failures"
    (failure,) = _failures(run).to_dict("records")
    assert (failure["checkpoint"], failure["stage"], failure["attempts"]) == (
        "wanda-0.5",
        "prune",
        1,
    )
    assert str(texts) in failure["reason"]
    first = records(run)
    assert (set(first["checkpoint"]), set(first["status"])) == (
        {"model", "magnitude-0.5"},
        {"ok"},
    )

    texts.write_text(calibration, encoding="utf-8")
    finish("sweep", sweep, "--out", run)
    assert (_state(run), (run / "tables" / "failures.csv").exists()) == (
        "finished",
        False,
    )
    everything = records(run)
    assert set(everything["status"]) == {"ok"}
    assert everything.groupby("checkpoint").size().to_dict() == {
        name: ITEMS * len(PROBES) for name in ("model", "magnitude-0.5", "wanda-0.5")
    }
    pd.testing.assert_frame_equal(
        everything[everything["checkpoint"] != "wanda-0.5"].reset_index(drop=True),
        first,
    )
    assert not list((run / "logs").glob("*.pulse"))
