"""A run with a served model, from the command line to the records, with Ray."""

import itertools
import json
import signal
import threading

import pytest

from tests.support.fake import FakeLM
from tests.support.kills import when
from tests.support.runs import assert_alike, finish, folder_of, records, start
from tests.support.served import EndingLM, FakeServer

pytestmark = [pytest.mark.slow, pytest.mark.more]

SWEEP = """
models:
  bundled: bundled
  api: {{url: "{url}", key_env: SECRET_OF_TEST{limit}}}
tasks:
  - {{task: gazetteer, languages: [english], items: 4, probes: [greedy, choice]}}
engine: {{kind: torch}}
"""
KEY = "sesame-open-9000"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SECRET_OF_TEST", KEY)


def sweep_file(tmp_path, url, limit=""):
    file = tmp_path / "sweep.yaml"
    file.write_text(SWEEP.format(url=url, limit=limit))
    return file


def test_limits_and_other_models(tmp_path):
    """A limit ends the work, a higher one goes on; another model is asked again."""
    server, out = FakeServer("vllm"), tmp_path / "run"
    with server.serving() as url:
        file = sweep_file(tmp_path, url, ", max_requests: 30")
        done = finish("sweep", file, "--out", out, code=3)
        assert "max_requests: 30" in done.stderr + done.stdout
        assert {*records(out)["checkpoint"]} == {"bundled"}

        file = sweep_file(tmp_path, url)
        done = finish("sweep", file, "--out", out)
        assert "Noise, the largest: api~order 0.000 nats" in done.stdout
        server.lm = EndingLM(seed=5)
        done = finish("sweep", file, "--out", out)
        assert "bundled gazetteer: 4 items already done" in done.stdout
        assert "evaluated again; the earlier records stay" in done.stdout
    found = records(out)
    api = found[found["checkpoint"] == "api"]
    assert {*api["status"]} == {"ok"}
    assert {*api["base"]} == {"bundled"}
    assert {*api["engine"]} == {"endpoint"}
    assert (api["probe"] == "choice").sum() == 16
    run = json.loads((out / "run.json").read_text())
    assert run["engines"][0]["abilities"]["scores"]
    for path in [*out.rglob("*"), *(tmp_path / "cache").rglob("*")]:
        assert path.is_dir() or KEY.encode() not in path.read_bytes(), path


def test_unusable_scores_are_excluded(tmp_path):
    server, out = FakeServer("llama", FakeLM(vocabulary=3072)), tmp_path / "run"
    server.ignored = frozenset({"logit_bias"})
    with server.serving() as url:
        finish("sweep", sweep_file(tmp_path, url), "--out", out)
    found = records(out)
    api = found[found["checkpoint"] == "api"]
    assert {*api[api["probe"] == "greedy"]["status"]} == {"ok"}
    scored = api[api["probe"] != "greedy"]
    assert {*scored["status"]} == {"excluded"}
    assert scored["logprob"].isna().all()
    assert scored["text"].str.contains("not possible with this server").all()


class Fate:
    """What befalls a server: it dies at some questions of items, and stalls at a later
    one. Its examination has short prompts."""

    def __init__(self, server):
        self.server, self.number = server, itertools.count()
        self.released = threading.Event()

    def __call__(self, handler):
        # the last one of `asked` may be another request's
        _, body, _ = self.server.asked[-1]
        if len(body.get("prompt", ())) < 40:
            return False
        number = next(self.number)
        if 6 <= number < 9:
            raise ConnectionError
        if number >= 24:
            self.released.wait()
        return False


@pytest.mark.long
def test_kills_change_no_record(tmp_path):
    """The server dies for a moment, and the driver for good."""
    server, log = FakeServer("vllm"), tmp_path / "log"
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    with server.serving() as url:
        file = sweep_file(tmp_path, url, ", concurrency: 2")
        with file.open("a") as sweep:
            sweep.write("resources: {shard_items: 1}\n")
        finish("sweep", file, "--out", whole)
        fate = Fate(server)
        server.before = fate
        driver = start("sweep", file, "--out", killed, log=log)
        when(driver, lambda: [*folder_of(killed, "api").glob("*.parquet")], log)
        driver.kill()
        assert driver.wait() == -signal.SIGKILL
        kept = {part: part.read_bytes() for part in folder_of(killed, "api").glob("*")}
        fate.released.set()
        finish("sweep", file, "--out", killed)
    assert {part: part.read_bytes() for part in kept} == kept
    found, expected = records(killed), records(whole)
    assert_alike(found, expected)
    assert {*found["status"]} == {"ok"}
    assert len(kept) < (found["checkpoint"] == "api").sum()
