"""The axis `compress:`: what it expands to, and what preflight says of it."""

from pathlib import Path

import pytest
import yaml

from evaluator.core.config import validated
from evaluator.engine import processor
from evaluator.engine.vllm import engine, quantised
from launch.sweep.compress import SOURCES
from launch.sweep.config import SweepConfig, load_sweep
from launch.sweep.estimate import estimate
from launch.sweep.jobs import expand
from launch.sweep.models import BUNDLED_MODEL
from launch.sweep.preflight import prepare
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
    *_, job = expand(load_sweep(tmp_path / "sweep.yaml"), RUN, fetch=False)
    assert (job.name, job.quantise.scheme) == ("my_gptq", "W4A16")
    modifier["QuantizationModifier"] = {"scheme": "W8A8"}
    (tmp_path / "my gptq.yaml").write_text(yaml.safe_dump(recipe))
    told = refused(expand, load_sweep(tmp_path / "sweep.yaml"), RUN, fetch=False)
    assert "its schemes are W4A16, W8A8: choose the one to serve" in told


def test_one_dtype_serves_all(model, tmp_path):
    lines = [
        {**RTN, "after": ["dense", "wanda-0.5"]},
        {"method": "online", "scheme": "fp8_per_channel"},
    ]
    plan = prepared(model, tmp_path, *lines)
    (line,) = plan.served
    assert line.startswith("dtype auto: this run computes every checkpoint in bfloat16")
    assert [each for each in plan.identity["checkpoints"] if "quantise" in each][1][
        "after"
    ] == "wanda-0.5"


def test_unserved_scheme_is_refused_before_it_is_made(model, tmp_path):
    told = refused(prepared, model, tmp_path, {"method": "rtn", "scheme": "W8A8"})
    assert told.startswith("compress: rtn-w8a8: W8A8 (rtn, per channel)")
    assert "vLLM has no kernel for this scheme here; it needs a processor" in told


def test_removed_experts_are_prepared(tmp_path, monkeypatch):
    monkeypatch.setattr(METHODS["reap"], "check_here", lambda: None)
    line = {"method": "reap", "experts": 0.25}
    build("olmoe", tmp_path / "olmoe", clip_qkv=None, hidden_size=128)
    plan = prepared(tmp_path / "olmoe", tmp_path, line)
    assert [job.name for job in plan.jobs if job.quantise] == ["reap-0.25"]
    told = refused(prepared, tmp_path / "olmoe", tmp_path, line | {"experts": 0.9})
    assert told.startswith("reap-0.9: experts: 0.9 removes 7 of 8 experts")


@pytest.mark.parametrize(
    ("file", "content", "why"),
    [
        ("prune_manifest.json", b"{", "prune_manifest.json: the file: Invalid JSON"),
        (
            "tokenizer.json",
            None,
            "tokenizer.json: the manifest lists this file, but it is missing",
        ),
    ],
)
def test_damaged_checkpoint_is_set_aside(model, tmp_path, file, content, why):
    line = {**RTN, "after": ["magnitude-0.5", "dense"]}
    changes = {"prune": [{"method": "magnitude", "sparsity": 0.5}], "controls": "none"}
    made = tmp_path / "run" / "checkpoints" / "magnitude-0.5"
    prune(PruneConfig(source=model, method="magnitude", sparsity=0.5), made)
    assert prepared(model, tmp_path, line, **changes).unusable == ()
    (made / file).unlink()
    if content is not None:
        (made / file).write_bytes(content)
    plan = prepared(model, tmp_path, line, **changes)
    assert {job.name for job in plan.jobs} == {"dense", "rtn-fp8_dynamic"}
    pruned, quantised = plan.unusable
    assert (pruned.checkpoint, pruned.stage) == ("magnitude-0.5", "load")
    assert why in pruned.reason
    assert pruned.reason.endswith(
        f"; remove {made}, and the same command makes it again"
    )
    assert (quantised.stage, quantised.reason) == (
        "prune",
        "magnitude-0.5, its source, cannot be used",
    )


def test_estimate_of_documented_sweep():
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
    text = (Path(__file__).resolve().parents[4] / "docs" / "quantised.md").read_text(
        encoding="utf-8"
    )
    block = text.partition("```yaml\n")[2].partition("```")[0]
    names = [
        each.job.name
        for each in estimate(
            validated(SweepConfig, yaml.safe_load(block), "docs/quantised.md")
        )
    ]
    assert {
        "rtn-fp8_dynamic",
        "wanda-0.5-gptq-w4a16",
        "online-fp8_per_tensor",
        "mine-awq",
    } <= set(names)


def test_bundled_texts_end():
    """Seeds begin at other texts; no language has more than are bundled."""
    first, other = (list(SOURCES["gazetteer"](18, seed)) for seed in (0, 1))
    assert len({*first, *other}) == 36
    told = refused(lambda: list(SOURCES["gazetteer:english"](513, 0)))
    assert told == "calibration: samples: 513: gazetteer has 512 passages of a language"
