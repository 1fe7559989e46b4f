"""Where dtype `auto` is a checkpoint's own, it must be its base's too, unless a run says that it need not be."""

from pathlib import Path

import pytest

from evaluator.checkpoints.info import CheckpointInfo, inspect_checkpoint
from evaluator.core.errors import InputError
from evaluator.engine.config import EngineConfig
from evaluator.engine.vllm import engine
from launch.sweep.config import SweepConfig, validated
from launch.sweep.dtypes import check_dtypes
from launch.sweep.jobs import expand
from tests.support.checkpoint_files import CONFIG, tensors, write


@pytest.fixture(autouse=True)
def on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "serves_cpus", lambda: False)


def check(tmp_path: Path, config: EngineConfig, *, base: str | None = "dense", dtype: str = "float16") -> None:
    tmp_path.mkdir(exist_ok=True)
    paths = {
        "dense": write(tmp_path / "dense", tensors(), {**CONFIG, "dtype": dtype}),
        "small": write(tmp_path / "small", tensors(seed=1)),
    }
    models = {name: str(path) for name, path in paths.items()}
    document = {"models": models, "base": base, "tasks": [{"task": "gazetteer"}]}
    jobs = expand(validated(SweepConfig, document, "s.yaml"), tmp_path / "run")
    infos: dict[str, CheckpointInfo] = {name: inspect_checkpoint(path, name) for name, path in paths.items()}
    check_dtypes(config, jobs, infos)


def test_another_dtype_than_the_base_is_refused(tmp_path):
    with pytest.raises(InputError) as caught:
        check(tmp_path, EngineConfig())
    assert str(caught.value) == (
        f"checkpoint {tmp_path / 'small'}: dtype auto would compute it in {CONFIG['dtype']}, and its base dense in "
        "float16: set --dtype bfloat16 (engine.dtype in a sweep file) for both, or --mixed-dtypes "
        "(engine.mixed_dtypes) to have them compared all the same, and every table say so"
    )


@pytest.mark.parametrize(
    "settings", [{"mixed_dtypes": True}, {"dtype": "bfloat16"}, {"kind": "torch"}], ids=["flag", "one dtype", "torch"]
)
def test_what_computes_all_in_one_or_may_mix_is_not(settings, tmp_path):
    assert check(tmp_path, EngineConfig.model_validate(settings)) is None


def test_models_that_are_not_compared_may_differ_and_equal_ones_pass(tmp_path):
    assert check(tmp_path / "apart", EngineConfig(), base=None) is None
    assert check(tmp_path / "alike", EngineConfig(), dtype=CONFIG["dtype"]) is None


def test_on_a_cpu_auto_is_one_dtype(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "serves_cpus", lambda: True)
    assert check(tmp_path, EngineConfig()) is None
