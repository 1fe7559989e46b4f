"""What a vLLM can do, asked of modules that stand in for those of other versions."""

from __future__ import annotations

import sys
from dataclasses import dataclass, make_dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from evaluator.engine.config import EngineConfig
from evaluator.engine.vllm import abilities as module
from evaluator.engine.vllm import start
from evaluator.engine.vllm.abilities import Abilities, abilities, check_arguments, check_v2, fields_of
from evaluator.errors import InputError
from tests.support.engines import needs_vllm

Modules = dict[str, ModuleType]


class Struct:
    """A class with fields as msgspec has them."""

    def __init_subclass__(cls, fields: tuple[str, ...], defaults: int) -> None:
        cls.__struct_fields__ = fields
        cls.__struct_defaults__ = (None,) * defaults


def struct(name: str, fields: tuple[str, ...], defaults: int = 0) -> type[Struct]:
    return type(name, (Struct,), {}, fields=fields, defaults=defaults)


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Modules:
    """A vLLM with everything that is needed, and trace replay."""
    made: Modules = {}
    for name, wanted in module._NEEDED.items():
        made[name] = ModuleType(name)
        for each in wanted:
            setattr(made[name], each, object())
        monkeypatch.setitem(sys.modules, name, made[name])
    made["vllm"].EngineArgs = make_dataclass("EngineArgs", ["model", "dtype", "enable_trace_replay"])
    made["vllm"].SamplingParams = struct("SamplingParams", (*module._SAMPLING, "trace_decode_token_ids"))
    made["vllm.envs"] = ModuleType("vllm.envs")
    made["vllm.envs"].environment_variables = {module.BATCH_INVARIANT: bool}
    monkeypatch.setitem(sys.modules, "vllm.envs", made["vllm.envs"])
    made["vllm.v1.engine"].EngineCoreRequest = struct("EngineCoreRequest", (*module._REQUEST, "priority"), 1)
    return made


def test_a_vllm_with_everything(vllm):
    assert abilities("0.32.0") == Abilities(trace_replay=True, batch_invariance=True)


def test_batch_invariance_is_a_variable_of_the_environment(vllm):
    vllm["vllm.envs"].environment_variables = {}
    assert not abilities("0.9.0").batch_invariance


def test_trace_replay_takes_an_engine_argument_and_a_sampling_parameter(vllm):
    vllm["vllm"].SamplingParams = struct("SamplingParams", module._SAMPLING)
    assert not abilities("0.30.0").trace_replay
    vllm["vllm"].EngineArgs = make_dataclass("EngineArgs", ["model", "dtype"])
    vllm["vllm"].SamplingParams = struct("SamplingParams", (*module._SAMPLING, "trace_decode_token_ids"))
    assert not abilities("0.24.0").trace_replay


def refused(vllm: Modules, change: Any) -> str:
    change(vllm)
    with pytest.raises(InputError) as error:
        abilities("0.40.0")
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", ["vllm.v1.outputs", "vllm.v1.sample.sampler", "vllm.platforms"])
def test_a_name_that_moved_is_one_line(vllm, name):
    wanted = module._NEEDED[name][0]
    text = refused(vllm, lambda vllm: delattr(vllm[name], wanted))
    assert text == f"engine 'vllm': vLLM 0.40.0 lacks {name}.{wanted}; versions 0.24 to 0.32 have it"


def test_a_module_that_moved_is_one_line(vllm, monkeypatch):
    monkeypatch.setitem(module._NEEDED, "vllm.v1.moved_away", ("Anything",))
    sys.modules["vllm"].__path__ = []  # a package that holds no such module
    assert "lacks vllm.v1.moved_away;" in refused(vllm, lambda _: sys.modules.pop("vllm.v1", None))


def test_a_parameter_that_moved_is_one_line(vllm):
    fields = tuple(name for name in module._SAMPLING if name != "flat_logprobs")
    text = refused(vllm, lambda vllm: setattr(vllm["vllm"], "SamplingParams", struct("SamplingParams", fields)))
    assert "lacks SamplingParams(flat_logprobs=);" in text


def test_a_request_that_wants_more_is_one_line(vllm):
    wider = struct("EngineCoreRequest", (*module._REQUEST, "tenant", "priority"), 1)
    text = refused(vllm, lambda vllm: setattr(vllm["vllm.v1.engine"], "EngineCoreRequest", wider))
    assert text.endswith("vLLM 0.40.0 wants a field of EngineCoreRequest that is unknown here: tenant")


def test_an_engine_argument_that_moved_is_one_line(vllm):
    with pytest.raises(InputError, match=r"vLLM 0.40.0 lacks EngineArgs\(logprobs_mode=\); versions 0.24"):
        check_arguments("0.40.0", vllm["vllm"].EngineArgs, ["model", "logprobs_mode"])


def test_a_library_that_is_missing_is_one_line(vllm, monkeypatch):
    def broken(name: str) -> ModuleType:
        raise ImportError("libcudart.so.13: cannot open shared object file\nNo such file or directory")

    monkeypatch.setattr(module.importlib, "import_module", broken)
    text = refused(vllm, lambda _: None)
    assert text.startswith("engine 'vllm': vLLM 0.40.0 cannot be imported: libcudart.so.13: cannot open shared")


@pytest.mark.parametrize("kernel", [None, lambda output_ptr, logits_ptr: None], ids=["none", "other parameters"])
def test_a_v2_runner_whose_ranks_cannot_be_replaced_is_one_line(monkeypatch, kernel):
    changed = ModuleType(module._V2_LOGPROB)
    changed._ranks_kernel = kernel
    monkeypatch.setitem(sys.modules, module._V2_LOGPROB, changed)
    with pytest.raises(InputError, match=r"lacks vllm.v1.worker.gpu.sample.logprob._ranks_kernel\(output_ptr, "):
        check_v2("0.40.0")
    changed._ranks_kernel = SimpleNamespace(fn=lambda output_ptr, logits_ptr, logits_stride, token_ids_ptr,
                                            vocab_size, BLOCK_SIZE: None)  # fmt: skip
    check_v2("0.40.0")


def test_scores_fall_back_where_trace_replay_is_lacking_and_say_so():
    able, unable = (SimpleNamespace(v2=True, replays=replays) for replays in (True, False))
    forced, slow = EngineConfig(), EngineConfig(scoring="prompt_logprobs")
    assert start._scoring(forced, able) == ("forced", ())
    assert start._scoring(forced, SimpleNamespace(v2=False, replays=False)) == ("forced", ())  # our own sampler's
    assert start._scoring(slow, unable) == ("prompt_logprobs", ())
    scoring, (note,) = start._scoring(forced, unable)
    assert scoring == "prompt_logprobs"
    assert note.endswith("answers are scored by prompt log-probabilities, which takes longer")


class TestInstalledVllm:
    pytestmark = needs_vllm

    def test_it_has_what_is_needed(self):
        found = abilities(start.installed_version())
        from vllm import EngineArgs, SamplingParams

        assert found.trace_replay == ("enable_trace_replay" in fields_of(EngineArgs))
        assert "temperature" in fields_of(SamplingParams)

    @pytest.mark.parametrize("replays", [True, False])
    def test_the_v2_runner_is_asked_to_replay_only_where_it_can(self, replays):
        from evaluator.engine.vllm.sampling import Dialect

        arguments = Dialect(v2=True, replays=replays).engine_arguments()
        assert arguments == ({"enable_trace_replay": True} if replays else {})

    @pytest.mark.parametrize("replays", [True, False])
    @pytest.mark.parametrize("runs_v2", [True, False])
    def test_the_runner_that_vllm_would_run_is_spoken_to(self, replays, runs_v2, monkeypatch):
        """Some versions have only some architectures run by the V2 runner; trace replay they refuse where it is not."""
        import vllm

        from evaluator.engine.vllm.sampling import Dialect

        @dataclass
        class EngineArgs:
            model: str
            enable_trace_replay: bool = False
            logits_processors: Any = None
            async_scheduling: bool = True

            def create_engine_config(self) -> Any:
                if self.enable_trace_replay and not runs_v2:
                    raise ValueError("trace replay requires Model Runner V2")
                return SimpleNamespace(use_v2_model_runner=runs_v2, asked=self)

        monkeypatch.setattr(vllm, "EngineArgs", EngineArgs)
        made, dialect = start._engine_config({"model": "m"}, Dialect(v2=True, replays=replays))
        assert dialect.v2 == runs_v2
        assert (made.asked.logits_processors is None) == runs_v2  # the V1 runner gets our sampler's orders
        falls_back = runs_v2 and not replays
        assert start._scoring(EngineConfig(), dialect)[0] == ("prompt_logprobs" if falls_back else "forced")
