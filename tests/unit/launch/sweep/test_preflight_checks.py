"""Where dtype `auto` is a checkpoint's own, it must be its base's too, unless a run
says that it need not be."""

import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from evaluator.checkpoints.info import CheckpointInfo, inspect_checkpoint
from evaluator.core.config import validated
from evaluator.core.errors import InputError
from evaluator.engine.config import EngineConfig
from evaluator.engine.endpoint import prepare as endpoint
from evaluator.engine.vllm import engine
from launch.sweep.config import SweepConfig
from launch.sweep.jobs import expand
from launch.sweep.preflight import prepare
from launch.sweep.preflight_checks import (
    check_distinct,
    check_divided,
    check_dtype,
    other_tokens,
    remarks,
)
from tests.support import pruning as tiny
from tests.support.checkpoint_files import CONFIG, tensors, write
from tests.support.served import FakeServer
from tests.support.sweeps import gazetteer

pytestmark = pytest.mark.usefixtures("any_tensors")


@pytest.fixture(autouse=True)
def on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "serves_cpus", lambda: False)


def check(tmp_path: Path, config: EngineConfig, base: str | None = "dense") -> None:
    paths = {
        "dense": write(tmp_path / "dense", tensors(), {**CONFIG, "dtype": "float16"}),
        "small": write(tmp_path / "small", tensors(seed=1)),
    }
    models = {name: str(path) for name, path in paths.items()}
    document = {"models": models, "base": base, "tasks": [{"task": "gazetteer"}]}
    jobs = expand(validated(SweepConfig, document, "s.yaml"), tmp_path / "run")
    infos: dict[str, CheckpointInfo] = {
        name: inspect_checkpoint(path, name) for name, path in paths.items()
    }
    for job in jobs:
        check_dtype(config, infos, job)


@pytest.mark.parametrize(("longest", "factors"), [(511, "short"), (512, "long")])
def test_longrope_is_told(tmp_path, longest, factors):
    """vLLM takes one set of factors for all prompts, transformers by the length of
    each."""
    rope = {"rope_scaling": {"type": "su"}, "original_max_position_embeddings": 512}
    plain = [inspect_checkpoint(write(tmp_path / "plain", tensors()), "plain")]
    scaled = [
        replace(plain[0], path=write(tmp_path / "scaled", tensors(), CONFIG | rope))
    ]
    (told,) = remarks(EngineConfig(), scaled, longest)
    assert f"LongRoPE: vLLM computes every prompt with the {factors} factors" in told
    assert list(remarks(EngineConfig(), plain, longest)) == []
    assert list(remarks(EngineConfig(kind="torch"), scaled, longest)) == []


def test_other_dtype_is_refused(tmp_path):
    message = (
        f"^checkpoint .*/small: dtype auto would compute it in {CONFIG['dtype']}, and"
        " its base dense in float16: "
    )
    with pytest.raises(
        InputError, match=message + "set --dtype bfloat16 .* or --mixed-dtypes"
    ):
        check(tmp_path, EngineConfig())


@pytest.mark.parametrize(
    ("settings", "base", "cpu"),
    [
        ({"mixed_dtypes": True}, "dense", False),
        ({"kind": "torch"}, "dense", False),
        ({}, None, False),  # they are not compared
        ({}, "dense", True),  # there auto is one dtype
    ],
)
def test_one_dtype_or_mixing_passes(settings, base, cpu, tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "serves_cpus", lambda: cpu)
    check(tmp_path, EngineConfig(**settings), base)


TASK = gazetteer()


@pytest.fixture(scope="module")
def dense(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("removal") / "dense"
    tiny.build(
        "llama",
        directory,
        num_attention_heads=8,
        num_key_value_heads=4,
        intermediate_size=192,
    )
    return directory


def sweep(dense: Path, *settings, **more) -> SweepConfig:
    document = {
        "models": {"dense": str(dense)},
        "prune": list(settings),
        "tasks": [TASK],
    }
    return validated(
        SweepConfig,
        document | {"calibration": {"source": "gazetteer", "samples": 4}} | more,
        "s.yaml",
    )


def test_removing_nothing_is_refused(dense, tmp_path):
    config = sweep(
        dense, {"method": "layers", "sparsity": 0.1}, engine={"kind": "torch"}
    )
    with pytest.raises(
        InputError,
        match=r"^layers-0.1: sparsity: 0.1: of the 3 layers of .* none would go$",
    ):
        prepare(config, tmp_path / "run", strict=True)
    (failure,) = prepare(config, tmp_path / "run").unusable
    assert (failure.checkpoint, failure.stage) == ("layers-0.1", "prune")
    assert not (tmp_path / "run").exists()
    other = {"calibration": {"source": "gazetteer", "samples": 5}, "label": "more"}
    config = sweep(
        dense,
        {"method": "layers", "sparsity": 0.4},
        {"method": "layers", "sparsity": 0.45, **other},
    )
    jobs = expand(config, tmp_path / "run")
    first: dict[str, str] = {}
    for job in jobs:
        check_distinct(first, job)
    assert [job.name for job in jobs] == ["dense", "layers-0.4", "layers-0.45-more"]


@pytest.mark.parametrize(
    ("gpus", "left"),
    [
        (8, None),  # each of the 4 key-value heads on two GPUs
        (
            3,
            "/dense/config.json: dense has 8 attention heads, which"
            " engine.tensor_parallel 3 does not divide",
        ),
    ],
)
def test_gpus_divide_heads(dense, gpus, left, tmp_path):
    config = sweep(dense, engine={"kind": "vllm", "tensor_parallel": gpus})
    jobs = expand(config, tmp_path / "run")
    (job,) = jobs
    check_divided(config.engine.model_copy(update={"kind": "torch"}), job)
    with nullcontext() if left is None else pytest.raises(InputError, match=left):
        check_divided(config.engine, job)


def test_served_files_tokenise_the_questions(tmp_path, monkeypatch):
    """Each distinct question and option of the run's tasks, in the file's own way."""
    task = gazetteer(probes=["greedy", "choice"])
    document = {
        "models": {"dense": "bundled"},
        "tasks": [task],
        "engine": {"kind": "torch"},
    }
    prepared = prepare(validated(SweepConfig, document, "s.yaml"), tmp_path / "run")
    (job,), info = prepared.jobs, prepared.dense["dense"]
    asked = {"dense": prepared.tasks}
    given = []

    def other_texts(checkpoint, texts):
        given.extend(texts)
        return "2 differ"

    monkeypatch.setattr(endpoint, "other_texts", other_texts)
    assert other_tokens({"dense": info}, asked, job) == []
    served = {"dense": replace(info, served="file")}
    assert other_tokens(served, asked, job) == ["dense: 2 differ"]
    assert len(given) == len({*given})
    questions = prepared.tasks[0].questions
    assert len(questions) == 2
    for each in questions:
        assert {each.item.question, *each.options.texts} <= {*given}


def test_small_contexts_are_set_aside(tmp_path, monkeypatch):
    """Of one slot of the server: the windows of the others do not shrink to it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    server = FakeServer("llama")
    server.context = 60
    with server.serving() as url:
        models = {"dense": "bundled", "api": {"url": url}}
        document = {"models": models, "tasks": [gazetteer(max_new_tokens=32)]}
        document["engine"] = {"kind": "torch"}
        config = validated(SweepConfig, document, "s.yaml")
        plan = prepare(config, tmp_path / "run")
    (failure,) = [each for each in plan.unusable if each.checkpoint == "api"]
    assert re.search(r"no room for a prompt within (59|60) ", failure.reason)
    assert {job.model for job in plan.jobs} == {"dense"}
    assert plan.tasks[0].config.prompt_tokens > 60
    assert not (tmp_path / "run").exists()
