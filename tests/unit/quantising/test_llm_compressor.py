"""llm-compressor with a stand-in for its environment: what its process is given, and
what becomes of its ends."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import yaml

from evaluator.checkpoints.info import inspect_checkpoint
from evaluator.core.errors import JobError
from pruning.config import PruneConfig
from pruning.run import prune
from quantising.config import QuantiseConfig
from quantising.methods import METHODS
from quantising.methods import llm_compressor as process
from quantising.methods.base import Settings, recipe_of
from quantising.methods.llm_compressor_job import _keep_causal
from quantising.run import quantise

CALIBRATION = {"source": "mine", "samples": 4, "sequence_length": 16}
TEXTS = {
    "mine": lambda samples, seed: iter(
        [f"The town of Karo lies on the river {n}." for n in range(samples)]
    )
}
# Checks what it is given and copies the source's weights, with a configuration that
# says W4A16.
JOB = """
import json, os, shutil, sys
from pathlib import Path

request = json.loads(Path(sys.argv[1]).read_text())
assert os.environ["HF_HUB_OFFLINE"] == os.environ["TRANSFORMERS_OFFLINE"] == "1"
assert "HF_TOKEN" not in os.environ and "PYTHONPATH" not in sys.path
assert Path.cwd() != Path(request["source"]) and sys.flags.isolated
assert len(request["sequences"]) == 4 and max(map(len, request["sequences"])) <= 16
assert "GPTQModifier" in request["recipe"]
source, out = Path(request["source"]), Path(request["out"])
config = json.loads((source / "config.json").read_text())
weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128}
group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
config["quantization_config"] = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}
(out / "config.json").write_text(json.dumps(config))
Path("oneshot.log").write_text("where it runs")
MORE
Path(request["answer"]).write_text(json.dumps({"llmcompressor": "1"}))
"""
COPY = 'shutil.copy(source / "model.safetensors", out)'


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Give llm-compressor's process another script, which ends as its last lines
    say."""
    monkeypatch.setattr(process, "environment", lambda: sys.executable)
    monkeypatch.setenv("HF_TOKEN", "a secret")

    def give(more):
        script = tmp_path / "job.py"
        script.write_text(JOB.replace("MORE", more))
        monkeypatch.setattr(process, "_JOB", script)

    return give


def gptq(source):
    return QuantiseConfig(
        source=source, method="gptq", scheme="W4A16", calibration=CALIBRATION
    )


@pytest.mark.usefixtures("any_tensors")
def test_job_gets_ids_and_recipe(source, tmp_path, job):
    job(COPY)
    out = tmp_path / "run" / "out"
    manifest = quantise(gptq(source), out, sources=TEXTS)
    assert (manifest.versions, manifest.calibration.samples) == (
        {"llmcompressor": "1"},
        4,
    )
    info = inspect_checkpoint(out)
    assert (info.method, info.pattern, info.calibration) == (
        "gptq",
        "W4A16 (gptq, group 128)",
        "mine",
    )
    assert not (out / "oneshot.log").exists()
    assert (out / "tokenizer.json").exists()


@pytest.mark.usefixtures("any_tensors")
def test_lost_zeros_are_unstructured(source, tmp_path, job):
    """Whatever a recipe does to pruned weights: the manifest and the records state
    what was written."""
    job(
        "from safetensors.torch import load_file, save_file\n"
        "weights = load_file(source / 'model.safetensors')\n"
        "for name in weights: weights[name][:1] += 1\n"
        "save_file(weights, out / 'model.safetensors')"
    )
    pruned, out = tmp_path / "pruned", tmp_path / "out"
    before = prune(
        PruneConfig(source=source, method="magnitude", pattern="2:4"), pruned
    )
    manifest = quantise(gptq(pruned), out, sources=TEXTS)
    revived = sum(each.columns // 2 for each in before.matrices)
    weights = sum(each.rows * each.columns for each in before.matrices)
    assert (manifest.pattern, manifest.measured_sparsity) == (
        "unstructured",
        0.5 - revived / weights,
    )
    info = inspect_checkpoint(out)
    assert (info.method, info.pattern) == (
        "magnitude + gptq",
        "unstructured + W4A16 (gptq, group 128)",
    )
    assert info.sparsity == manifest.measured_sparsity


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (
            "sys.exit('ValueError: no such layer')",
            "^llm-compressor: ValueError: no such layer$",
        ),
        ("os.kill(os.getpid(), 9)", "died of SIGKILL"),
        ("pass", "no weights were written as safetensors"),
    ],
)
def test_failure_leaves_nothing(source, tmp_path, job, more, reason):
    job(more)
    run = tmp_path / "run"
    with pytest.raises(JobError, match=reason) as caught:
        quantise(gptq(source), run / "out", sources=TEXTS)
    assert "\n" not in str(caught.value)
    assert not list(run.iterdir())


@pytest.mark.parametrize(
    ("method", "modifiers"),
    [
        ("gptq", ["GPTQModifier"]),
        ("awq", ["AWQModifier", "QuantizationModifier"]),
        ("smoothquant", ["SmoothQuantModifier", "GPTQModifier"]),
    ],
)
def test_a_recipe_is_llm_compressors(method, modifiers):
    scheme = METHODS[method].schemes[0]

    def last_of(wanted):
        (stage,) = yaml.safe_load(recipe_of(METHODS[method].modifiers, wanted)).values()
        assert list(stage["quant_modifiers"]) == modifiers
        return stage["quant_modifiers"][modifiers[-1]]

    last = last_of(Settings(source=Path("dense"), method="gptq", scheme=scheme))
    assert (last["scheme"], last["targets"], last["ignore"]) == (
        scheme,
        ["Linear"],
        ["lm_head"],
    )
    # a group size of one's own is spelled out
    last = last_of(
        Settings(
            source=Path("dense"),
            method="gptq",
            scheme="W4A16",
            group_size=64,
            ignore=(),
        )
    )
    assert last["config_groups"]["group_0"]["weights"]["group_size"] == 64
    assert "scheme" not in last


def test_rebuilt_configuration_keeps_its_attention(monkeypatch):
    """Else the mask of some models is left out."""
    from transformers import LlamaConfig

    class SequentialTracer:
        def create_arg(self, argument):
            return SimpleNamespace(kwargs={"given": argument})

    helpers = ModuleType("llmcompressor.pipelines.sequential.helpers")
    helpers.SequentialTracer = SequentialTracer
    monkeypatch.setitem(sys.modules, helpers.__name__, helpers)
    _keep_causal()
    given = LlamaConfig()
    assert SequentialTracer().create_arg(1).kwargs == {"given": 1}
    assert SequentialTracer().create_arg(given).kwargs == {
        "given": given,
        "attn_implementation": "eager",
    }


def test_growing_output_beats(tmp_path, monkeypatch):
    log, target, beats = tmp_path / "log", tmp_path / "out", []
    target.mkdir()
    log.touch()
    monkeypatch.setattr(
        process, "HEARTBEAT", SimpleNamespace(beat=lambda: beats.append(1))
    )
    look = process._beat_while_growing(log, target)
    look()
    for file in (log, target / "1.safetensors"):
        file.write_text("more")
        look()
        look()  # nothing has grown since
    assert len(beats) == 3
