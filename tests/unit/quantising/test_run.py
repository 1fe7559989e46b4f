"""A quantisation as a job: complete or absent, the same job again is a look, and
provenance is kept."""

import json
import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from evaluator.checkpoints.info import inspect_checkpoint
from evaluator.checkpoints.manifests import QuantiseManifest, read_manifest
from evaluator.core.errors import InputError
from pruning.config import PruneConfig
from pruning.run import prune
from quantising.config import QuantiseConfig
from quantising.methods import rounding
from quantising.run import check, quantise
from tests.support.quantised import dequantised
from tests.support.sweeps import rows


def config(source: Path, **changes) -> QuantiseConfig:
    return QuantiseConfig(
        **{"source": source, "method": "rtn", "scheme": "FP8_DYNAMIC", **changes}
    )


def test_finished_job_is_not_repeated(source, tmp_path, monkeypatch):
    out = tmp_path / "out"
    first = quantise(config(source), out, provenance={"commit": "abc"})
    assert read_manifest(out, QuantiseManifest) == first
    assert first.provenance == {"commit": "abc"}
    assert "compressed-tensors" in first.versions
    monkeypatch.setattr(rounding, "write", None)
    assert quantise(config(source), out) == first
    check(config(source), out)
    check(config(source), out, source_to_come=True)
    for changes, field in (
        ({"scheme": "W8A8"}, "scheme"),
        ({"ignore": ("re:.*up_proj",)}, "ignore"),
    ):
        with pytest.raises(
            InputError, match=f"another job's checkpoint \\(field {field} is"
        ):
            check(config(source, **changes), out)
    (out / "model.safetensors").unlink()
    with pytest.raises(InputError, match="lists this file, but it is missing"):
        check(config(source), out)
    document = json.loads((out / "quantise_manifest.json").read_text())
    changed = {**document, "files": {"../elsewhere": ""}}
    (out / "quantise_manifest.json").write_text(json.dumps(changed))
    with pytest.raises(InputError, match="is not in its directory"):
        check(config(source), out)


def test_pruned_then_quantised_keeps_both(source, tmp_path):
    wanda = {"source": "mine", "samples": 8, "sequence_length": 32}
    texts = {
        "mine": lambda samples, seed: iter(
            ["The town of Karo lies on the river Belu."] * samples
        )
    }
    pruned, out = tmp_path / "pruned", tmp_path / "out"
    prune(
        PruneConfig(source=source, method="wanda", sparsity=0.5, calibration=wanda),
        pruned,
        sources=texts,
    )
    quantise(config(pruned), out)
    info = inspect_checkpoint(out)
    assert (info.method, info.pattern) == (
        "wanda + rtn",
        "unstructured + FP8 (rtn, per channel)",
    )
    assert (info.sparsity, info.calibration) == (0.5, "mine")
    online = tmp_path / "online"
    quantise(config(pruned, method="online", scheme="fp8_per_channel"), online)
    assert inspect_checkpoint(online).method == "wanda + online"


@pytest.mark.parametrize("scheme", ["W4A16_ASYM", "W8A8", "FP8_BLOCK"])
def test_manifest_states_what_was_written(source, tmp_path, scheme):
    """Rounding makes more zeros, and keeps those of the pattern."""
    pruned, out = tmp_path / "pruned", tmp_path / "out"
    before = prune(
        PruneConfig(source=source, method="magnitude", pattern="2:4"), pruned
    )
    manifest = quantise(
        config(pruned, scheme=scheme, group_size=16 if "16" in scheme else None), out
    )
    values_of = dequantised(out)
    zeros = weights = 0
    for each in before.matrices:
        values = values_of(each.name.removesuffix(".weight"))
        zeros, weights = zeros + int((values == 0).sum()), weights + values.numel()
    assert (manifest.pattern, manifest.measured_sparsity) == ("2:4", zeros / weights)
    info = inspect_checkpoint(out)
    assert (info.sparsity, info.requested_sparsity, info.notes) == (
        zeros / weights,
        0.5,
        (),
    )


def test_removed_layers_stay_removed(source, tmp_path):
    pruned, out = tmp_path / "pruned", tmp_path / "out"
    before = prune(PruneConfig(source=source, method="drop", pattern="1"), pruned)
    manifest = quantise(config(pruned), out)
    assert (manifest.pattern, manifest.measured_sparsity) == (
        before.pattern,
        before.measured_sparsity,
    )
    info = inspect_checkpoint(out)
    assert (info.sparsity, info.notes) == (before.measured_sparsity, ())
    dense = quantise(config(source), tmp_path / "dense")
    assert (dense.pattern, dense.measured_sparsity) == (None, None)


def test_online_is_a_linked_directory(source, tmp_path):
    dense = inspect_checkpoint(source)
    digests = {dense.weights_digest}
    for scheme in ("fp8_per_channel", "fp8_per_tensor"):
        out = tmp_path / scheme
        quantise(config(source, method="online", scheme=scheme), out)
        assert (out / "model.safetensors").is_symlink()
        info = inspect_checkpoint(out)
        assert (info.method, info.bytes, info.dtype) == (
            "online",
            dense.bytes,
            dense.dtype,
        )
        assert info.architecture != dense.architecture
        digests.add(info.weights_digest)
    assert info.pattern == "FP8 (online, per tensor)"
    assert len(digests) == 3
    with pytest.raises(InputError, match="already quantised; compress the dense"):
        quantise(
            config(tmp_path / "fp8_per_tensor", method="online", scheme="mxfp8"),
            tmp_path / "again",
        )


SENSELESS = """
scheme: W4A17 | unknown scheme of method rtn 'W4A17'; did you mean 'W4A16'?
group_size: 64 | group_size: 64 means nothing with rtn
method: gptq, scheme: W4A16 | calibration: method 'gptq' needs a source
method: recipe, scheme: W4A16 | recipe: method recipe needs one
recipe: 'quant_stage: {}' | recipe: method rtn takes none
"""


@pytest.mark.parametrize(("changes", "part"), rows(SENSELESS))
def test_senseless_configuration_is_refused(source, changes, part):
    with pytest.raises(ValidationError, match=re.escape(part)):
        config(source, **changes)
