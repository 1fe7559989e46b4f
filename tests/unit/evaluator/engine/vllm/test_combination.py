"""What makes an engine check itself again."""

from __future__ import annotations

from evaluator.engine.vllm.engine import environment_in_words

BUFFER = "VLLM_OBJECT_STORAGE_SHM_BUFFER_NAME"  # vLLM gives it another value in each process
KNOWN = {
    "VLLM_API_KEY",
    "VLLM_LOGGING_LEVEL",
    "VLLM_DISABLED_KERNELS",
    "NVIDIA_TF32_OVERRIDE",
    "LD_LIBRARY_PATH",
    BUFFER,
}
PLAIN = {"LD_LIBRARY_PATH": "/lib", "VLLM_API_KEY": "secret", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_DIST_IDENT": "17"}
PLAIN |= {BUFFER: "VLLM_OBJECT_STORAGE_SHM_BUFFER_4711"}


def test_variables_that_choose_kernels_make_another_combination_and_others_do_not():
    assert environment_in_words(PLAIN, KNOWN) == "nothing set"
    one, other = (environment_in_words(PLAIN | {"VLLM_DISABLED_KERNELS": value}, KNOWN) for value in ("a", "b"))
    assert one != other
    assert one.startswith("VLLM_DISABLED_KERNELS (")
    assert environment_in_words({"NVIDIA_TF32_OVERRIDE": "0"}, KNOWN).startswith("NVIDIA_TF32_OVERRIDE (")
