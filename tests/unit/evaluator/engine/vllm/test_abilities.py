"""What is needed of a vLLM, with modules that stand in for those of other versions."""

import sys
from dataclasses import make_dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from evaluator.engine.vllm import abilities as module
from evaluator.engine.vllm import start
from evaluator.engine.vllm.abilities import check_fields, check_runner, check_version, check_vllm
from tests.support.engines import needs_vllm
from tests.support.sweeps import refused

Modules = dict[str, ModuleType]
KERNEL = SimpleNamespace(fn=lambda output_ptr, logits_ptr, logits_stride, token_ids_ptr, vocab_size, BLOCK_SIZE: None)


def struct(name: str, fields: tuple[str, ...], defaults: int = 0) -> type:
    """A class that takes these keywords; the last ones have defaults."""
    required = len(fields) - defaults
    return make_dataclass(name, [*fields[:required], *((each, Any, None) for each in fields[required:])])


@pytest.fixture
def vllm(monkeypatch):
    made: Modules = {}
    for needed in (module._NEEDED, module._NEEDED_BY_V1, module._NEEDED_BY_V2):
        for name, wanted in needed.items():
            made.setdefault(name, ModuleType(name))
            for owner, _, method in (each.partition(".") for each in wanted):
                setattr(vars(made[name]).setdefault(owner, SimpleNamespace()), method or "its", None)
            monkeypatch.setitem(sys.modules, name, made[name])
    made[module._V2_LOGPROB] = ModuleType(module._V2_LOGPROB)
    made[module._V2_LOGPROB]._ranks_kernel = KERNEL
    monkeypatch.setitem(sys.modules, module._V2_LOGPROB, made[module._V2_LOGPROB])
    made["vllm"].EngineArgs = struct("EngineArgs", ("model", "dtype"))
    made["vllm"].SamplingParams = struct("SamplingParams", (*module._SAMPLING, *module._SAMPLING_BY_V2))
    made["vllm.v1.engine"].EngineCoreRequest = struct("EngineCoreRequest", (*module._REQUEST, "priority"), 1)
    return made


def test_an_older_vllm_is_one_line_and_newer_ones_are_looked_into():
    for version in ("0.30.0", "0.33.1.dev7+gabc", "1.0.0"):
        check_version(version)
    old = refused(check_version, "0.9.2.post1")
    assert old.startswith("engine 'vllm': vLLM 0.9.2.post1 is too old: versions 0.30 to 0.33 are")


@pytest.mark.parametrize("v2", [False, True])
def test_a_vllm_without_the_other_runner_will_do(vllm, monkeypatch, v2):
    for name in module._NEEDED_BY_V1 if v2 else module._NEEDED_BY_V2:
        if name not in module._NEEDED:
            monkeypatch.setitem(sys.modules, name, None)  # importing it raises ModuleNotFoundError
    check_vllm("0.34.0")
    check_runner("0.34.0", v2=v2)
    told = refused(check_runner, "0.34.0", v2=not v2)
    assert "vLLM 0.34.0 lacks vllm." in told or "vLLM 0.34.0 cannot be imported" in told


def test_names_modules_and_libraries_that_are_missing_are_one_line(vllm, monkeypatch):
    name = module._NEEDED["vllm.v1.outputs"][0]
    wanted = getattr(vllm["vllm.v1.outputs"], name)
    delattr(vllm["vllm.v1.outputs"], name)
    lacking = f"lacks vllm.v1.outputs.{name}; versions 0.30 to 0.33 are supported"
    assert refused(check_vllm, "0.40.0") == f"engine 'vllm': vLLM 0.40.0 {lacking}"
    setattr(vllm["vllm.v1.outputs"], name, wanted)
    monkeypatch.setitem(module._NEEDED, "vllm.v1.moved_away", ("Anything",))
    sys.modules["vllm"].__path__ = []  # a package that holds no such module
    monkeypatch.delitem(sys.modules, "vllm.v1", raising=False)
    assert "lacks vllm.v1.moved_away;" in refused(check_vllm, "0.40.0")

    def broken(name):
        raise ImportError("libcudart.so.13: cannot open shared object file\nNo such file or directory")

    monkeypatch.setattr(module.importlib, "import_module", broken)
    assert refused(check_vllm, "0.40.0").startswith("engine 'vllm': vLLM 0.40.0 cannot be imported: libcudart.so.13: ")


@pytest.mark.parametrize(("v2", "method"), [(False, "get_computed_blocks"), (True, "take_kv_cache_block_copies")])
def test_a_method_that_moved_is_one_line(vllm, v2, method):
    delattr(vllm["vllm.v1.core.kv_cache_manager"].KVCacheManager, method)
    told = refused(check_runner if v2 else check_vllm, "0.40.0", **({"v2": True} if v2 else {}))
    assert f"vLLM 0.40.0 lacks vllm.v1.core.kv_cache_manager.KVCacheManager.{method}; versions" in told


def test_parameters_that_moved_and_a_v2_runner_that_replays_nothing_are_one_line(vllm):
    right = vllm["vllm"].SamplingParams
    vllm["vllm"].SamplingParams = struct("SamplingParams", tuple(n for n in module._SAMPLING if n != "flat_logprobs"))
    assert "lacks SamplingParams(flat_logprobs=);" in refused(check_vllm, "0.40.0")
    vllm["vllm"].SamplingParams = right
    wider = struct("EngineCoreRequest", (*module._REQUEST, "tenant", "priority"), 1)
    vllm["vllm.v1.engine"].EngineCoreRequest = wider
    assert refused(check_vllm, "0.40.0").endswith("wants a field of EngineCoreRequest that is unknown here: tenant")
    told = refused(check_fields, "0.40.0", vllm["vllm"].EngineArgs, ["model", "logprobs_mode"])
    assert "vLLM 0.40.0 lacks EngineArgs(logprobs_mode=); versions 0.30" in told
    vllm["vllm"].SamplingParams = struct("SamplingParams", module._SAMPLING)
    check_runner("0.34.0", v2=False)
    assert "lacks SamplingParams(trace_decode_token_ids=);" in refused(check_runner, "0.34.0", v2=True)


@pytest.mark.parametrize("kernel", [None, lambda output_ptr, logits_ptr: None], ids=["none", "other parameters"])
def test_a_v2_runner_whose_ranks_cannot_be_replaced_is_one_line(vllm, monkeypatch, kernel):
    changed = ModuleType(module._V2_LOGPROB)
    changed._ranks_kernel = kernel
    monkeypatch.setitem(sys.modules, module._V2_LOGPROB, changed)
    wanted = "lacks vllm.v1.worker.gpu.sample.logprob._ranks_kernel(output_ptr, "
    assert wanted in refused(check_runner, "0.40.0", v2=True)
    changed._ranks_kernel = KERNEL
    check_runner("0.40.0", v2=True)


class TestInstalledVllm:
    pytestmark = needs_vllm

    def test_it_has_what_is_needed(self):
        check_vllm(start.installed_version())
        check_runner(start.installed_version(), v2=False)
