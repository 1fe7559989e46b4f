"""Every mistake that a user can mend: exit code 2, one line that names it, nothing left behind, no engine started."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import yaml

from evaluator.engine.vllm import start
from launch.commands import cli, running
from launch.run.directory.lock import RunLock
from launch.sweep import preflight
from tests.support.models import save_tiny_model
from tests.support.runs import resurface, resurface_apart
from tests.support.synthetic import write_run

ITEM = {"id": "a-1", "language": "english", "context": "Karo lies on the Belu.", "question": "Where?", "answers": ["x"]}
ITEMS = [ITEM | {"id": f"a-{number}", "answers": [f"answer {number}"]} for number in range(6)]


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "dense")


@dataclass
class Desk:
    """A user's working directory, with a model, an item file and a command line in it."""

    directory: Path
    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch

    @property
    def model(self) -> Path:
        return self.directory / "dense"

    def configure(self, **changes: Any) -> None:
        """Change fields of the model's config.json."""
        file = self.model / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    def items(self, *lines: Any) -> Path:
        file = self.directory / "questions.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in (lines or ITEMS)), encoding="utf-8")
        return file

    def sweep(self, **changes: Any) -> Path:
        document: dict[str, Any] = {
            "models": {"dense": str(self.model)},
            "tasks": [{"task": f"jsonl:{self.items()}", "items": 2, "probes": ["greedy"]}],
        }
        file = self.directory / "sweep.yaml"
        file.write_text(yaml.safe_dump(document | changes), encoding="utf-8")
        return file

    def type(self, *arguments: str | Path) -> tuple[int, str]:
        """Exit code and standard error of one command."""
        self.monkeypatch.setattr(sys, "argv", ["resurface", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        written = self.capsys.readouterr()
        assert "Traceback" not in written.out + written.err
        return int(ended.value.code or 0), written.err

    def refused(self, *arguments: str | Path) -> str:
        """The one line that refuses a command, which has left nothing behind."""
        before = sorted(self.directory.rglob("*"))
        code, error = self.type(*arguments)
        assert code == 2, error
        assert error.count("\n") == 1, error
        assert error.startswith("error: ")
        assert sorted(self.directory.rglob("*")) == before
        return error

    def eval(self, *more: str | Path, model: Path | None = None, task: str | None = None) -> tuple[str | Path, ...]:
        task = task or f"jsonl:{self.items()}"
        return ("eval", model or self.model, "--task", task, "--items", "2", *more, "--out", self.directory / "run")


@pytest.fixture
def desk(tmp_path: Path, dense: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Desk:
    shutil.copytree(dense, tmp_path / "dense")
    monkeypatch.chdir(tmp_path)

    def no_ray(*_: Any, **__: Any) -> None:
        raise AssertionError("Ray was started")

    monkeypatch.setattr(ray, "init", no_ray)
    return Desk(tmp_path, capsys, monkeypatch)


# ---- checkpoints ------------------------------------------------------------------------------------------------


def _truncate(model: Path) -> None:
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def _poison(model: Path) -> None:
    """One NaN in the middle of the second tensor."""
    file = model / "model.safetensors"
    content = bytearray(file.read_bytes())
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    name = sorted(set(header) - {"__metadata__"})[1]
    assert header[name]["dtype"] == "F32"
    start = 8 + length + header[name]["data_offsets"][0]
    content[start : start + 4] = np.float32("nan").tobytes()
    file.write_bytes(content)


def _half_written(model: Path) -> None:
    (model / "model.safetensors").rename(model / "model.safetensors.partial")


CHECKPOINTS: list[tuple[Callable[[Path], None], list[str]]] = [
    (shutil.rmtree, ["dense", "no such directory"]),
    (_truncate, ["model.safetensors"]),
    (_poison, ["model.safetensors", "tensor", "NaN"]),
    (_half_written, ["dense", "half-written"]),
    (lambda model: (model / "model.safetensors").unlink(), ["dense", "no *.safetensors"]),
    (lambda model: (model / "model.safetensors").write_bytes(b""), ["model.safetensors"]),
    (lambda model: (model / "config.json").unlink(), ["config.json", "missing"]),
    (lambda model: (model / "config.json").write_text("{"), ["config.json", "not JSON"]),
    (lambda model: (model / "config.json").write_text("[]"), ["config.json", "object"]),
    (lambda model: (model / "config.json").write_bytes(b"\xff\xfe"), ["config.json", "UTF-8"]),
    (lambda model: (model / "config.json").write_text('{"model_type": "frobnicate"}'), ["config.json", "frobnicate"]),
    (lambda model: (model / "tokenizer.json").unlink(), ["dense", "tokenizer"]),
    (lambda model: (model / "tokenizer.json").write_text("{"), ["dense", "tokenizer"]),
]


@pytest.mark.parametrize(("damage", "named"), CHECKPOINTS)
def test_damaged_checkpoints_are_refused(desk: Desk, damage: Callable[[Path], None], named: list[str]) -> None:
    damage(desk.model)
    error = desk.refused(*desk.eval())
    assert all(part in error for part in named), error


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden_size": 96}, ["'hidden_size' is 96", "'model.embed_tokens.weight'"]),
        ({"num_hidden_layers": 9}, ["'num_hidden_layers' is 9", "layers"]),
        ({"head_dim": 24}, ["head_dim", "q_proj"]),
    ],
)
def test_sizes_that_are_not_the_weights_are_refused(desk: Desk, changes: dict[str, Any], named: list[str]) -> None:
    desk.configure(**changes)
    error = desk.refused(*desk.eval())
    assert all(part in error for part in ["config.json", *named]), error


def test_an_unknown_architecture_is_one_line_of_ours_alone(desk: Desk) -> None:
    """In a process of its own, where transformers would warn of it too."""
    desk.configure(model_type="frobnicate")
    done = resurface_apart(*desk.eval())
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr


def test_a_damaged_checkpoint_is_refused_before_it_is_pruned(desk: Desk) -> None:
    _truncate(desk.model)
    sweep = desk.sweep(prune=[{"method": "magnitude", "sparsity": 0.5}])
    assert "model.safetensors" in desk.refused("sweep", sweep, "--out", desk.directory / "run")
    command = ("prune", desk.model, "--method", "magnitude", "--sparsity", "0.5", "--out", desk.directory / "sparse")
    assert "model.safetensors" in desk.refused(*command)


def test_two_checkpoints_of_one_name_are_refused(desk: Desk) -> None:
    other = desk.directory / "elsewhere" / "dense"
    shutil.copytree(desk.model, other)
    assert "would have the same name 'dense'" in desk.refused(*desk.eval(other))


# ---- options ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--probes", "gredy"], ["probe", "'gredy'", "did you mean 'greedy'?"]),
        (["--formats", "opne"], ["format", "'opne'", "did you mean 'open'?"]),
        (["--formats", "open,open"], ["formats", "open"]),
        (["--formats", ""], ["formats"]),
        (["--probes", ","], ["probes"]),
        (["--languages", "englsh"], ["language", "'englsh'", "did you mean 'english'?"]),
        (["--languages", ""], ["--languages", "''"]),
        (["--languages", " , "], ["--languages"]),
        (["--engine", "vlm"], ["--engine", "'vlm'", "did you mean 'vllm'?"]),
        (["--dtype", "float23"], ["--dtype", "'float23'", "did you mean 'float32'?"]),
        (["--options", "foo"], ["--options", '"foo"', "'any' or 'alike'"]),
        (["--items", "-1"], ["items", "-1"]),
        (["--items", "many"], ["--items", "integer"]),
        (["--seed", "-3"], ["seed", "-3"]),
        (["--shard-items", "0"], ["--shard-items: 0", "greater than or equal to 1"]),
        (["--engines", "0"], ["engines", "0"]),
        (["--engines", "4000000"], ["engines: 4000000", "less than or equal to 1000"]),
        (["--base", "nowhere"], ["nowhere", "no such directory"]),
        (["--itmes", "3"], ["--itmes", "--items"]),
    ],
)
def test_options_of_eval(desk: Desk, options: list[str], named: list[str]) -> None:
    error = desk.refused(*desk.eval(*options))
    assert all(part in error for part in named), error


@pytest.mark.parametrize(
    ("task", "named"),
    [
        ("gazeteer", ["'gazeteer'", "did you mean 'gazetteer'?"]),
        ("gazetteer:somewhere", ["gazetteer", "no path"]),
        ("jsonl", ["jsonl:FILE"]),
        ("jsonl:", ["empty"]),
        ("jsonl:absent.jsonl", ["absent.jsonl", "no such file"]),
        ("jsonl:.", ["directory"]),
        ("xquad:absent", ["absent", "no such file"]),
        ("xquad:dense", ["dense", "xquad.*.json"]),
        ("", ["task"]),
    ],
)
def test_tasks(desk: Desk, task: str, named: list[str]) -> None:
    error = desk.refused("eval", desk.model, "--task", task, "--out", desk.directory / "run")
    assert all(part in error for part in named), error


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--method", "wandd", "--sparsity", "0.5"], ["method", "'wandd'", "did you mean 'wanda'?"]),
        (["--method", "magnitude"], ["--sparsity", "--pattern"]),
        (["--method", "magnitude", "--sparsity", "1.5"], ["sparsity", "1.5"]),
        (["--method", "magnitude", "--pattern", "4:2"], ["pattern", "4:2"]),
        (["--method", "wanda", "--sparsity", "0.5", "--calibration", "gazeteer"], ["'gazeteer'", "gazetteer"]),
        (["--method", "wanda", "--sparsity", "0.5", "--calibration", "text:absent.txt"], ["absent.txt"]),
        (["--method", "wanda", "--sparsity", "0.5", "--calibration", "gazetteer", "--samples", "0"], ["samples", "0"]),
    ],
)
def test_options_of_prune(desk: Desk, options: list[str], named: list[str]) -> None:
    error = desk.refused("prune", desk.model, *options, "--out", desk.directory / "sparse")
    assert all(part in error for part in named), error


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["sweep", "dmeo", "--out", "run"], ["'dmeo'", "did you mean 'demo'?"]),
        (["evaluate"], ["evaluate", "eval"]),
        (["eval"], ["CHECKPOINT"]),
        (["eval", "dense", "--out", "run"], ["--task"]),
        (["sweep", "absent.yaml", "--out", "run"], ["absent.yaml"]),
        (["sweep", ".", "--out", "run"], ["."]),
        (["report", "absent"], ["absent", "run directory"]),
        (["report", "dense"], ["dense", "run directory"]),
    ],
)
def test_commands(desk: Desk, arguments: list[str], named: list[str]) -> None:
    error = desk.refused(*arguments)
    assert all(part in error for part in named), error


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "frobnicate"}, ["'model_type' is 'frobnicate'", "unknown architecture"]),
        ({"max_position_embeddings": 40}, ["'max_position_embeddings'", "32 tokens"]),
        ({"max_position_embeddings": 4}, ["'max_position_embeddings' is 4"]),
        ({"hidden_size": 96}, ["'hidden_size' is 96", "embed_tokens"]),
    ],
)
def test_matchers(desk: Desk, changes: dict[str, Any], named: list[str]) -> None:
    run = write_run(desk.directory / "run", 2, ("dense",), languages=("english",))
    desk.configure(**changes)
    code, error = desk.type("match", run, "--matcher", desk.model)
    assert (code, error.count("\n")) == (2, 1), error
    assert all(part in error for part in ["config.json", *named]), error
    assert not (run / "verdicts").exists()


# ---- sweep files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("models: [", ["not valid YAML", "line 1"]),
        ("- models", ["mapping"]),
        ("", ["mapping"]),
        ("models: {dense: dense}\n\x00", ["not valid YAML"]),
        (b"models: \xff", ["UTF-8"]),
        ("modles: {}", ["'modles'", "did you mean 'models'?"]),
        ("models: {dense: dense}\ntasks: [{tsak: gazetteer}]", ["'tsak'", "did you mean 'task'?", "tasks.0"]),
        ("models: {dense: dense}\ntasks: [{task: gazetteer}]\nprune: [{methd: wanda}]", ["'methd'", "prune.0"]),
        ("models: {dense: dense}\ntasks: [{task: gazetteer}]\nresources: {engine: 2}", ["'engine'", "'engines'"]),
        ("models: {dense: dense}\ntasks: [{task: gazetteer}]\nengine: {kind: vlm}", ["engine.kind", "vlm", "'vllm'"]),
        ("models: {dense: dense}\ntasks: [{task: gazetteer, items: lots}]", ["tasks.0.items", "lots"]),
        ("models: {dense: dense}\ntasks: [{task: gazetteer, probes: [gredy]}]", ["tasks.0.probes.0", "gredy"]),
        ("models: {dense: dense}\ntasks: [{task: gazetteer, probes: greedy}]", ["tasks.0.probes", "greedy"]),
        ("models: {dense: dense}\ntasks: {task: gazetteer}", ["tasks"]),
        ("models: {dense: dense}\ntasks: []", ["tasks"]),
        ("models: {dense: dense}\ntasks: [{? [task] : gazetteer}]", ["not valid YAML"]),
        ("models: {}\ntasks: [{task: gazetteer}]", ["models"]),
        ("models: dense\ntasks: [{task: gazetteer}]", ["models", "dense"]),
        ("models: {a/b: dense}\ntasks: [{task: gazetteer}]", ["models", "a/b"]),
        ("models: {1: dense}\ntasks: [{task: gazetteer}]", ["models", "1"]),
        ("models: {dense: null}\ntasks: [{task: gazetteer}]", ["models.dense"]),
        ("models: {dense: dense}\nmodels: {dense: other}\ntasks: [{task: gazetteer}]", ["models", "twice"]),
        ("models: {dense: dense}\ntasks: [{task: gazetteer}]\nseed: 1.5", ["seed", "1.5"]),
    ],
)  # fmt: skip
def test_sweep_files(desk: Desk, text: str | bytes, named: list[str]) -> None:
    file = desk.directory / "my sweep.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    error = desk.refused("sweep", file, "--out", desk.directory / "run")
    assert all(part in error for part in ["my sweep.yaml", *named]), error


ENGINES: list[tuple[dict[str, Any], list[str]]] = [
    (
        {"engine": {"deterministic": True}},
        ["engine: deterministic: vLLM has no batch-invariant mode on a CPU", "torch"],
    ),
    ({"resources": {"engines": 101}}, ["resources.engines: 101: at most 4 for each core, and there are 2 cores"]),
    ({"engine": {"tensor_parallel": 100}}, ["engine.tensor_parallel: 100"]),
    ({"engine": {"block_size": 0}}, ["engine.block_size: 0"]),
    ({"resources": {"placement_seconds": 10**12}}, ["resources.placement_seconds: 1000000000000"]),
]


@pytest.mark.parametrize(("changes", "named"), ENGINES)
def test_engines_that_this_machine_cannot_have(desk: Desk, changes: dict[str, Any], named: list[str]) -> None:
    desk.monkeypatch.setattr(start, "serves_cpus", lambda: True)
    desk.monkeypatch.setattr(running, "usable_cores", lambda: 2)
    desk.monkeypatch.delenv("RAY_ADDRESS", raising=False)
    error = desk.refused("sweep", desk.sweep(**changes), "--out", desk.directory / "run")
    assert all(part in error for part in named), error


def test_of_a_cluster_nothing_is_certain_before_ray_is_asked(desk: Desk) -> None:
    desk.monkeypatch.setattr(start, "serves_cpus", lambda: True)
    desk.monkeypatch.setenv("RAY_ADDRESS", "nowhere:6379")
    changes: dict[str, Any] = {"engine": {"deterministic": True}, "resources": {"engines": 999}}
    code, error = desk.type("sweep", desk.sweep(**changes), "--out", desk.directory / "run")
    assert code == 1
    assert error.startswith("error: cannot reach the Ray cluster at RAY_ADDRESS=nowhere:6379")


def test_one_task_in_two_ways(desk: Desk) -> None:
    tasks = [{"task": "gazetteer", "items": 4}, {"task": "gazetteer", "items": 5}]
    error = desk.refused("sweep", desk.sweep(tasks=tasks), "--out", desk.directory / "run")
    assert "gazetteer" in error
    assert "items" in error


def test_paths_beside_the_sweep_file_are_found(desk: Desk) -> None:
    """Refused for the setting, so model and items were found, from another working directory and a spaced path."""
    folder = desk.directory / "my sweeps ü"
    folder.mkdir()
    shutil.copytree(desk.model, folder / "модель")
    shutil.copy(desk.items(), folder / "my questions.jsonl")
    file = folder / "sweep.yaml"
    document = {
        "models": {"dense": "модель"},
        "tasks": [{"task": "jsonl:my questions.jsonl", "languages": ["klingon"]}],
    }
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    error = desk.refused("sweep", file, "--out", desk.directory / "run")
    assert "unknown language of task 'my-questions': 'klingon'" in error


def test_a_home_directory_is_expanded(desk: Desk) -> None:
    desk.monkeypatch.setenv("HOME", str(desk.directory))
    file = desk.sweep(models={"dense": "~/dense"}, tasks=[{"task": f"jsonl:{desk.items()}", "languages": ["klingon"]}])
    assert "'klingon'" in desk.refused("sweep", file, "--out", desk.directory / "run")


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ({"method": "wandd", "sparsity": 0.5}, ["method", "wandd", "'wanda'"]),
        ({"method": "magnitude", "sparsity": [0.5, 0.5]}, ["magnitude-0.5", "twice"]),
        ({"method": "magnitude", "pattern": "3:7"}, ["3:7"]),
        ({"method": "magnitude", "sparsity": "half"}, ["sparsity", "half"]),
        ({"method": "wanda", "sparsity": 0.5, "calibration": {"source": "gazeteer"}}, ["gazeteer"]),
        ({"method": "wanda", "sparsity": 0.5, "calibration": {"source": "gazetteer", "sample": 3}}, ["'samples'"]),
    ],
)
def test_pruning_settings(desk: Desk, setting: dict[str, Any], named: list[str]) -> None:
    error = desk.refused("sweep", desk.sweep(prune=[setting]), "--out", desk.directory / "run")
    assert all(part in error for part in named), error


# ---- item files -------------------------------------------------------------------------------------------------


def test_an_item_file(desk: Desk) -> None:
    file = desk.items(ITEMS[0], {key: value for key, value in ITEMS[1].items() if key != "context"})
    error = desk.refused(*desk.eval(task=f"jsonl:{file}"))
    assert all(part in error for part in ["questions.jsonl", "line 2", "'context'", "missing"]), error


# ---- output directories -----------------------------------------------------------------------------------------


def test_a_file_as_output_directory(desk: Desk) -> None:
    (desk.directory / "run").write_text("mine")
    assert "run is a file, not a directory" in desk.refused(*desk.eval())


@pytest.mark.parametrize("out", ["mine", "mine/run", "full"])
def test_where_nothing_can_be_written_is_said_before_any_work(desk: Desk, out: str) -> None:
    """Models and tasks are not even read."""
    (desk.directory / "mine").write_text("mine")
    (desk.directory / "full").mkdir()
    (desk.directory / "full" / "thesis.tex").write_text("mine")

    def no_work(*_: Any) -> None:
        raise AssertionError("models and tasks were read")

    desk.monkeypatch.setattr(preflight, "prepare", no_work)
    error = desk.refused("demo", "--out", out)
    assert f"{out}: --out" in error
    assert out in desk.refused("eval", "nowhere", "--task", "gazetteer", "--out", out)


def test_a_directory_of_something_else(desk: Desk) -> None:
    (desk.directory / "run").mkdir()
    (desk.directory / "run" / "thesis.tex").write_text("mine")
    assert "not a run directory" in desk.refused(*desk.eval())


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"digest": 3}'])
def test_a_broken_run_file(desk: Desk, content: str) -> None:
    (desk.directory / "run").mkdir()
    (desk.directory / "run" / "run.json").write_text(content)
    assert "run.json" in desk.refused(*desk.eval())


def test_an_output_directory_below_a_file(desk: Desk) -> None:
    (desk.directory / "run").write_text("mine")
    error = desk.refused("eval", desk.model, "--task", f"jsonl:{desk.items()}", "--out", desk.directory / "run" / "x")
    assert "run" in error


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_output_directory_that_cannot_be_written(desk: Desk) -> None:
    desk.directory.joinpath("locked").mkdir(mode=0o500)
    error = desk.refused("eval", desk.model, "--task", f"jsonl:{desk.items()}", "--out", desk.directory / "locked/run")
    assert "locked" in error


def test_a_read_only_file_system(desk: Desk) -> None:
    """What /proc answers is what a read-only disk answers, also to root."""
    code, error = desk.type("eval", desk.model, "--task", f"jsonl:{desk.items()}", "--out", "/proc/resurface/run")
    assert (code, error.count("\n")) == (2, 1)
    assert "/proc/resurface/run: --out" in error


def test_a_full_disk(desk: Desk) -> None:
    usage = namedtuple("usage", "total used free")
    desk.monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100, 99, 1))
    error = desk.refused(*desk.eval())
    assert "--out" in error
    assert "MiB free" in error


def test_the_output_directory_of_another_sweep(desk: Desk) -> None:
    """The first command gets as far as Ray, so the directory is its own."""
    desk.type(*desk.eval())
    error = desk.refused(*desk.eval("--seed", "1"))
    assert "run.json" in error
    assert "seed is 0 there, 1 here" in error


def test_two_processes_on_one_output_directory(desk: Desk) -> None:
    desk.type(*desk.eval())
    lock = RunLock(desk.directory / "run")
    try:
        assert "another resurface process" in desk.refused(*desk.eval())
    finally:
        lock.release()


# ---- the real thing ---------------------------------------------------------------------------------------------


def test_the_installed_command(desk: Desk) -> None:
    done = resurface_apart("eval", desk.model, "--task", "gazeteer", "--out", desk.directory / "run")
    assert done.returncode == 2
    assert done.stderr.startswith("error: unknown task 'gazeteer'; did you mean 'gazetteer'? (known: ")
    assert done.stderr.count("\n") == 1
    assert not (desk.directory / "run").exists()


def test_debug_shows_the_traceback(desk: Desk) -> None:
    done = resurface_apart("eval", desk.model, "--task", "gazeteer", "--out", desk.directory / "run", "--debug")
    assert done.returncode != 0
    assert "Traceback" in done.stderr


def test_help_names_every_command() -> None:
    done = resurface_apart("--help")
    assert done.returncode == 0
    assert all(name in done.stdout for name in ("demo", "prune", "eval", "sweep", "report", "bench"))


@pytest.mark.slow  # the command gets as far as importing Ray
def test_a_mount_without_space(tmp_path: Path, dense: Path) -> None:
    """A real full disk, where the machine lets us mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    try:
        items = tmp_path / "items.jsonl"
        items.write_text("".join(json.dumps(item) + "\n" for item in ITEMS))
        done = resurface("eval", dense, "--task", f"jsonl:{items}", "--items", "6", "--out", disk / "run")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert "run needs about" in done.stderr
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", disk], check=True)
