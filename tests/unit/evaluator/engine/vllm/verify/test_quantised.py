"""What is said of quantised checkpoints before anything starts, with rehearsals that
were written by hand."""

from collections.abc import Callable, Mapping

import pytest

from evaluator.checkpoints.info import CheckpointInfo, inspect_checkpoint
from evaluator.checkpoints.quantisation import read_quantisation
from evaluator.core.errors import InputError
from evaluator.engine import processor as engine_processor
from evaluator.engine.config import EngineConfig, check_served
from evaluator.engine.vllm import schemes
from evaluator.engine.vllm.verify import rehearsal
from evaluator.engine.vllm.verify.rehearsal import Rehearsal
from tests.support.checkpoint_files import tensors, write
from tests.support.quantised import (
    LAYOUTS,
    compressed_tensors,
    integers,
    with_quantisation,
)

pytestmark = pytest.mark.usefixtures("any_tensors")

AVX2, AVX512 = ("avx2", "fma"), ("avx2", "avx512f", "avx512_vnni")
AMX = (*AVX512, "amx_tile", "amx_int8")
Rehearsed = Callable[[Mapping[str, Rehearsal], bool], list[str]]
KERNEL = "CPUInt8ScaledMMLinearKernel"


@pytest.fixture
def models(tmp_path):
    base = write(tmp_path / "base")
    other = with_quantisation(
        write(tmp_path / "small", tensors(seed=1)), LAYOUTS["w8a8"].config
    )
    return [inspect_checkpoint(base), inspect_checkpoint(other)]


@pytest.fixture
def rehearsals(monkeypatch):
    """Say what each dtype's rehearsal finds, and whether vLLM's build is one for
    CPUs; returns the list of dtypes that will have been rehearsed. The processor has
    AVX-512 and VNNI."""

    def say(found, on_cpu):
        asked: list[str] = []

        def rehearse(checkpoint, config):
            asked.append(config.dtype)
            return found[config.dtype]

        monkeypatch.setattr(rehearsal, "rehearse", rehearse)
        monkeypatch.setattr(rehearsal, "serves_cpus", lambda: on_cpu)
        monkeypatch.setattr(engine_processor, "instruction_sets", lambda: AVX512)
        return asked

    return say


def refusal(models: list[CheckpointInfo], *, here: bool = True, **settings: str) -> str:
    with pytest.raises(InputError) as caught:
        check_served(EngineConfig.model_validate(settings), models, here=here)
    assert "\n" not in str(caught.value)
    assert str(models[1].path) in str(caught.value)
    return str(caught.value).partition(": ")[2]


def test_rehearsal_names_scheme_dtype_kernel(models, rehearsals):
    """Scheme dtype and kernel are named and what needs no rehearsal."""
    asked = rehearsals(
        {"bfloat16": Rehearsal(dtype="bfloat16", kernels=(KERNEL,))}, True
    )
    said = check_served(EngineConfig(dtype="bfloat16"), models, here=True)
    assert said == (f"small: W8A8 (per channel), computed in bfloat16 by {KERNEL}",)
    assert asked == ["bfloat16"]
    # a dense one needs no word
    assert check_served(EngineConfig(dtype="bfloat16"), models[:1], here=True) == ()
    rehearsals(
        {
            "auto": Rehearsal(reason="expect A to be bfloat16"),
            "bfloat16": Rehearsal(dtype="bfloat16"),
        },
        True,
    )
    assert (
        refusal(models)
        == "W8A8 (per channel) in float32: expect A to be bfloat16; set --dtype"
        " bfloat16 (engine.dtype in a sweep file), which is then that of its"
        " base too"
    )
    asked = rehearsals({"bfloat16": Rehearsal(dtype="bfloat16")}, True)
    with_quantisation(
        models[1].path,
        {"quant_method": "gptq", "bits": 4, "group_size": -1, "desc_act": True},
    )
    check_served(
        EngineConfig(dtype="bfloat16"),
        [models[0], inspect_checkpoint(models[1].path)],
        here=True,
    )
    assert asked == ["bfloat16"]
    asked = rehearsals({}, True)
    assert check_served(EngineConfig(), models, here=False) == ()
    assert asked == []
    assert check_served(EngineConfig(kind="torch"), models[:1], here=False) == ()


BROKEN = Rehearsal(
    reason=(
        "AttributeError: '_OpNamespace' '_C' object has no attribute 'cpu_gemm_wna16'"
    )
)
UNSUPPORTED = "vLLM has no kernel for this scheme and dtype here; it needs a"
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True}
PACKED = compressed_tensors(
    "pack-quantized", integers(4, "group", group=32, actorder="group")
)
ORDERED = (
    "vLLM has removed groups in activation order (desc_act, actorder), on every"
    " processor and GPU; quantise again with desc_act: false or a static order"
)
BITSANDBYTES = {"quant_method": "bitsandbytes", "load_in_4bit": True}
PLUGIN = (
    "vLLM reads bitsandbytes with the package vllm-bnb-plugin, which is not installed"
)
TORCH = "engine torch serves no quantised checkpoint; use --engine vllm"
NO_KERNEL = "vLLM has no kernel for this scheme here"
WRONG_DTYPE = (
    "vLLM has no kernel for this scheme and dtype here; set --dtype bfloat16"
    " (engine.dtype in a sweep file), which is then that of its base too"
)
NEWER = "processor with AVX-512, or a GPU"


@pytest.mark.parametrize(
    ("config", "settings", "processor", "rehearsed", "said"),
    [
        (
            LAYOUTS["w4a16"].config,
            {},
            AVX2,
            False,
            f"W4A16 (group 32): {NO_KERNEL}; it needs a {NEWER}",
        ),
        (
            LAYOUTS["w4a16"].config,
            {"dtype": "float32"},
            AVX512,
            False,
            f"in float32: {WRONG_DTYPE}",
        ),
        (
            LAYOUTS["w8a8"].config,
            {},
            AVX512,
            True,
            f"W8A8 (per channel) in float32: {UNSUPPORTED} GPU",
        ),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4"},
            {},
            AVX2,
            False,
            f"NVFP4: {NO_KERNEL}; it needs a GPU",
        ),
        (GPTQ, {}, AVX2, False, f"W4A16 (gptq, group 128, act order): {ORDERED}"),
        (PACKED, {}, AVX2, False, f"W4A16 (group 32, act order): {ORDERED}"),
        (BITSANDBYTES, {}, AVX2, False, f"FP4 (rtn): {PLUGIN}"),
        (
            LAYOUTS["w8a8"].config,
            {"kind": "torch"},
            AVX2,
            False,
            f"W8A8 (per channel): {TORCH}",
        ),
    ],
)
def test_unserved_scheme_says_remedy(
    models, rehearsals, monkeypatch,
    config, settings, processor, rehearsed, said,
):  # fmt: skip
    asked = rehearsals({"auto": BROKEN, "bfloat16": BROKEN}, True)
    monkeypatch.setattr(engine_processor, "instruction_sets", lambda: processor)
    with_quantisation(models[1].path, config)
    changed = [models[0], inspect_checkpoint(models[1].path)]
    assert refusal(changed, **settings).endswith(said)
    assert asked == (["auto", "bfloat16"] if rehearsed else [])
    if said.endswith(ORDERED):
        assert refusal(changed, here=False).endswith(said)


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        (
            "RuntimeError: _C::static_scaled_fp8_quant() expected at most 0 arguments",
            UNSUPPORTED.partition(";")[0],
        ),
        (
            (
                "ValueError: Failed to find a kernel that can implement the layer."
                " Reasons: A"
            ),
            UNSUPPORTED.partition(";")[0],
        ),
        ("words " * 100, "words " * 49 + "..."),
    ],
)
def test_reason_hides_kernel_names(models, rehearsals, reason, shown):
    """A reason has no names of kernels and whole words."""
    rehearsals(
        {"bfloat16": Rehearsal(reason=reason), "float32": Rehearsal(reason=reason)},
        True,
    )
    assert f" in bfloat16: {shown}; it needs " in refusal(models, dtype="bfloat16")
    with pytest.raises(InputError) as caught:
        check_served(EngineConfig(dtype="bfloat16"), models, here=True)
    assert str(caught.value.__cause__) == reason  # for --debug


@pytest.mark.parametrize(
    # with AVX2, with AVX-512 and VNNI, and with AMX; None: a rehearsal tells
    ("layout", "settled"),
    [
        ("fp8", (None, None, None)),
        ("fp8-tensor", ((), (), ("bfloat16",))),
        ("fp8-block", ((), (), ("bfloat16",))),
        ("w8a8", ((), ("float32", "bfloat16"), ("bfloat16",))),
        *(
            (name, ((), ("bfloat16",), ("bfloat16",)))
            for name in ("w4a16", "gptq", "awq")
        ),
        ("w8a16", ((), (), ())),
        ("fp8_per_channel", (("bfloat16",),) * 3),
        ("fp8_per_tensor", ((), (), ("bfloat16",))),
        ("mxfp4", ((), (), None)),
    ],
)
def test_documented_table_needs_no_rehearsal(layout, settled, tmp_path, monkeypatch):
    """The table of the documentation is known without a rehearsal."""
    online = {"quantization_config": {"quant_method": "online", "scheme": layout}}
    config = (
        {"quantization_config": LAYOUTS[layout].config} if layout in LAYOUTS else online
    )
    quantisation = read_quantisation(tmp_path, config)
    assert (
        tuple(schemes.cpu_dtypes(quantisation, each) for each in (AVX2, AVX512, AMX))
        == settled
    )
    monkeypatch.setattr(engine_processor, "instruction_sets", lambda: AVX512)
    assert schemes.cpu_auto(quantisation) == (
        "bfloat16" if settled[1] == ("bfloat16",) else "float32"
    )
    assert schemes.cpu_dtypes(quantisation, ("asimd",)) is None
    assert schemes.cpu_auto(None) == "float32"
