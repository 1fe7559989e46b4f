"""`resurface bench record`: an honest run's card holds, and each way of cheating is
refused."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.record.card import Refused, Submission, card_of, division_of
from benchmarks.record.verify import _MEASURED, verify
from evaluator.checkpoints.info import inspect_checkpoint
from evaluator.core.errors import InputError
from evaluator.core.grading import grades
from evaluator.store.schema import RECORDS
from launch.commands import bench
from launch.sweep.models import BUNDLED_MODEL
from tests.support.engines import needs_vllm
from tests.support.runs import finish, resurface

pytestmark = [*needs_vllm, pytest.mark.usefixtures("one_thread")]
Rows = list[dict[str, Any]]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Two would wait for each other at every layer of so small a model."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def noisy(folder: Path, seed: int) -> Path:
    """The bundled model with noise: its samples differ, and some of its answers end
    at the limit."""
    shutil.copytree(BUNDLED_MODEL, folder)
    draw = torch.Generator().manual_seed(seed)
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        noise = torch.randn(tensor.shape, generator=draw) * tensor.float().std()
        tensors[name] = (
            tensor + (0.35 * noise).to(tensor.dtype) if tensor.ndim > 1 else tensor
        )
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One real run: DIR with the card, and beside it the model and another one."""
    place = tmp_path_factory.mktemp("record")
    noisy(place / "other", 1)
    done = finish(
        "bench",
        "record",
        "--items",
        "1",
        "--model",
        noisy(place / "model", 0),
        "--out",
        place / "dir",
    )
    assert json.loads(done.stdout.splitlines()[-1]) == json.loads(
        (place / "dir" / "card.json").read_text()
    )
    return place / "dir"


class Cheat:
    """A copy of an honest submission whose cheater recomputes everything that the
    card says."""

    def __init__(self, honest: Path, folder: Path) -> None:
        shutil.copytree(honest, folder)
        self.folder, self.model, self.run = (
            folder,
            honest.parent / "model",
            folder / "run",
        )
        self.card = json.loads((folder / "card.json").read_text())
        self.document = json.loads((self.run / "run.json").read_text())
        (self.part,) = (self.run / "records").glob("*/*/*.parquet")
        self.rows: Rows = pq.read_table(self.part).to_pylist()
        self.division = division_of("closed-first-1")
        _, self.prompter, self.plans = self.division.plans(self.model)

    def of(self, probe: str, index: int = 0) -> Rows:
        return [
            row for row in self.rows if (row["probe"], row["index"]) == (probe, index)
        ]

    def answered(self, row: dict[str, Any], ids: list[int], **columns: Any) -> None:
        item = self.plans[row["language"], row["item_id"]].question.item
        text = self.prompter.decode(ids)
        row |= {
            "token_ids": ids,
            "text": text,
            **grades(text, item.answers, item.language),
            **columns,
        }

    def refused(self) -> str:
        """Write everything with a new card; why it is refused."""
        pq.write_table(pa.Table.from_pylist(self.rows, schema=RECORDS), self.part)
        (self.run / "run.json").write_text(json.dumps(self.document))
        measured = {name: self.card[name] for name in _MEASURED}
        asked = Submission.read(self.run, self.division, self.model)
        known = [
            row
            for row in asked.rows
            if (row["probe"], row["index"])
            in asked.asked[row["language"], row["item_id"]]
        ]
        found = Submission(
            **{name: getattr(asked, name) for name in Submission.__slots__}
            | {"rows": known}
        )
        card = card_of(found, self.division, self.model, measured) | {
            "run_id": self.card["run_id"]
        }
        (self.folder / "card.json").write_text(json.dumps(card))
        with pytest.raises(Refused) as why:
            verify(self.folder, str(self.model), None, 1.0)
        return str(why.value)


def drop(cheat: Cheat, keep: Callable[[dict[str, Any]], bool]) -> None:
    cheat.rows[:] = [row for row in cheat.rows if keep(row)]


def exclude(cheat: Cheat) -> None:
    cheat.of("rank")[0] |= {"status": "excluded", "token_ids": None, "logprob": None}


def shorten(cheat: Cheat, *, end: bool) -> None:
    """Half of each long answer, as if it had ended with EOS or without it."""
    for row in cheat.rows:
        if row["probe"] in ("greedy", "sample") and len(row["token_ids"]) > 4:
            eos = [min(cheat.prompter.eos_ids)] if end else []
            cheat.answered(row, row["token_ids"][:4] + eos)


def same_beams(cheat: Cheat) -> None:
    for row, best in zip(cheat.of("beam", 4), cheat.of("beam"), strict=True):
        row |= {
            name: best[name]
            for name in (
                "token_ids",
                "text",
                "logprob",
                "contains",
                "exact_match",
                "token_f1",
            )
        }


def narrow_beams(cheat: Cheat) -> None:
    """A search for two beams, filled up with samples that are scored honestly."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(cheat.model, dtype=torch.float32)
    row = next(row for row in cheat.of("beam", 4) if row["item_id"] == "arabic-0106")
    beams = [each["token_ids"] for each in cheat.rows if each["probe"] == "beam"]
    drawn = [
        each["token_ids"]
        for each in cheat.rows
        if (each["probe"], each["item_id"]) == ("sample", row["item_id"])
    ]
    ids = next(each for each in drawn if each not in beams)
    prompt = cheat.plans[row["language"], row["item_id"]].prompts["open"].token_ids
    with torch.inference_mode():
        logprobs = (
            model(torch.tensor([[*prompt, *ids]]))
            .logits[0, len(prompt) - 1 : -1]
            .log_softmax(-1)
        )
    cheat.answered(row, ids, logprob=float(logprobs[range(len(ids)), ids].sum()))


def copy_samples(cheat: Cheat) -> None:
    for row, first in zip(cheat.of("sample", 9), cheat.of("sample"), strict=True):
        cheat.answered(row, first["token_ids"])


def half_precision(cheat: Cheat) -> None:
    for row in cheat.rows:
        if row["logprob"] is not None:
            row["logprob"] = float(torch.tensor(row["logprob"]).bfloat16())


def stale_cache(cheat: Cheat) -> None:
    """Every prompt was in the cache of another run."""
    (stats,) = cheat.document["engine_stats"]
    stats["cached_tokens"] += stats["prompt_tokens"] - stats["requests"]
    stats["prompt_tokens"] = stats["requests"]
    for row in cheat.rows:
        if row["cached_tokens"] is not None:
            row["cached_tokens"] = row["prompt_tokens"] - 1


def stale_cache_in_records(cheat: Cheat) -> None:
    """The same, with counters of the engine that look right."""
    before = dict(cheat.document["engine_stats"][0])
    stale_cache(cheat)
    cheat.document["engine_stats"][0] = before


def another_model(cheat: Cheat) -> None:
    cheat.model = cheat.model.parent / "other"
    digest = inspect_checkpoint(cheat.model).weights_digest
    cheat.document["checkpoints"][0]["weights_digest"] = digest
    for row in cheat.rows:
        row["weights_digest"] = digest


def resumed(cheat: Cheat) -> None:
    cheat.document["engine_stats"] *= 2


def renamed(cheat: Cheat) -> None:
    cheat.document["config"]["models"] = {
        "closed-first-1-20260101T000000Z-00000000": str(cheat.model)
    }


CHEATS = {
    "items that were not asked": (exclude, "rank 0: its status is 'excluded'"),
    "shortened answers": (
        lambda cheat: shorten(cheat, end=False),
        "shortened: 4 tokens without EOS",
    ),
    "shortened answers with EOS": (
        lambda cheat: shorten(cheat, end=True),
        "log-probability is|not one that its seed",
    ),
    "cut beams": (
        lambda cheat: drop(
            cheat, lambda row: (row["probe"], row["index"]) != ("beam", 4)
        ),
        "9 .* missing",
    ),
    "the same beam twice": (same_beams, "two of its beams are the same"),
    "a narrower search": (narrow_beams, "beam 4: its score is .* the slow search's"),
    "copied samples": (
        copy_samples,
        "sample 9: its token . is not one that its seed draws",
    ),
    "another dtype": (
        lambda cheat: [row.update(dtype="bfloat16") for row in cheat.rows],
        "dtype is 'bfloat16'",
    ),
    "another dtype, relabelled": (half_precision, "its log-probability is"),
    "a stale cache": (stale_cache, "computed_tokens: .* from the cache of another run"),
    "a stale cache, other counters": (
        stale_cache_in_records,
        "records that were not cached: .* of another run",
    ),
    "another model": (another_model, "recomputed|not the likeliest|status"),
    "records of another run": (
        lambda cheat: cheat.rows[0].update(checkpoint="theirs"),
        "checkpoint is 'theirs'",
    ),
    "another seed's records": (
        lambda cheat: cheat.rows[0].update(seed=1),
        "1 records are of another run: seed is 1",
    ),
    "records of another engine": (
        lambda cheat: cheat.rows[0].update(engine_version="0.1"),
        "engine_version is '0.1'",
    ),
    "records twice": (
        lambda cheat: cheat.rows.append(cheat.rows[0]),
        "1 records are too many",
    ),
    "a resumed run": (resumed, "the run was resumed"),
    "another run's folder": (renamed, "the name of the run is"),
    "other settings": (
        lambda cheat: cheat.document["config"]["tasks"][0].update(beam_width=2),
        "config.tasks is",
    ),
    "a time too short": (
        lambda cheat: cheat.card.update(wall_s=0.1),
        "wall_s is 0.1, less than",
    ),
    "better grades": (
        lambda cheat: cheat.of("greedy")[0].update(token_f1=2.0),
        "column token_f1 does not follow",
    ),
}


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_is_refused(honest, tmp_path, name):
    cheat = Cheat(honest, tmp_path / "dir")
    how, reason = CHEATS[name]
    how(cheat)
    assert re.search(reason, why := cheat.refused()), why


def test_honest_card_verifies(honest, tmp_path):
    held = verify(honest, None, None, 1.0)
    assert held.startswith("division closed-first-1, 9 items, 198 records, of which 19")
    card = json.loads((honest / "card.json").read_text())
    assert 0 < card["fewest_tokens"] <= card["computed_tokens"]
    assert sum(card["split"].values()) == pytest.approx(card["wall_s"], rel=1e-3)
    done = finish("bench", "record", "--verify", honest, "--seed", "1")
    assert re.fullmatch(
        r"the card holds: division closed-first-1, .*\(seed 1\)\n", done.stdout
    )
    shutil.copytree(honest, tmp_path / "dir")
    (tmp_path / "dir" / "card.json").write_text(
        json.dumps(card | {"items_per_second": 1e6})
    )
    done = finish("bench", "record", "--verify", tmp_path / "dir", code=4)
    assert "items_per_second is 1000000.0, but the submission gives" in done.stderr
    # fewer items never pass as the whole division, and another model not as this one
    (tmp_path / "dir" / "card.json").write_text(
        json.dumps(card | {"division": "closed"})
    )
    with pytest.raises(Refused, match="division_digest"):
        verify(tmp_path / "dir", None, None, 1.0)
    with pytest.raises(Refused, match="weights_digest"):
        verify(honest, str(honest.parent / "other"), None, 1.0)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"peaks": None}, "field 'peaks' must be an object"),
        ({"wall_s": "1"}, "field 'wall_s' is '1', not a number above 0"),
        ({"division": "open"}, "unknown division 'open'"),
        ({"began": "yesterday"}, "not a whole submission: ValueError: .*yesterday"),
        (None, "not JSON"),
        ("run.json", "not a whole submission: KeyError"),
    ],
)
def test_unreadable_card_is_bad_input(honest, tmp_path, change, named):
    shutil.copytree(honest, tmp_path / "dir")
    card = tmp_path / "dir" / "card.json"
    if change == "run.json":
        document = json.loads(
            (run := tmp_path / "dir" / "run" / "run.json").read_text()
        )
        del document["engine_stats"][0]["busy_seconds"]
        run.write_text(json.dumps(document))
    else:
        card.write_text(
            "{" if change is None else json.dumps(json.loads(card.read_text()) | change)
        )
    with pytest.raises(InputError, match=named):
        verify(tmp_path / "dir", None, None, 1.0)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--verify", "nowhere"], "nowhere/card.json: no such file"),
        ([], "give one of --out DIR"),
        (
            ["--out", "new", "--engine-args", '{"dtype": "bfloat16"}'],
            "dtype: the division fixes it (float32)",
        ),
        (["--out", "new", "--model", "nowhere"], "nowhere"),
        (["--verify", "nowhere", "--share", "2"], "--share: 2.0 is no share"),
    ],
)
def test_senseless_call_is_refused(tmp_path, arguments, named):
    done = resurface("bench", "record", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert named in done.stderr
    assert not (tmp_path / "new").exists()


def test_all_runs_benchmarks_without_options(monkeypatch):
    ran: list[str] = []
    monkeypatch.setattr(
        bench.subprocess,
        "run",
        lambda command, **_: ran.append(command[3]) or Mock(returncode=0),
    )
    bench.bench(Mock(args=[]), bench.ALL)
    assert "benchmarks.record.run" not in ran
    assert len(ran) == len(list(bench.BENCHMARKS)) - 1
