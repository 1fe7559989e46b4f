"""Every mistake that a user can mend: exit code 2, one line that names it, nothing
left behind, no engine started."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml

from evaluator.engine.vllm import start
from launch.commands import call
from launch.sweep import preflight
from tests.support.models import save_tiny_model
from tests.support.runs import resurface_apart, typed
from tests.support.synthetic import write_run

ITEM = {
    "id": "a-1",
    "language": "english",
    "context": "Karo lies on the Belu.",
    "question": "Where?",
    "answers": ["x"],
}
ITEMS = [
    ITEM | {"id": f"a-{number}", "answers": [f"answer {number}"]} for number in range(6)
]


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("models") / "dense")


@dataclass
class Desk:
    """A user's working directory, with a model, an item file and a command line in
    it."""

    directory: Path
    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch

    @property
    def model(self) -> Path:
        return self.directory / "dense"

    def configure(self, **changes: Any) -> None:
        file = self.model / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    def items(self, *lines: Any) -> Path:
        file = self.directory / "questions.jsonl"
        file.write_text(
            "".join(json.dumps(line) + "\n" for line in (lines or ITEMS)),
            encoding="utf-8",
        )
        return file

    def sweep(self, **changes: Any) -> Path:
        document: dict[str, Any] = {
            "models": {"dense": str(self.model)},
            "tasks": [
                {"task": f"jsonl:{self.items()}", "items": 2, "probes": ["greedy"]}
            ],
        }
        file = self.directory / "sweep.yaml"
        file.write_text(yaml.safe_dump(document | changes), encoding="utf-8")
        return file

    def type(self, *arguments: str | Path) -> tuple[int, str]:
        code = typed(self.monkeypatch, *arguments)
        written = self.capsys.readouterr()
        assert "Traceback" not in written.out + written.err
        return code, written.err

    def refused(self, *arguments: str | Path) -> str:
        """The one line that refuses a command, which has left nothing behind."""
        before = self._files()
        code, error = self.type(*arguments)
        assert code == 2, error
        assert error.count("\n") == 1, error
        assert error.startswith("error: ")
        assert self._files() == before
        return error

    def _files(self) -> list[Path]:
        return sorted(
            each for each in self.directory.rglob("*") if each.parent.name != ".lease"
        )

    def eval(self, *more: str, task: str | None = None) -> list[str]:
        task = task or f"jsonl:{self.items()}"
        typed = f"eval {self.model} --task {task} --items 2 --out {self.directory}/run"
        return [*typed.split(), *more]


@pytest.fixture
def desk(tmp_path, dense, capsys, monkeypatch):
    shutil.copytree(dense, tmp_path / "dense")
    monkeypatch.chdir(tmp_path)

    def no_ray(*_, **__):
        raise AssertionError("Ray was started")

    monkeypatch.setattr(ray, "init", no_ray)
    return Desk(tmp_path, capsys, monkeypatch)


def _truncate(model: Path) -> None:
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


CHECKPOINTS = [
    (shutil.rmtree, ["dense", "no such directory"]),
    (
        lambda model: (model / "model.safetensors").unlink(),
        ["dense", "no *.safetensors"],
    ),
    (lambda model: (model / "tokenizer.json").unlink(), ["dense", "tokenizer"]),
]


@pytest.mark.parametrize(("damage", "named"), CHECKPOINTS)
def test_damaged_checkpoints_are_refused(desk, damage, named):
    damage(desk.model)
    error = desk.refused(*desk.eval())
    assert all(part in error for part in named), error


def test_strict_refuses_any_fault(desk):
    """Without it, the run sets the checkpoint aside, and goes on until Ray starts."""
    shutil.copytree(desk.model, "half")
    (desk.directory / "half" / "tokenizer.json").unlink()
    faulty = desk.eval("half", "--base", str(desk.model))
    assert "half: " in desk.refused(*faulty, "--strict")
    code, error = desk.type(*faulty)
    assert (code, "Ray was started" in error) == (1, True)


@pytest.mark.more
def test_unknown_architecture_is_one_line(desk):
    """In a process of its own, where transformers would warn of it too."""
    desk.configure(model_type="frobnicate")
    done = resurface_apart(*desk.eval())
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    # A user may ask for the traceback.
    typed = f"eval {desk.model} --task gazeteer --out run --debug"
    done = resurface_apart(*typed.split(), cwd=desk.directory)
    assert done.returncode != 0
    assert "Traceback" in done.stderr


def test_damaged_checkpoint_is_not_pruned(desk):
    _truncate(desk.model)
    sweep = desk.sweep(prune=[{"method": "magnitude", "sparsity": 0.5}])
    assert "model.safetensors" in desk.refused(
        "sweep", sweep, "--out", desk.directory / "run"
    )
    command = "prune dense --method magnitude --sparsity 0.5 --out sparse"
    assert "model.safetensors" in desk.refused(*command.split())


EVAL = "eval dense --task jsonl:questions.jsonl --items 2 --out run"
COMMANDS = [
    (f"{EVAL} --engine vlm", ["--engine", "'vlm'", "did you mean 'vllm'?"]),
    (f"{EVAL} --options foo", ["--options", "'foo'", "(known: alike, any, near)"]),
    (EVAL.replace("--items 2", "--items abc"), ["--items", "valid integer", "'abc'"]),
    (f"{EVAL} --dry-run --engines-per-gpu 2", ["engines_per_gpu: 2: there is no GPU"]),
    (f"{EVAL} --dry-run --notify gone-here", ["--notify", "no program 'gone-here'"]),
    (f"{EVAL} --dry-run --track mlfow", ["--track 'mlfow'", "did you mean 'mlflow'"]),
    (f"{EVAL} --dry-run --max-new-tokens 9999", ["max_new_tokens: 9999"]),
    ("eval dense --task jsonl:questions.jsonl", ["Missing option '--out'"]),
    ("prune dense --method wanda --sparsity 2 --out x --dry-run", ["sparsity: 2"]),
    (
        "compress dense --method rtn --scheme W4A16 --group-size 48 --out x --dry-run",
        ["group_size 48 does not divide"],
    ),
    (f"{EVAL} --key-env KEY", ["--key-env: it goes with --endpoint"]),
    ("gate run --plan 100", ["run: --plan takes no run"]),
    (f"{EVAL} --shard-items 0", ["--shard-items: 0", "greater than or equal to 1"]),
    (f"{EVAL} --itmes 3", ["--itmes", "--items"]),
    (
        "eval dense gone --base dense --task jsonl:questions.jsonl --dry-run",
        ["checkpoint gone: no such directory"],
    ),
    (
        "eval dense --task gazeteer --out run",
        ["'gazeteer'", "did you mean 'gazetteer'?"],
    ),
]


@pytest.mark.parametrize(("arguments", "named"), COMMANDS)
def test_commands(desk, arguments, named):
    desk.items()
    error = desk.refused(*arguments.split())
    assert all(part in error for part in named), error


@pytest.mark.parametrize("more", ["", " --dry-run"])
def test_items_need_gold_answers(desk, more):
    desk.items(*(item | {"answers": [""]} for item in ITEMS))
    error = desk.refused(*f"{EVAL}{more}".split())
    assert (
        "none of the 2 items to evaluate has a gold answer that can be graded" in error
    )


@pytest.mark.parametrize(
    ("arguments", "code", "shown"),
    [
        ("eval dense --task jsonl:questions.jsonl --dry-run", 0, "1 checkpoint, "),
        (
            "eval dense half --base dense --task jsonl:questions.jsonl --dry-run",
            3,
            "would be set aside: half: ",
        ),
        (
            "eval dense org/name --base dense --task jsonl:questions.jsonl --dry-run",
            0,
            "not checked, as a start fetches or serves it: org/name",
        ),
        (
            "prune dense --method magnitude --sparsity 0.5 --out x --dry-run",
            0,
            "GiB of disk",
        ),
        (
            "compress dense --method rtn --scheme W8A8 --out x --dry-run",
            0,
            "GiB of disk",
        ),
        (
            "prune org/name --method magnitude --sparsity 0.5 --out x --dry-run",
            0,
            "size is unknown here",
        ),
    ],
)
def test_dry_runs_leave_nothing(desk, arguments, code, shown):
    desk.items()
    shutil.copytree(desk.model, "half")
    Path("half/model.safetensors").unlink()
    before = desk._files()
    assert typed(desk.monkeypatch, *arguments.split()) == code
    written = desk.capsys.readouterr().out
    assert shown in written
    assert written.rstrip().endswith("Nothing was started and nothing fetched.")
    assert desk._files() == before


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"max_position_embeddings": 40}, ["'max_position_embeddings'", "32 tokens"]),
        ({"hidden_size": 96}, ["embed_tokens", "[384, 96]"]),
    ],
)
def test_matchers(desk, changes, named):
    run = write_run(desk.directory / "run", 2, ("dense",), languages=("english",))
    desk.configure(**changes)
    code, error = desk.type("match", run, "--matcher", desk.model)
    assert (code, error.count("\n")) == (2, 1), error
    assert all(part in error for part in ["config.json", *named]), error
    assert not (run / "verdicts").exists()


@pytest.mark.parametrize(
    ("text", "named"),
    [

        ("modles: {}", ["'modles'", "did you mean 'models'?"]),

        ("models: {dense: dense}\ntasks: [{task: gazetteer, items: lots}]", ["tasks.0.items", "lots"]),
    ],
)  # fmt: skip
def test_sweep_files(desk, text, named):
    file = desk.directory / "my sweep.yaml"
    file.write_text(text)
    error = desk.refused("sweep", file, "--out", desk.directory / "run")
    assert all(part in error for part in ["my sweep.yaml", *named]), error


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"engine": {"deterministic": True}},
            "engine: deterministic: vLLM has no batch-invariant mode on a CPU",
        ),
        (
            {"resources": {"engines": 101}},
            "resources.engines: 101: at most 4 for each core, and there are 2 cores",
        ),
        (
            {"resources": {"engines_per_gpu": 2}},
            "resources.engines_per_gpu: 2: there is no GPU to share; on a CPU --engines N",
        ),
        ({"engine": {"tensor_parallel": 100}}, "engine.tensor_parallel: 100"),
        (
            {"engine": {"tensor_parallel": 2}, "resources": {"engines_per_gpu": 2}},
            (
                "sweep.yaml: resources.engines_per_gpu: 2: engines of tensor_parallel 2"
                " share no GPU"
            ),
        ),
    ],
)
def test_engines_that_this_machine_cannot_have(desk, changes, said):
    desk.monkeypatch.setattr(start, "serves_cpus", lambda: True)
    desk.monkeypatch.setattr(call, "usable_cores", lambda: 2)
    desk.monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert said in desk.refused(
        "sweep", desk.sweep(**changes), "--out", desk.directory / "run"
    )


def test_unknown_cluster_is_no_bad_input(desk):
    """What a cluster has is uncertain until Ray has started."""
    desk.monkeypatch.setattr(start, "serves_cpus", lambda: True)
    desk.monkeypatch.setenv("RAY_ADDRESS", "nowhere:6379")
    sweep = desk.sweep(engine={"deterministic": True}, resources={"engines": 999})
    code, error = desk.type("sweep", sweep, "--out", desk.directory / "run")
    assert code == 1
    assert error.startswith(
        "error: cannot reach the Ray cluster at RAY_ADDRESS=nowhere:6379"
    )


def test_paths_beside_the_sweep_file(desk):
    """Refused for the setting, so model and items were found, from another working
    directory and a spaced path."""
    folder = desk.directory / "my sweeps ü"
    folder.mkdir()
    shutil.copytree(desk.model, folder / "модель")
    shutil.copy(desk.items(), folder / "my questions.jsonl")
    file = folder / "sweep.yaml"
    tasks = [{"task": "jsonl:my questions.jsonl", "languages": ["klingon"]}]
    file.write_text(
        yaml.safe_dump({"models": {"dense": "модель"}, "tasks": tasks}),
        encoding="utf-8",
    )
    error = desk.refused("sweep", file, "--out", desk.directory / "run")
    assert "unknown language of task 'my-questions': 'klingon'" in error


def test_item_file_on_read_only_disk(desk):
    file = desk.items(
        ITEMS[0], {key: value for key, value in ITEMS[1].items() if key != "question"}
    )
    error = desk.refused(*desk.eval(task=f"jsonl:{file}"))
    assert all(
        part in error for part in ["questions.jsonl", "line 2", "'question'", "missing"]
    ), error
    # What /proc answers is what a read-only disk answers, also to root.
    typed = f"eval dense --task jsonl:{file} --out /proc/resurface/run"
    code, error = desk.type(*typed.split())
    assert (code, error.count("\n")) == (2, 1)
    assert "/proc/resurface/run: cannot write there" in error


@pytest.mark.parametrize("out", ["mine/run", "full"])
def test_unwritable_directory_is_refused_first(desk, out):
    """Models and tasks are not even read."""
    (desk.directory / "mine").write_text("mine")
    (desk.directory / "full").mkdir()
    (desk.directory / "full" / "thesis.tex").write_text("mine")

    def no_work(*_):
        raise AssertionError("models and tasks were read")

    desk.monkeypatch.setattr(preflight, "prepare", no_work)
    error = desk.refused("demo", "--out", out)
    assert f"{out}: --out" in error
    assert out in desk.refused("eval", "dense", "--task", "gazetteer", "--out", out)


@pytest.mark.parametrize("content", ["", "{", '{"digest": 3}'])
def test_a_broken_run_file(desk, content):
    (desk.directory / "run").mkdir()
    (desk.directory / "run" / "run.json").write_text(content)
    assert "run.json" in desk.refused(*desk.eval())


def test_a_run_of_the_earlier_layout(desk):
    """Nothing is changed, and the report still reads it."""
    old = desk.directory / "run"
    write_run(old, 3, ("dense",), languages=("english",))
    (part,) = old.glob("records/*/*.parquet")
    where = old / "records" / "dense" / "gazetteer" / "00000.parquet"
    where.parent.mkdir(parents=True)
    part.replace(where)
    part.parent.rmdir()
    (old / "records" / "keys.json").unlink()
    file = old / "run.json"
    file.write_text('{"digest": "d", "schema_version": 1, "state": "finished"}')
    before = {path: path.stat().st_mtime_ns for path in old.rglob("*")}
    error = desk.refused(*desk.eval())
    told = "schema_version: 1 is the layout of an earlier Resurface: `resurface report`"
    assert f"{told} reads it" in " ".join(error.split())
    assert {path: path.stat().st_mtime_ns for path in old.rglob("*")} == before
    desk.type("report", "run")
    assert (old / "tables" / "accuracy.csv").is_file()
