"""Where dtype `auto` is a checkpoint's own, it must be its base's too, unless a run
says that it need not be."""

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from evaluator.checkpoints.info import FEW_TOKENS, CheckpointInfo, inspect_checkpoint
from evaluator.checkpoints.manifests import CalibrationManifest, RemovedParts
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
    check_dtypes,
    other_tokens,
    remarks,
)
from tests.support import pruning as tiny
from tests.support.checkpoint_files import CONFIG, tensors, write, write_manifest
from tests.support.served import BASE, FakeServer
from tests.support.sweeps import gazetteer

pytestmark = pytest.mark.usefixtures("any_tensors")


@pytest.fixture(autouse=True)
def on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "serves_cpus", lambda: False)


def check(
    tmp_path: Path,
    config: EngineConfig,
    *,
    base: str | None = "dense",
    dtype: str = "float16",
) -> None:
    paths = {
        "dense": write(tmp_path / "dense", tensors(), {**CONFIG, "dtype": dtype}),
        "small": write(tmp_path / "small", tensors(seed=1)),
    }
    models = {name: str(path) for name, path in paths.items()}
    document = {"models": models, "base": base, "tasks": [{"task": "gazetteer"}]}
    jobs = expand(validated(SweepConfig, document, "s.yaml"), tmp_path / "run")
    infos: dict[str, CheckpointInfo] = {
        name: inspect_checkpoint(path, name) for name, path in paths.items()
    }
    check_dtypes(config, jobs, infos)


@pytest.mark.parametrize(("longest", "factors"), [(511, "short"), (512, "long")])
@pytest.mark.parametrize("kind", ["longrope", "su"])
def test_longrope_is_told(tmp_path, longest, factors, kind):
    """vLLM takes one set of factors for all prompts, transformers by the length of
    each."""
    rope = {"rope_scaling": {"type": kind}, "original_max_position_embeddings": 512}
    plain = [inspect_checkpoint(write(tmp_path / "plain", tensors()), "plain")]
    scaled = [
        replace(plain[0], path=write(tmp_path / "scaled", tensors(), CONFIG | rope))
    ]
    (told,) = remarks(EngineConfig(), scaled, longest)
    assert f"LongRoPE: vLLM computes every prompt with the {factors} factors" in told
    assert (
        f"up to {longest} tokens; transformers uses the long ones for more than 512"
        " only" in told
    )
    assert list(remarks(EngineConfig(), plain, longest)) == []
    assert list(remarks(EngineConfig(kind="torch"), scaled, longest)) == []


def test_little_calibration_is_told(tmp_path):
    small = write(tmp_path / "small", tensors())
    few = "tokens of calibration are few"
    for source, samples, tokens, told in (
        ("c4", 1, 7, few),
        ("c4", 1, FEW_TOKENS, ""),
        ("text:a.txt", 128, 344, few),
    ):
        calibration = CalibrationManifest(
            source=source, samples=samples, sequence_length=8, tokens=tokens, cut=0,
            ids_sha256="", files={}, passages=(),
        )  # fmt: skip
        parts = RemovedParts(unit="layers", of=3, gone=("1",))
        write_manifest(small, calibration=calibration, removed=parts)
        notes = list(remarks(EngineConfig(), [inspect_checkpoint(small)], 512))
        assert len(notes) == bool(told)
        assert all(f"prune_manifest.json: {tokens:,} {told}" in note for note in notes)


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
    ("settings", "base", "dtype", "cpu"),
    [
        ({"mixed_dtypes": True}, "dense", "float16", False),
        ({"kind": "torch"}, "dense", "float16", False),
        ({}, None, "float16", False),  # they are not compared
        ({}, "dense", "float16", True),  # there auto is one dtype
    ],
)
def test_one_dtype_or_mixing_passes(settings, base, dtype, cpu, tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "serves_cpus", lambda: cpu)
    assert (
        check(tmp_path, EngineConfig.model_validate(settings), base=base, dtype=dtype)
        is None
    )


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
        prepare(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    other = {"calibration": {"source": "gazetteer", "samples": 5}, "label": "more"}
    config = sweep(
        dense,
        {"method": "layers", "sparsity": 0.4},
        {"method": "layers", "sparsity": 0.45, **other},
    )
    jobs = expand(config, tmp_path / "run")
    check_distinct(jobs)
    assert [job.name for job in jobs] == ["dense", "layers-0.4", "layers-0.45-more"]


def test_equal_removals_are_refused(dense, tmp_path):
    config = sweep(dense, {"method": "layers", "sparsity": [0.4, 0.45]})
    jobs = expand(config, tmp_path / "run")
    message = (
        r"^layers-0.45: layers: sparsity: 0.45 removes as many layers as layers-0.4:"
        r" both would"
    )
    with pytest.raises(InputError, match=message):
        check_distinct(jobs)


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
    check_divided(config.engine.model_copy(update={"kind": "torch"}), jobs)
    with nullcontext() if left is None else pytest.raises(InputError, match=left):
        check_divided(config.engine, jobs)


def test_served_files_tokenise_the_questions(tmp_path, monkeypatch):
    """Each distinct question and option of the run's tasks, in the file's own way."""
    task = gazetteer(probes=["greedy", "choice"])
    document = {
        "models": {"dense": "bundled"},
        "tasks": [task],
        "engine": {"kind": "torch"},
    }
    prepared = prepare(validated(SweepConfig, document, "s.yaml"), tmp_path / "run")
    info, asked = prepared.dense["dense"], {"dense": prepared.tasks}
    given = []

    def other_texts(checkpoint, texts):
        given.extend(texts)
        return "2 differ"

    monkeypatch.setattr(endpoint, "other_texts", other_texts)
    assert [*other_tokens({"dense": info}, asked)] == []
    served = {"dense": replace(info, served="file")}
    assert [*other_tokens(served, asked)] == ["dense: 2 differ"]
    assert len(given) == len({*given})
    questions = prepared.tasks[0].questions
    assert len(questions) == 2
    for each in questions:
        assert {each.item.question, *each.options.texts} <= {*given}


def test_served_models_may_have_other_tokenizers(tmp_path, monkeypatch):
    """Probes that read the base's answers are then excluded, as for any model."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    other = tmp_path / "other"
    shutil.copytree(BASE, other)
    stated = json.loads((other / "tokenizer.json").read_text())
    vocabulary = stated["model"]["vocab"]
    one, two = sorted(vocabulary, key=vocabulary.get)[40:42]
    vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]
    (other / "tokenizer.json").write_text(json.dumps(stated))
    server = FakeServer("vllm")
    with server.serving() as url:
        models = {
            "dense": "bundled",
            "same": {"url": url},
            "other": {"url": url, "tokenizer": str(other)},
        }
        task = gazetteer(probes=["greedy", "aligned_rank"])
        document = {"models": models, "base": "dense", "tasks": [task]}
        document["engine"] = {"kind": "torch"}
        config = validated(SweepConfig, document, "s.yaml")
        prepared = prepare(config, tmp_path / "run")
    assert prepared.other_tokenizer == {"other"}


@pytest.mark.parametrize("dialect", ["vllm", "llama"])
def test_small_contexts_are_refused(tmp_path, monkeypatch, dialect):
    """Of one slot of the server: nothing starts."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    server = FakeServer(dialect)
    server.context = 60
    with server.serving() as url:
        models = {"dense": "bundled", "api": {"url": url}}
        document = {"models": models, "tasks": [gazetteer(max_new_tokens=32)]}
        document["engine"] = {"kind": "torch"}
        config = validated(SweepConfig, document, "s.yaml")
        with pytest.raises(InputError, match=r"no room for a prompt within (59|60) "):
            prepare(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
