"""`resurface bench record`: an honest run's card holds, and each way of cheating is
refused."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.record.card import MEASURED, card_of, read_rows
from benchmarks.record.division import division_of
from benchmarks.record.verify import Refused, verify
from evaluator.checkpoints.info import inspect_checkpoint
from evaluator.core.errors import InputError
from evaluator.store.schema import RECORDS
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
        self.folder, self.run = folder, folder / "run"
        self.model = honest.parent / "model"
        self.card = json.loads((folder / "card.json").read_text())
        self.document = json.loads((self.run / "run.json").read_text())
        (self.part,) = (self.run / "records").glob("*/*/*.parquet")
        self.rows: Rows = pq.read_table(self.part).to_pylist()

    def of(self, probe: str, index: int = 0) -> Rows:
        return [
            row for row in self.rows if (row["probe"], row["index"]) == (probe, index)
        ]

    def refused(self) -> str:
        """Write everything with a new card; why it is refused."""
        pq.write_table(pa.Table.from_pylist(self.rows, schema=RECORDS), self.part)
        (self.run / "run.json").write_text(json.dumps(self.document))
        measured = {name: self.card[name] for name in MEASURED}
        division, rows = division_of("closed-first-1"), read_rows(self.run)
        card = card_of(self.document, rows, division, measured)
        card["run_id"] = self.card["run_id"]
        (self.folder / "card.json").write_text(json.dumps(card))
        with pytest.raises(Refused) as why:
            verify(self.folder, str(self.model), None, 1.0)
        return str(why.value)


def drop(cheat: Cheat, keep: Callable[[dict[str, Any]], bool]) -> None:
    cheat.rows[:] = [row for row in cheat.rows if keep(row)]


def shorten(cheat: Cheat) -> None:
    for row in cheat.of("greedy"):
        row["token_ids"] = row["token_ids"][:2]


def other_greedy(cheat: Cheat) -> None:
    """A beam that is scored honestly, in place of the greedy answer."""
    for row, beam in zip(cheat.of("greedy"), cheat.of("beam", 4), strict=True):
        row |= {"token_ids": beam["token_ids"], "logprob": beam["logprob"]}


def half_precision(cheat: Cheat) -> None:
    for row in cheat.rows:
        if row["logprob"] is not None:
            row["logprob"] = float(torch.tensor(row["logprob"]).bfloat16())


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
    "shortened answers": (shorten, "its log-probability is"),
    "other answers": (other_greedy, "one of its tokens is not the likeliest"),
    "cut beams": (
        lambda cheat: drop(
            cheat, lambda row: (row["probe"], row["index"]) != ("beam", 4)
        ),
        "a record is missing: .*/beam/4",
    ),
    "another dtype, relabelled": (half_precision, "its log-probability is"),
    "another model": (another_model, "recomputed|not the likeliest"),
    "another seed's records": (lambda cheat: cheat.rows[0].update(seed=1), "seed is 1"),
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
}


@pytest.mark.parametrize("name", CHEATS)
def test_cheat_is_refused(honest, tmp_path, name):
    cheat = Cheat(honest, tmp_path / "dir")
    how, reason = CHEATS[name]
    how(cheat)
    assert re.search(reason, why := cheat.refused()), why


def test_honest_card_holds(honest, tmp_path):
    held = verify(honest, None, None, 1.0)
    assert held.startswith("division closed-first-1, 9 items, 198 records, of which ")
    card = json.loads((honest / "card.json").read_text())
    assert card["computed_tokens"] > 0
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
    with pytest.raises(Refused, match=r"config\.tasks"):
        verify(tmp_path / "dir", None, None, 1.0)
    with pytest.raises(Refused, match="weights_digest"):
        verify(honest, str(honest.parent / "other"), None, 1.0)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"wall_s": "1"}, "not a whole submission: TypeError"),
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
        (["--verify", "nowhere"], "nowhere/card.json: cannot be read"),
        ([], "give one of --out DIR"),
        (
            ["--out", "new", "--engine-args", '{"dtype": "bfloat16"}'],
            "dtype: the division fixes it (float32)",
        ),
    ],
)
def test_senseless_call_is_refused(tmp_path, arguments, named):
    done = resurface("bench", "record", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert named in done.stderr
    assert not (tmp_path / "new").exists()
