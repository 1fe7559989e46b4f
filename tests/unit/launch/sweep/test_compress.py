"""The axis `compress:`: what it expands to, and what preflight says of it."""

import shutil
from pathlib import Path

import pytest
import yaml

from evaluator.core.config import validated
from evaluator.engine import processor
from evaluator.engine.vllm import engine, quantised
from launch.sweep.config import SweepConfig, load_sweep
from launch.sweep.estimate import estimate
from launch.sweep.jobs import expand
from launch.sweep.models import BUNDLED_MODEL
from launch.sweep.preflight import Inspections, prepare
from pruning.config import PruneConfig
from pruning.run import prune
from quantising.methods import METHODS
from tests.support.models import save_tiny_model
from tests.support.pruning import build
from tests.support.sweeps import RUN, expanded, refused

MAIN = yaml.safe_load("""
models: {dense: bundled}
prune:
  - {method: wanda, sparsity: 0.5}
  - {method: magnitude, pattern: "2:4"}
calibration: {source: gazetteer, samples: 8, sequence_length: 64}
tasks: [{task: gazetteer, items: 4, languages: [english], probes: [greedy]}]
""")
RTN = {"method": "rtn", "scheme": "FP8_DYNAMIC"}


def jobs(*lines, **changes):
    return expanded({**MAIN, "compress": list(lines), **changes})


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_model(
        tmp_path_factory.mktemp("models") / "model", dtype="bfloat16"
    )


@pytest.fixture(autouse=True)
def on_a_processor(monkeypatch):
    for module in (quantised, engine):
        monkeypatch.setattr(module, "serves_cpus", lambda: True)
    monkeypatch.setattr(processor, "instruction_sets", lambda: ("avx2", "avx512f"))


def prepared(model, tmp_path, *lines, **changes):
    document = {
        **MAIN,
        "models": {"dense": str(model)},
        "compress": list(lines),
        **changes,
    }
    return prepare(validated(SweepConfig, document, "s.yaml"), tmp_path / "run")


def test_quantisations_are_a_product():
    lines = """
    - {method: rtn, scheme: [FP8_DYNAMIC, W8A8], after: [dense, wanda-0.5]}
    - {method: gptq, scheme: W4A16, after: magnitude-2of4, group_size: 64}
    - {method: online, scheme: fp8_per_channel}
    - {method: reap, experts: [0.25, 0.5]}
    """
    made = jobs(*yaml.safe_load(lines))
    assert list(made) == [
        *("dense", "wanda-0.5", "magnitude-2of4"),
        *(
            "rtn-fp8_dynamic",
            "wanda-0.5-rtn-fp8_dynamic",
            "rtn-w8a8",
            "wanda-0.5-rtn-w8a8",
        ),
        *("magnitude-2of4-gptq-w4a16-g64", "online-fp8_per_channel"),
        *("reap-0.25", "reap-0.5"),
    ]
    assert made["reap-0.5"].quantise.experts == 0.5
    plain, after = made["rtn-fp8_dynamic"], made["wanda-0.5-rtn-fp8_dynamic"]
    assert (plain.base, plain.model, plain.after, plain.prune) == (
        "dense",
        "dense",
        None,
        None,
    )
    assert plain.quantise.source == BUNDLED_MODEL
    assert plain.path == RUN / "checkpoints" / "rtn-fp8_dynamic"
    assert (after.base, after.after, after.prune) == ("dense", "wanda-0.5", None)
    assert after.quantise.source == made["wanda-0.5"].path


def test_same_quantisation_is_one_job():
    made = jobs(
        RTN,
        {"checkpoint": "quantised/b", "label": "mine", "base": "b"},
        models={"a": "x", "b": "y"},
        prune=[],
    )
    assert list(made) == ["a", "a-rtn-fp8_dynamic", "b", "b-rtn-fp8_dynamic", "mine"]
    assert (made["mine"].path, made["mine"].base, made["mine"].is_made) == (
        Path("quantised/b"),
        "b",
        False,
    )
    alone = jobs({"checkpoint": "quantised/b", "label": "mine"}, prune=[])
    assert list(alone) == ["dense", "mine"]  # one model, whatever is given beside it
    assert alone["mine"].base == "dense"
    spelled = {"method": "rtn", "scheme": "W4A16"}
    assert "occurs twice" in refused(jobs, spelled, {**spelled, "group_size": 128})


@pytest.mark.parametrize(
    ("line", "part"),
    [
        (
            "{method: rtm, scheme: W8A8}",
            "compress.0.method: \"rtm\": unknown method 'rtm'; did you mean 'rtn'?",
        ),
        (
            "{method: rtn, scheme: W8A9}",
            "unknown scheme of method rtn 'W8A9'; did you mean 'W8A8'?",
        ),
        ("{method: rtn}", "needs a scheme (W4A16, "),
        (
            "{}",
            "needs a method (rtn, online, gptq, awq, smoothquant, recipe, reap) or a",
        ),
        ("{method: reap}", "needs experts (0.25), and no after"),
        ("{method: reap, experts: 0.5, after: wanda-0.5}", "and no after"),
        (
            "{method: rtn, scheme: W8A8, ignore: [lm_head, 're:(']}",
            'compress.0: ignore.1: "re:(": no pattern: missing )',
        ),
        ("{method: reap, experts: 1}", "compress.0: experts: 1.0 is not a share"),
        (
            "{method: reap, experts: 0.5, scheme: W8A8}",
            "compress.0: scheme: 'W8A8' means nothing with reap",
        ),
        (
            "{method: rtn, scheme: W8A8, experts: 0.5}",
            "compress.0: experts: method rtn removes none",
        ),
        (
            "{method: rtn, scheme: W8A8, after: wanda-0.6}",
            "after: unknown pruning 'wanda-0.6'; did you mean 'wanda-0.5'?",
        ),
        ("{checkpoint: x}", "checkpoint: 'x' needs a label"),
        ("{checkpoint: x, label: y, scheme: W8A8}", "checkpoint: 'x' takes no scheme"),
        ("{checkpoint: x, label: y, base: z}", "base: unknown model 'z'"),
        (
            "{method: rtn, scheme: W8A8, base: dense}",
            "base: 'dense' applies to a given checkpoint only",
        ),
        (
            "{method: recipe, recipe: /no/such.yaml}",
            "/no/such.yaml: cannot read the recipe: No such file",
        ),
    ],
)
def test_bad_lines_are_one_line(line, part):
    assert part in refused(jobs, yaml.safe_load(line))


def test_recipe_names_its_scheme(tmp_path):
    modifier = {
        "GPTQModifier": {
            "targets": ["Linear"],
            "scheme": "w4a16",
            "ignore": ["lm_head"],
        }
    }
    recipe = {"quant_stage": {"quant_modifiers": modifier}}
    (tmp_path / "my gptq.yaml").write_text(yaml.safe_dump(recipe))
    sweep = {**MAIN, "compress": [{"method": "recipe", "recipe": "my gptq.yaml"}]}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    *_, job = expand(load_sweep(tmp_path / "sweep.yaml"), RUN)
    assert (job.name, job.quantise.scheme) == ("my_gptq", "W4A16")
    modifier["QuantizationModifier"] = {"scheme": "W8A8"}
    (tmp_path / "my gptq.yaml").write_text(yaml.safe_dump(recipe))
    told = refused(expand, load_sweep(tmp_path / "sweep.yaml"), RUN)
    assert "its schemes are W4A16, W8A8: choose the one to serve" in told


def test_removed_experts_are_prepared(tmp_path, monkeypatch):
    monkeypatch.setattr(METHODS["reap"], "check_here", lambda: None)
    line = {"method": "reap", "experts": 0.25}
    build("olmoe", tmp_path / "olmoe", clip_qkv=None, hidden_size=128)
    plan = prepared(tmp_path / "olmoe", tmp_path, line)
    assert [job.name for job in plan.jobs if job.quantise] == ["reap-0.25"]
    plan = prepared(tmp_path / "olmoe", tmp_path, line | {"experts": 0.9})
    (failure,) = plan.unusable
    assert failure.text.startswith(
        "reap-0.9 could not be made: experts: 0.9 removes 7 of 8 experts"
    )


def test_damaged_checkpoint_is_set_aside(model, tmp_path):
    line = {**RTN, "after": ["magnitude-0.5", "dense"]}
    changes = {"prune": [{"method": "magnitude", "sparsity": 0.5}], "controls": "none"}
    made = tmp_path / "run" / "checkpoints" / "magnitude-0.5"
    prune(PruneConfig(source=model, method="magnitude", sparsity=0.5), made)
    (made / "tokenizer.json").unlink()
    plan = prepared(model, tmp_path, line, **changes)
    assert {job.name for job in plan.jobs} == {"dense", "rtn-fp8_dynamic"}
    pruned, quantised = plan.unusable
    assert (pruned.checkpoint, pruned.stage) == ("magnitude-0.5", "load")
    assert "the manifest lists this file, but it is missing" in pruned.reason
    assert pruned.reason.endswith(
        f"; remove {made}, and the same command makes it again"
    )
    assert (quantised.stage, quantised.reason) == (
        "prune",
        "magnitude-0.5, its source, cannot be used",
    )


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_other_files_in_a_made_checkpoint_are_no_result(model, tmp_path, name):
    """Whole and finite weights too, such as a copy of another checkpoint's."""
    changes = {"prune": [{"method": "magnitude", "sparsity": 0.5}], "controls": "none"}
    made = tmp_path / "run" / "checkpoints" / "magnitude-0.5"
    prune(PruneConfig(source=model, method="magnitude", sparsity=0.5), made)
    (job,) = [
        each for each in prepared(model, tmp_path, RTN, **changes).jobs if each.prune
    ]
    with Inspections([job], trust=False) as inspected:
        assert inspected.result(job.name).sparsity == pytest.approx(0.5, abs=0.01)
    changed = made / name
    if name == "model.safetensors":
        shutil.copy(model / name, changed)
    else:
        changed.write_text("{")
    with Inspections([job], trust=False) as inspected:
        told = refused(inspected.result, job.name)
    assert told == f"{changed}: was changed: its sha256 is not the manifest's"


def test_size_of_each_scheme():
    lines = """
    - {method: gptq, scheme: [W4A16, W8A8]}
    - {method: rtn, scheme: FP8_DYNAMIC}
    - {method: online, scheme: mxfp8}
    - {method: reap, experts: 0.25}
    """
    document = validated(
        SweepConfig, {**MAIN, "compress": yaml.safe_load(lines)}, "s.yaml"
    )
    by_name = {each.job.name: each for each in estimate(document)}
    dense = by_name["wanda-0.5"].disk_bytes
    assert by_name["dense"].disk_bytes == 0
    assert by_name["reap-0.25"].disk_bytes == dense
    assert (
        by_name["rtn-fp8_dynamic"].disk_bytes
        == by_name["gptq-w8a8"].disk_bytes
        == dense // 2
    )
    assert dense // 4 < by_name["gptq-w4a16"].disk_bytes < dense // 3
    assert by_name["online-mxfp8"].disk_bytes == 0
