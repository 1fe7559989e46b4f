"""What is said of quantised checkpoints before anything starts."""

from collections.abc import Callable
from typing import Any

import pytest

from evaluator.checkpoints.info import inspect_checkpoint
from evaluator.checkpoints.quantisation import read_quantisation
from evaluator.core.errors import InputError
from evaluator.engine import processor
from evaluator.engine.config import EngineConfig, check_served
from evaluator.engine.vllm import quantised, schemes
from tests.support.checkpoint_files import write
from tests.support.quantised import (
    LAYOUTS,
    compressed_tensors,
    integers,
    with_quantisation,
)
from tests.support.sweeps import lines

pytestmark = pytest.mark.usefixtures("any_tensors")

AVX2, AVX512 = ("avx2", "fma"), ("avx2", "avx512f", "avx512_vnni")
AMX = (*AVX512, "amx_tile", "amx_int8")


@pytest.fixture
def checked(tmp_path, monkeypatch) -> Callable[..., tuple[str, ...]]:
    """Check a checkpoint with this quantization_config."""

    def check(
        layout: Any, instructions=AVX512, *, here=True, **settings: Any
    ) -> tuple[str, ...]:
        monkeypatch.setattr(processor, "instruction_sets", lambda: instructions)
        monkeypatch.setattr(quantised, "serves_cpus", lambda: True)
        config = LAYOUTS[layout].config if isinstance(layout, str) else layout
        small = with_quantisation(write(tmp_path / "small"), config)
        info = inspect_checkpoint(small)
        return check_served(EngineConfig.model_validate(settings), info, here=here)

    return check


def test_one_group_needs_no_order(checked):
    """With one group to a row, GPTQ's order changes nothing."""
    config = {"quant_method": "gptq", "bits": 4, "group_size": -1, "desc_act": True}
    assert checked(config) == checked("w8a8") == ()


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True}
PACKED = compressed_tensors(
    "pack-quantized", integers(4, "group", group=32, actorder="group")
)
ORDERED = (
    "vLLM has removed groups in activation order (desc_act, actorder), on every"
    " processor and GPU; quantise again with desc_act: false or a static order"
)
NO_KERNEL = "vLLM has no kernel for this scheme here; it needs a"


@pytest.mark.parametrize(
    ("layout", "settings", "processor", "said"),
    [
        ("w4a16", {}, AVX2, f"{NO_KERNEL} processor with AVX-512, or a GPU"),
        (
            "w4a16",
            {"dtype": "float32"},
            AVX512,
            (
                "in float32: vLLM has no kernel for this scheme and dtype here; set"
                " --dtype bfloat16 (engine.dtype in a sweep file), which is then that"
                " of its base too"
            ),
        ),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4"},
            {},
            AVX2,
            f"NVFP4: {NO_KERNEL} GPU",
        ),
        (GPTQ, {}, AVX2, f"W4A16 (gptq, group 128, act order): {ORDERED}"),
        (PACKED, {"here": False}, AVX2, f"W4A16 (group 32, act order): {ORDERED}"),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True},
            {},
            AVX2,
            (
                "FP4 (rtn): vLLM reads bitsandbytes with the package vllm-bnb-plugin,"
                " which is not installed"
            ),
        ),
        (
            "w8a8",
            {"kind": "torch"},
            AVX2,
            "engine torch serves no quantised checkpoint; use --engine vllm",
        ),
    ],
)
def test_unserved_scheme_says_remedy(checked, layout, settings, processor, said):
    with pytest.raises(InputError) as caught:
        checked(layout, processor, **settings)
    assert str(caught.value).endswith(said)


# with AVX2, with AVX-512 and VNNI, and with AMX; ?: the load tells
SETTLED = """
fp8 | ? ? ?
fp8-tensor | any any bfloat16
w8a8 | any float32,bfloat16 bfloat16
w4a16 | any bfloat16 bfloat16
w8a16 | any any any
w4a16+w8a8 | any bfloat16 bfloat16
w8a8+w8a16 | any any any
fp8+w8a8 | any float32,bfloat16 bfloat16
fp8_per_channel | bfloat16 bfloat16 bfloat16
fp8_per_tensor | any any bfloat16
fp8_per_block | any any ?
mxfp4 | any any ?
"""
MEANS: dict[str, Any] = {"?": None, "any": ()}


@pytest.mark.parametrize(("layout", "dtypes"), lines(SETTLED))
def test_table_is_the_documented_one(layout, dtypes, tmp_path, monkeypatch):
    settled = tuple(MEANS.get(each, tuple(each.split(","))) for each in dtypes.split())
    config = {"quant_method": "online", "scheme": layout}
    if stored := [
        LAYOUTS[name].config for name in layout.split("+") if name in LAYOUTS
    ]:
        config = dict(stored[0])
    if stored[1:]:  # groups of several schemes
        groups = [each["config_groups"]["group_0"] for each in stored]
        config["config_groups"] = {str(n): group for n, group in enumerate(groups)}
    quantisation = read_quantisation(tmp_path, {"quantization_config": config})
    found = [schemes.cpu_dtypes(quantisation, each) for each in (AVX2, AVX512, AMX)]
    assert tuple(found) == settled
    monkeypatch.setattr(processor, "instruction_sets", lambda: AVX512)
    chosen = "bfloat16" if settled[1] == ("bfloat16",) else "float32"
    assert schemes.cpu_auto(quantisation) == chosen
    assert schemes.cpu_dtypes(quantisation, ("asimd",)) is None
