"""REAP with a stand-in for llm-compressor, which removes experts 1 and 3 of each layer
and has its faults: names of its own, and config.json as it was."""

import json
import sys
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file

from evaluator.checkpoints.info import inspect_checkpoint
from evaluator.core.errors import InputError, JobError
from pruning.run import prune
from pruning.verify import examine
from quantising.config import QuantiseConfig
from quantising.methods import llm_compressor as process
from quantising.run import check, quantise
from tests.support.pruning import build, magnitude
from tests.support.sweeps import rows

TEXTS = {"mine": lambda samples, seed: iter(["w1 w2 w3 w4 w5"] * samples)}
JOB = """
import json, shutil, sys
from pathlib import Path
from safetensors.numpy import load_file, save_file

request = json.loads(Path(sys.argv[1]).read_text())
source, out = Path(request["source"]), Path(request["out"])
assert "REAPPruningModifier" in request["recipe"], request["recipe"]
made = {}
for name, tensor in load_file(source / "model.safetensors").items():
    block, experts, rest = name.partition(".experts.")
    number, _, end = rest.partition(".")
    if not experts:
        made[name] = tensor
    elif number not in ("1", "3"):
        left = int(number) - sum(int(number) > gone for gone in (1, 3))
        made[f"{block}.experts.{left}.{end.replace('w1', 'gate_proj')}"] = tensor
MORE
save_file(made, out / "model.safetensors")
shutil.copy(source / "config.json", out)
Path(request["answer"]).write_text(json.dumps({"llmcompressor": "1"}))
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "environment", lambda: sys.executable)

    def give(more):
        script = tmp_path / "job.py"
        script.write_text(JOB.replace("MORE", more))
        monkeypatch.setattr(process, "_JOB", script)

    return give


@pytest.fixture(scope="module")
def mixtures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixtures")
    for name in ("qwen3_moe", "mixtral", "qwen3"):
        eight = {"num_local_experts": 8} if name == "mixtral" else {}
        build(name, folder / name, torch.float32, **eight)
    return folder


def config(source, **changes):
    calibration = {"source": "mine", "samples": 4, "sequence_length": 16}
    given = {"source": source, "method": "reap", "experts": 0.25}
    return QuantiseConfig(**given, calibration=calibration, **changes)


@pytest.mark.parametrize("name", ["qwen3_moe", "mixtral"])
def test_what_stays_is_the_source(mixtures, tmp_path, job, name):
    job("")
    source, out = mixtures / name, tmp_path / "out"
    removed = quantise(config(source), out, sources=TEXTS).removed
    assert (removed.unit, removed.of, {*removed.gone}) == ("experts", 8, {"1,3"})
    dense, made = (load_file(each / "model.safetensors") for each in (source, out))
    kept = [0, 2, 4, 5, 6, 7]
    routers = [each for each in dense if each.endswith(".gate.weight")]
    for router in routers:
        assert torch.equal(made[router], dense[router][kept])
        block = router.removesuffix("gate.weight")
        for new, old in enumerate(kept):
            for end in ("w1", "w2", "w3", "gate_proj", "up_proj", "down_proj"):
                one = made.get(f"{block}experts.{new}.{end}.weight")
                other = dense.get(f"{block}experts.{old}.{end}.weight")
                assert one is other is None or torch.equal(one, other)
    assert len(dense) - len(made) == 2 * 3 * len(routers)
    before, after = (
        json.loads((each / "config.json").read_text()) for each in (source, out)
    )
    assert after == before | {"num_local_experts": 6}
    assert examine(out).problems == []
    info = inspect_checkpoint(out)
    assert (info.method, info.pattern, info.requested_sparsity, info.calibration) == (
        "reap",
        "experts",
        0.25,
        "mine",
    )
    assert 0.1 < info.sparsity < 0.25
    check(config(source), out, sources=TEXTS)  # the same job again


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ("made = load_file(source / 'model.safetensors')", "8 of 8 are left, 8 of"),
        ("for name in made: made[name] += 'experts.2.' in name", "6 of 8 are left, 5"),
        (
            "made = {name: made[name] for name in made if 'layers.2' not in name}",
            "0 of",
        ),
    ],
)
def test_other_experts_are_refused(mixtures, tmp_path, job, more, reason):
    job(more)
    with pytest.raises(JobError, match=reason) as caught:
        quantise(config(mixtures / "qwen3_moe"), tmp_path / "out", sources=TEXTS)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_verify_sees_another_expert(mixtures, tmp_path, job):
    job("")
    out = tmp_path / "out"
    quantise(config(mixtures / "qwen3_moe"), out, sources=TEXTS)
    whole = load_file(out / "model.safetensors")
    for changed, part in (
        ("mlp.gate.weight", "mlp.gate.weight is not what stays of"),
        ("experts.0.up_proj.weight", "is not what stays of"),
        ("experts.0.", "[6, 6] experts should be left, and [5, 5] are"),
    ):
        tensors = {
            name: tensor + name.endswith(changed)
            for name, tensor in whole.items()
            if changed[-1] != "." or changed not in name
        }
        save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
        assert part in "\n".join(examine(out).problems)


SENSELESS = """
experts: null | experts: method reap needs a share, as 0.25
experts: 0 | experts: 0.0 is not a share between 0 and 1
experts: 1 | experts: 1.0 is not a share between 0 and 1
scheme: W4A16 | scheme: 'W4A16' means nothing with reap
ignore: [a] | ignore: ('a',) means nothing with reap
group_size: 64 | group_size: 64 means nothing with reap
recipe: 'a: b' | recipe: method reap takes none
method: gptq, scheme: W4A16 | experts: method gptq removes none
calibration: null | calibration: method 'reap' needs a source
"""


@pytest.mark.parametrize(("fields", "part"), rows(SENSELESS))
def test_senseless_share_is_refused(fields, part):
    given = config(Path()).model_dump() | fields
    with pytest.raises(ValidationError) as caught:
        QuantiseConfig(**given)
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("name", "share", "part"),
    [
        ("qwen3", 0.25, "the model has no experts to remove"),
        ("mixtral", 0.1, "experts: 0.1 removes 0 of 8 experts"),
        ("mixtral", 0.9, "experts: 0.9 removes 7 of 8 experts"),
    ],
)
def test_impossible_model_is_refused(mixtures, tmp_path, name, share, part):
    wanted = config(mixtures / name).model_copy(update={"experts": share})
    with pytest.raises(InputError) as caught:
        check(wanted, tmp_path / "out", sources=TEXTS)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_pruned_mixture_is_refused(mixtures, tmp_path):
    pruned = tmp_path / "pruned"
    prune(magnitude(mixtures / "mixtral"), pruned)
    with pytest.raises(InputError, match="needs a model that is not pruned"):
        check(config(pruned), tmp_path / "out", sources=TEXTS)
