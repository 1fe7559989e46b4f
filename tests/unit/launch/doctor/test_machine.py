"""What the machine says of itself."""

from __future__ import annotations

from evaluator.engine.processor import instruction_sets, usable_cores
from launch.doctor.machine import gpus, this_machine
from tests.support.doctor import CPU, GPU

CPUINFO = (
    "processor\t: 0\nmodel name\t: Some\nflags\t\t: fpu sse2 avx2 fma avx512f amx_bf16\n\nprocessor\t: 1\nflags\t: x\n"
)


def test_gpus_as_nvidia_smi_lists_them():
    listing = "NVIDIA H100 80GB HBM3, 81559, 580.65.06, 9.0\nNVIDIA GB10, [N/A], 580.65.06, 12.1\n"
    one, other = gpus(listing)
    assert (one.name, one.memory_mib, one.driver, one.capability) == (
        "NVIDIA H100 80GB HBM3",
        81559,
        "580.65.06",
        "9.0",
    )
    assert other.memory_mib is None  # it shares the processor's
    assert gpus("") == gpus("NVIDIA-SMI has failed\n") == ()


def test_instruction_sets_are_those_that_kernels_choose_by():
    assert instruction_sets(CPUINFO) == ("avx2", "fma", "avx512f", "amx_bf16")
    assert instruction_sets("Features\t: fp asimd sve") == ("asimd", "sve")
    assert instruction_sets("") == ()


def test_this_machine_and_words_for_machines():
    here = dict(this_machine().lines())
    assert f"{usable_cores()} cores" in here["processor"]
    assert "torch" in here["versions"]
    assert dict(CPU.lines())["GPU"] == "none"
    assert dict(GPU.lines())["GPU 0"] == "a GPU, 80 GiB, driver 580.1, sm 9.0"
