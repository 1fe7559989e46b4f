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

from benchmarks.record.card import MEASURED, STATED, card_of, read_round
from benchmarks.record.division import Draw, division_of
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
        "--items=1",
        "--rounds=1",
        "--only-rounds",
        "--nonce=one",
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
        self.folder, self.run = folder, folder / "round-1"
        self.model, self.nonce = honest.parent / "model", "one"
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
        measured = {name: self.card["rounds"][0][name] for name in MEASURED}
        stated = {name: self.card[name] for name in STATED}
        draw = Draw(division=division_of("closed"), nonce=self.nonce, items=1)
        card = card_of(draw, [read_round(self.run, measured)], None, stated)
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


def other_nonce(cheat: Cheat) -> None:
    cheat.nonce = "two"


def computed_before(cheat: Cheat) -> None:
    document = {"nonce": "one", "drawn": "2999-01-01T00:00:00+00:00"}
    (cheat.folder / "nonce.json").write_text(json.dumps(document))


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
    "another nonce's record": (other_nonce, "other questions than the nonce draws"),
    "computed in advance": (computed_before, "before its nonce was drawn"),
    "a resumed run": (resumed, "the run was resumed"),
    "other settings": (
        lambda cheat: cheat.document["config"]["tasks"][0].update(beam_width=2),
        "config.tasks is",
    ),
    "a time too short": (
        lambda cheat: cheat.card["rounds"][0].update(wall_s=0.1),
        "wall_s is 0.1, less than",
    ),
    "a steady part too short": (
        lambda cheat: cheat.card["rounds"][0].update(steady_s=0.01),
        "steady_s is 0.01, less than",
    ),
    "a cache in the row without": (
        lambda cheat: cheat.document["config"]["engine"].update(prefix_caching=False),
        "prefix_caching is False",
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
    assert held.startswith("division closed, 1 rounds of 9 items, the submitter's own")
    assert held.endswith("; too short to compare it with others")
    card = json.loads((honest / "card.json").read_text())
    (described,) = card["rounds"]
    assert described["computed_tokens"] > 0
    counts = described["records"]
    assert counts["failed"] == 0
    assert counts["completed"] + counts["excluded"] == 198
    assert described["start_s"] + described["steady_s"] <= described["wall_s"]
    assert 0 <= card["quality"]["choice"] <= 1
    assert "v1/one_step.py" in card["patches"]["files"]
    done = finish("bench", "record", "--verify", honest, "--seed", "1")
    assert re.fullmatch(
        r"the card holds: division closed, .*\(seed 1\).*\n", done.stdout
    )
    shutil.copytree(honest, tmp_path / "dir")
    card["rounds"][0]["items_per_second"] = 1e6
    (tmp_path / "dir" / "card.json").write_text(json.dumps(card))
    done = finish("bench", "record", "--verify", tmp_path / "dir", code=4)
    assert "rounds is " in done.stderr
    with pytest.raises(Refused, match="weights_digest"):
        verify(honest, str(honest.parent / "other"), None, 1.0)


@pytest.mark.long
def test_rows_beside_the_rounds(tmp_path):
    """The verifier's nonce, and the rows without prefix caching and patches."""
    folder = tmp_path / "dir"
    done = finish("bench", "record", "--verify", folder)
    nonce = json.loads((folder / "nonce.json").read_text())["nonce"]
    assert f"--nonce {nonce} --out DIR" in done.stdout
    finish("bench", "record", "--out", folder, "--items=2", "--rounds=1")
    card = json.loads((folder / "card.json").read_text())
    assert card["nonce"] == nonce
    assert card["without_sharing"]["items"] == 9
    prompts = card["without_sharing"]["computed_tokens"] * 2
    assert prompts > card["rounds"][0]["computed_tokens"] * 1.5
    assert card["without_patches"]["items"] == 18
    assert card["without_patches"]["items_per_second"] > 0
    assert "the verifier's nonce" in verify(folder, None, None, 1.0)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"rounds": [{}]}, "not a whole submission: KeyError"),
        ("run.json", "not a whole submission: KeyError"),
    ],
)
def test_unreadable_card_is_bad_input(honest, tmp_path, change, named):
    shutil.copytree(honest, tmp_path / "dir")
    card = tmp_path / "dir" / "card.json"
    if change == "run.json":
        document = json.loads(
            (run := tmp_path / "dir" / "round-1" / "run.json").read_text()
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
        (["--out", "new", "--share", "2"], "--share: 2.0 is no share"),
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
