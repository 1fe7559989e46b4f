"""What is said of quantised checkpoints before anything starts, with rehearsals that were written by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from evaluator.checkpoints.info import CheckpointInfo, inspect_checkpoint
from evaluator.core.errors import InputError
from evaluator.engine.config import EngineConfig, check_served
from evaluator.engine.vllm.verify import rehearsal
from evaluator.engine.vllm.verify.rehearsal import Rehearsal
from tests.support.checkpoint_files import tensors, write
from tests.support.quantised import LAYOUTS, compressed_tensors, integers, with_quantisation

Rehearsed = Callable[[Mapping[str, Rehearsal], bool], list[str]]
KERNEL = "CPUInt8ScaledMMLinearKernel"


@pytest.fixture
def models(tmp_path: Path) -> list[CheckpointInfo]:
    """A base, and one that is quantised."""
    base = write(tmp_path / "base")
    other = with_quantisation(write(tmp_path / "small", tensors(seed=1)), LAYOUTS["w8a8"].config)
    return [inspect_checkpoint(base), inspect_checkpoint(other)]


@pytest.fixture
def rehearsals(monkeypatch: pytest.MonkeyPatch) -> Rehearsed:
    """Say what each dtype's rehearsal finds, and whether vLLM's build is one for CPUs; returns the list of dtypes that
    will have been rehearsed. The processor has AVX2 alone."""

    def say(found: Mapping[str, Rehearsal], on_cpu: bool) -> list[str]:
        asked: list[str] = []

        def rehearse(checkpoint: Path, config: EngineConfig) -> Rehearsal:
            asked.append(config.dtype)
            return found[config.dtype]

        monkeypatch.setattr(rehearsal, "rehearse", rehearse)
        monkeypatch.setattr(rehearsal, "serves_cpus", lambda: on_cpu)
        monkeypatch.setattr(rehearsal, "instruction_sets", lambda: ("avx2", "fma"))
        return asked

    return say


def refusal(models: list[CheckpointInfo], *, here: bool = True, **settings: str) -> str:
    with pytest.raises(InputError) as caught:
        check_served(EngineConfig.model_validate(settings), models, here=here)
    assert "\n" not in str(caught.value)
    assert str(models[1].path) in str(caught.value)
    return str(caught.value).partition(": ")[2]


def test_scheme_dtype_and_kernel_are_named(models: list[CheckpointInfo], rehearsals: Rehearsed) -> None:
    asked = rehearsals({"bfloat16": Rehearsal(dtype="bfloat16", kernels=(KERNEL,))}, True)
    said = check_served(EngineConfig(dtype="bfloat16"), models, here=True)
    assert said == (f"small: W8A8 (per channel), computed in bfloat16 by {KERNEL}",)
    assert asked == ["bfloat16"]
    assert check_served(EngineConfig(dtype="bfloat16"), models[:1], here=True) == ()  # a dense one needs no word


def test_a_dtype_that_works_here_is_named(models: list[CheckpointInfo], rehearsals: Rehearsed) -> None:
    rehearsals({"auto": Rehearsal(reason="expect A to be bfloat16"), "bfloat16": Rehearsal(dtype="bfloat16")}, True)
    assert refusal(models) == (
        "W8A8 (per channel) in float32: expect A to be bfloat16; set --dtype bfloat16 (engine.dtype in a sweep file), "
        "which is then that of its base too"
    )


def test_where_no_dtype_works_what_could_serve_it_is_named(models: list[CheckpointInfo], rehearsals: Rehearsed) -> None:
    broken = Rehearsal(reason="AttributeError: '_OpNamespace' '_C' object has no attribute 'cpu_gemm_wna16'")
    asked = rehearsals({"auto": broken, "bfloat16": broken}, True)
    with_quantisation(models[1].path, LAYOUTS["w4a16"].config)
    changed = [models[0], inspect_checkpoint(models[1].path)]
    assert refusal(changed) == (
        "W4A16 (group 32) in float32: vLLM has no kernel for this scheme and dtype here; it needs a processor with "
        "AVX-512, or a GPU"
    )
    assert asked == ["auto", "bfloat16"]
    rehearsals({"float32": broken, "bfloat16": broken}, True)
    with_quantisation(models[1].path, {"quant_method": "modelopt", "quant_algo": "NVFP4"})
    changed = [models[0], inspect_checkpoint(models[1].path)]
    assert refusal(changed, dtype="bfloat16").endswith("no kernel for this scheme and dtype here; it needs a GPU")


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        (
            "RuntimeError: _C::static_scaled_fp8_quant() expected at most 0 argument(s) but received 4",
            "vLLM has no kernel for this scheme and dtype here",
        ),
        (
            "ValueError: Failed to find a kernel that can implement the ScaledMM linear layer. Reasons: A cannot, B",
            "vLLM has no kernel for this scheme and dtype here",
        ),
        ("words " * 100, "words " * 49 + "..."),
    ],
)
def test_a_reason_has_no_names_of_kernels_and_whole_words(
    models: list[CheckpointInfo], rehearsals: Rehearsed, reason: str, shown: str
) -> None:
    rehearsals({"bfloat16": Rehearsal(reason=reason), "float32": Rehearsal(reason=reason)}, True)
    assert f" in bfloat16: {shown}; it needs " in refusal(models, dtype="bfloat16")
    with pytest.raises(InputError) as caught:
        check_served(EngineConfig(dtype="bfloat16"), models, here=True)
    assert str(caught.value.__cause__) == reason  # for --debug


def test_a_processor_that_has_the_instructions_is_not_told_to_get_them(
    models: list[CheckpointInfo], rehearsals: Rehearsed, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Rehearsal(reason="no attribute 'cpu_gemm_wna16'")
    rehearsals({"float32": broken, "bfloat16": broken}, True)
    monkeypatch.setattr(rehearsal, "instruction_sets", lambda: ("avx2", "avx512f", "avx512_vnni"))
    assert refusal(models, dtype="float32").endswith("; it needs a GPU")


@pytest.mark.parametrize("here", [True, False])
@pytest.mark.parametrize(
    ("config", "label"),
    [
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True},
            "W4A16 (gptq, group 128, act order)",
        ),
        (
            compressed_tensors("pack-quantized", integers(4, "group", group=32, actorder="group")),
            "W4A16 (group 32, act order)",
        ),
    ],
)
def test_an_activation_order_by_groups_is_served_nowhere(
    models: list[CheckpointInfo], rehearsals: Rehearsed, here: bool, config: Mapping[str, object], label: str
) -> None:
    asked = rehearsals({}, True)
    with_quantisation(models[1].path, config)
    changed = [models[0], inspect_checkpoint(models[1].path)]
    assert refusal(changed, here=here) == (
        f"{label}: vLLM has removed groups in activation order (desc_act, actorder), on every processor and GPU; "
        "quantise again with desc_act: false or a static order"
    )
    assert asked == []


def test_an_order_of_a_whole_row_changes_nothing(models: list[CheckpointInfo], rehearsals: Rehearsed) -> None:
    asked = rehearsals({"bfloat16": Rehearsal(dtype="bfloat16")}, True)
    with_quantisation(models[1].path, {"quant_method": "gptq", "bits": 4, "group_size": -1, "desc_act": True})
    check_served(EngineConfig(dtype="bfloat16"), [models[0], inspect_checkpoint(models[1].path)], here=True)
    assert asked == ["bfloat16"]


def test_a_driver_whose_engines_run_elsewhere_rehearses_nothing(
    models: list[CheckpointInfo], rehearsals: Rehearsed
) -> None:
    asked = rehearsals({}, True)
    assert check_served(EngineConfig(), models, here=False) == ()
    assert asked == []


def test_what_needs_a_plugin_names_it(models: list[CheckpointInfo], rehearsals: Rehearsed) -> None:
    asked = rehearsals({}, True)
    with_quantisation(models[1].path, {"quant_method": "bitsandbytes", "load_in_4bit": True})
    changed = [inspect_checkpoint(each.path) for each in models]
    assert refusal(changed) == (
        "FP4 (rtn): vLLM reads bitsandbytes with the package vllm-bnb-plugin, which is not installed"
    )
    assert asked == []


def test_the_oracle_serves_dense_checkpoints_only(models: list[CheckpointInfo]) -> None:
    assert refusal(models, kind="torch") == (
        "W8A8 (per channel): engine torch serves no quantised checkpoint; use --engine vllm"
    )
    assert check_served(EngineConfig(kind="torch"), models[:1], here=True) == ()
