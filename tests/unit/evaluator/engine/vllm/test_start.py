"""What vLLM's engine is asked for on a GPU, without one; it waits for the memory of
a process that has ended."""

import builtins
import stat
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.core.errors import InputError
from evaluator.engine.config import EngineConfig
from evaluator.engine.vllm import arguments, start
from evaluator.engine.vllm.engine import environment_in_words
from evaluator.engine.vllm.start import BATCH_INVARIANT, BREAKABLE, wait_for_memory
from tests.support.checkpoint_files import stated
from tests.support.sweeps import refused


def checkpoint(dtype: str = "bfloat16", **facts: Any) -> Checkpoint:
    model = {
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
    }
    sizes = {"bytes": 16 * 10**9, "vocabulary": 151_936, "longest": 40_960}
    read = {"config": model, "settings": model, "tensors": {}, "quantisation": None}
    return stated(dtype=dtype, **(read | sizes | facts))


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """The arguments of an engine, as if vLLM were installed beside a GPU of 79 GiB."""
    platforms = ModuleType("vllm.platforms")
    platforms.current_platform = SimpleNamespace(
        get_device_total_memory=lambda: 79 * 2**30, is_cpu=lambda: False
    )
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)

    def arguments_of(config, dtype="bfloat16", **changes):
        own, positions = checkpoint(dtype, **changes), config.max_model_len
        chosen = arguments.of_device(config, own, tmp_path, positions, on_cpu=False)
        return chosen | arguments.of_runner(
            config, own, chosen["dtype"], positions, v2=True
        )

    return arguments_of


def test_checkpoint_computes_in_own_dtype(asked):
    """A checkpoint is computed in its own dtype of the files that were checked."""
    # vLLM's "auto" would be bfloat16
    assert asked(EngineConfig(), "float32")["dtype"] == "float32"
    assert asked(EngineConfig(), "bfloat16")["dtype"] == "bfloat16"
    assert asked(EngineConfig(), "float16")["dtype"] == "float16"
    # vLLM knows how such are computed
    assert asked(EngineConfig(), "float8_e4m3fn")["dtype"] == "auto"
    assert asked(EngineConfig(dtype="bfloat16"), "float32")["dtype"] == "bfloat16"
    given = asked(EngineConfig())
    # else consolidated*.safetensors come first, then *.bin and *.pt
    assert given["load_format"] == "safetensors"
    assert given["config_format"] == "hf"  # else params.json comes first
    assert given["trust_remote_code"] is False


@pytest.mark.parametrize(
    ("settings", "tokens", "requests", "largest_graph"),
    [
        ({}, 16_384, 128, 2048),
        ({"max_num_batched_tokens": 1000, "max_num_seqs": 60}, 1000, 60, 1000),
        ({"max_num_batched_tokens": 64, "max_num_seqs": 512}, 512, 512, 512),
        ({"cuda_graphs": "decode", "max_num_seqs": 60}, 16_384, 60, 60),
    ],
)
def test_step_sizes_by_default_and_configured(
    asked, settings, tokens, requests, largest_graph
):
    """Steps are large unless the user says otherwise and no smaller than a graph."""
    chosen = asked(EngineConfig(**settings))
    assert (chosen["max_num_batched_tokens"], chosen["max_num_seqs"]) == (
        tokens,
        requests,
    )
    assert chosen["compilation_config"]["cudagraph_capture_sizes"][-1] == largest_graph


WEIGHTS = 16 * 10**9 / 2**30


@pytest.mark.parametrize(
    ("settings", "gib", "expected"),
    [
        ({}, 79, None),  # vLLM measures
        ({"kv_cache_gib": 4}, 79, 4),
        ({"kv_cache_gib": 4, "shared_gpu": True}, 79, 4),
        # 80 % of what the weights leave of this engine's part
        (
            {"gpu_memory_utilization": 0.5, "shared_gpu": True},
            79,
            0.8 * (39.5 - WEIGHTS),
        ),
        (
            {"gpu_memory_utilization": 0.5, "shared_gpu": True, "tensor_parallel": 2},
            79,
            0.8 * (39.5 - WEIGHTS / 2),
        ),
        # no room: vLLM says so
        ({"gpu_memory_utilization": 0.1, "shared_gpu": True}, 79, None),
        ({"kv_cache_gib": 4}, None, None),  # vLLM reads its environment
        ({"shared_gpu": True}, None, None),
    ],
)
def test_cache_of_given_size(settings, gib, expected):
    """A token takes 576 KiB (36 layers of 32 heads of 128): 1 GiB holds 1,820, of
    which 1,792 are whole blocks."""
    given = arguments.of_cache(
        EngineConfig(**settings), checkpoint(), "bfloat16", 4096, gib and gib << 30
    )
    size = given.pop("kv_cache_memory_bytes", None)
    assert (size and size / 2**30) == (expected and pytest.approx(expected))
    assert given == {
        "max_model_len": 1792 if settings == {"shared_gpu": True} else 4096
    }


# vLLM gives it another value in each process
BUFFER = "VLLM_OBJECT_STORAGE_SHM_BUFFER_NAME"
PLAIN = {
    "LD_LIBRARY_PATH": "/lib",
    "VLLM_API_KEY": "secret",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_DIST_IDENT": "17",
}
PLAIN |= {BUFFER: "VLLM_OBJECT_STORAGE_SHM_BUFFER_4711"}
KNOWN = PLAIN.keys() - {"VLLM_DIST_IDENT"} | {
    "VLLM_DISABLED_KERNELS",
    "NVIDIA_TF32_OVERRIDE",
}
CUDA = {"is_cpu": False, "is_cuda": True}


def platform(capability: int = 90, **answers: bool) -> SimpleNamespace:
    return SimpleNamespace(
        has_device_capability=lambda wanted: capability >= wanted,
        **{name: lambda answer=answer: answer for name, answer in answers.items()},
    )


@pytest.fixture
def environment(monkeypatch):
    """Of a process in which vLLM has not been imported."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    environment: dict[str, str] = {}
    monkeypatch.setattr(start.os, "environ", environment)
    return environment


@pytest.mark.parametrize("name", [start.INT4_AS_W4A8, "VLLM_USE_FLASHINFER_SAMPLER"])
def test_user_settings_of_vllm_stay(environment, name):
    start._prepare_environment(EngineConfig())
    assert environment[name] == "0"
    environment[name] = environment["VLLM_CPU_KVCACHE_SPACE"] = "3"
    start._prepare_environment(EngineConfig())
    assert environment[name] == environment["VLLM_CPU_KVCACHE_SPACE"] == "3"
    # that of the run comes first
    start._prepare_environment(EngineConfig(kv_cache_gib=2))
    assert environment["VLLM_CPU_KVCACHE_SPACE"] == "2"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no kernel\nand pages more", "no kernel"),
        ("\n", "no message"),
        (
            "None can do it. Reasons: \nA: too small\nB: too old",
            "None can do it. Reasons: A: too small B: too old",
        ),
        (
            "1 validation error for X\n  Value error, no [type=value_error]",
            "1 validation error for X Value error, no",
        ),
    ],
)
def test_vllm_error_is_first_line(text, said):
    """An error of vllm is its first line and the reasons that it announces."""
    assert start.named(ValueError(text)) == f"ValueError: {said}"


@pytest.mark.parametrize(
    ("settings", "on_cpu", "variable"),
    [
        ({"deterministic": True}, False, BATCH_INVARIANT),
        ({"cuda_graphs": "piecewise"}, False, BREAKABLE),
        ({"cuda_graphs": "piecewise"}, True, None),
        ({"cuda_graphs": "full"}, False, None),
        ({}, False, None),
    ],
)
def test_import_variables_set_before_vllm(
    environment, monkeypatch, settings, on_cpu, variable
):
    """What vllm reads when it is imported is set before and not after."""
    monkeypatch.setattr(start, "serves_cpus", lambda: on_cpu)
    start._prepare_environment(EngineConfig(**settings))
    assert {BATCH_INVARIANT, BREAKABLE} & {*environment} == (
        {variable} if variable else set()
    )
    start._prepare_environment(EngineConfig(**settings))
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    if variable:
        start._prepare_environment(EngineConfig(**settings))
        del environment[variable]
        with pytest.raises(
            InputError,
            match=f"engine: {next(iter(settings))}: .*vLLM is running in this process",
        ):
            start._prepare_environment(EngineConfig(**settings))


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        (
            platform(is_cpu=True),
            (
                "no batch-invariant mode on a CPU; engine torch computes one request at"
                " a time"
            ),
        ),
        (platform(75, **CUDA), "needs a GPU of compute capability 8.0 or more"),
    ],
)
def test_deterministic_refused_where_impossible(environment, answers, reason):
    """Where it cannot hold it is refused and leaves nothing set."""
    environment[BATCH_INVARIANT] = "1"
    with pytest.raises(InputError, match=f"^engine: deterministic: .*{reason}"):
        start._check_deterministic(answers)
    assert BATCH_INVARIANT not in environment
    start._check_deterministic(platform(**CUDA))
    start._check_deterministic(platform(is_cpu=False, is_cuda=False))


def test_unimportable_architecture_says_why(monkeypatch):
    """Why the code of an architecture cannot be imported is said."""

    def load_model_cls():
        raise ModuleNotFoundError("No module named 'torchvision'")

    registry = ModuleType("vllm.model_executor.models.registry")
    models = {"Qwen3_5ForCausalLM": SimpleNamespace(load_model_cls=load_model_cls)}
    registry.ModelRegistry = SimpleNamespace(models=models)
    for name in ("vllm", "vllm.model_executor", "vllm.model_executor.models"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, registry.__name__, registry)
    error = ValueError(
        "Model architectures ['Qwen3_5ForCausalLM'] failed to be inspected. Please"
        " check the logs"
    )
    why = start.not_imported(error)
    assert why is not None
    assert why.startswith(
        "its code of Qwen3_5ForCausalLM cannot be imported (No module named"
        " 'torchvision')"
    )
    assert start.not_imported(ValueError("no space left")) is None


@pytest.mark.parametrize(
    ("dtype", "head", "settings", "exact"),
    [
        ("bfloat16", {}, {}, True),  # tied to the embeddings
        ("float16", {"language_model.lm_head.weight": "F16"}, {}, True),
        ("float32", {}, {}, False),  # they are anyway
        # batch-invariant kernels would be passed by
        ("bfloat16", {}, {"deterministic": True}, False),
        (
            "bfloat16",
            {"lm_head.weight": "F8_E4M3", "lm_head.weight_scale": "BF16"},
            {},
            False,
        ),
        # tied: it may be quantised while it is loaded
        ("bfloat16", {}, {"quantised": True}, False),
        ("bfloat16", {"lm_head.weight": "BF16"}, {"quantised": True}, True),
    ],
)
def test_plain_head_has_float32_logits(asked, dtype, head, settings, exact):
    """Half precision models with a plain head have float32 logits."""
    settings = dict(settings)
    dtypes = {"model.norm.weight": "BF16", **head}
    tensors = {name: SimpleNamespace(dtype=dtype) for name, dtype in dtypes.items()}
    layout: Any = SimpleNamespace() if settings.pop("quantised", False) else None
    given = asked(EngineConfig(**settings), dtype, tensors=tensors, quantisation=layout)
    assert given.get("hf_overrides") == ({"head_dtype": "float32"} if exact else None)


def test_kernel_variables_change_combination():
    """Variables that choose kernels make another combination and others do not."""
    assert environment_in_words(PLAIN, KNOWN) == "nothing set"
    one, other = (
        environment_in_words(PLAIN | {"VLLM_DISABLED_KERNELS": value}, KNOWN)
        for value in ("a", "b")
    )
    assert one != other
    assert one.startswith("VLLM_DISABLED_KERNELS (")
    assert environment_in_words({"NVIDIA_TF32_OVERRIDE": "0"}, KNOWN).startswith(
        "NVIDIA_TF32_OVERRIDE ("
    )


@pytest.mark.parametrize(
    ("installed", "served"),
    [
        ("0.32.0", True),
        ("0.32.1.dev7+gabc", True),
        ("0.32.0+cpu", True),
        ("0.31.2", False),
        ("0.320.0", False),
    ],
)
def test_other_versions_are_refused(monkeypatch, installed, served):
    """The versions that pip does not pin are one line, before anything of vLLM is
    imported."""
    monkeypatch.setattr(start, "installed_version", lambda: installed)
    if served:
        start.check_here(EngineConfig())
    else:
        wanted = (
            f"engine 'vllm': vLLM {installed} is installed, but Resurface needs vLLM"
            " 0.32"
        )
        assert refused(start.check_here, EngineConfig()) == wanted


def test_missing_library_is_one_line(monkeypatch):
    """A library of the GPU's driver is missing: vLLM's import fails with a text of
    several lines."""

    def broken(name, *_):
        if name.startswith("vllm"):
            raise ImportError(
                "libcudart.so.13: cannot open shared object file\nNo such file or"
                " directory"
            )
        return real(name, *_)

    real = builtins.__import__
    monkeypatch.setattr(start, "installed_version", lambda: "0.32.0")
    monkeypatch.setattr(builtins, "__import__", broken)
    error = refused(start._start, EngineConfig(), None, Path())
    assert error.startswith(
        "engine 'vllm': vLLM 0.32.0 cannot be imported: libcudart.so.13: cannot open"
    )


class TestRunner:
    @pytest.fixture(autouse=True)
    def vllm(self, monkeypatch):
        monkeypatch.setattr(start, "installed_version", lambda: "0.32.0")
        for name in ("VLLM_USE_V2_MODEL_RUNNER", "TRITON_INTERPRET"):
            monkeypatch.delenv(name, raising=False)

    def chosen(self, monkeypatch, answer, *, on_cpu):
        def configured(arguments):
            if isinstance(answer, Exception):
                raise answer
            return SimpleNamespace(use_v2_model_runner=answer)

        monkeypatch.setattr(start, "_engine_config", configured)
        return start._runs_v2({}, on_cpu=on_cpu)

    def test_vllm_chooses_runner(self, monkeypatch):
        """Vllm chooses and what it refuses is one line."""
        assert self.chosen(monkeypatch, True, on_cpu=False)
        assert not self.chosen(monkeypatch, False, on_cpu=True)
        with pytest.raises(
            InputError,
            match=r"cannot run its V2 model runner .*: Model Runner V2 requires",
        ):
            self.chosen(
                monkeypatch, ValueError("Model Runner V2 requires Triton."), on_cpu=True
            )
        with pytest.raises(ValueError, match="no such model"):
            self.chosen(monkeypatch, ValueError("no such model"), on_cpu=True)

    def test_the_v1_runner_serves_no_gpu(self, monkeypatch):
        told = refused(self.chosen, monkeypatch, False, on_cpu=False)
        assert "would run its V1 model runner, which is served on CPUs only" in told
        monkeypatch.setattr(start, "serves_cpus", lambda: False)
        monkeypatch.setattr(start, "_is_there", lambda module: True)
        start.check_here(EngineConfig())
        monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
        assert "do not set VLLM_USE_V2_MODEL_RUNNER=0" in refused(
            start.check_here, EngineConfig()
        )
        monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER")
        monkeypatch.setattr(start, "_is_there", lambda module: False)
        assert "would run its V1 model runner" in refused(
            start.check_here, EngineConfig()
        )

    @pytest.mark.parametrize(
        ("there", "interpreted", "missing"),
        [
            ((), False, "triton is not installed"),
            (
                ("triton", "triton.runtime.interpreter"),
                False,
                r"needs Triton's interpreter \(TRITON_INTERPRET=1\)",
            ),
            (
                ("triton", "triton.runtime.interpreter"),
                True,
                "this Triton has no backend named cpu",
            ),
        ],
    )
    def test_v2_on_cpu_needs_triton(self, monkeypatch, there, interpreted, missing):
        """A cpu needs triton its interpreter and a backend."""
        backends = SimpleNamespace(backends={"nvidia": None})
        monkeypatch.setattr(start, "serves_cpus", lambda: True)
        monkeypatch.setattr(start, "_is_there", lambda module: module in there)
        monkeypatch.setattr(start.importlib, "import_module", lambda name: backends)
        start.check_here(EngineConfig())
        monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
        if interpreted:
            monkeypatch.setenv("TRITON_INTERPRET", "1")
        with pytest.raises(InputError, match=missing):
            start.check_here(EngineConfig())
        if interpreted:
            backends.backends["cpu"] = None
            start.check_here(EngineConfig())

    def test_the_variable_is_0_or_1(self, monkeypatch):
        monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "")
        told = refused(start.check_here, EngineConfig())
        assert "VLLM_USE_V2_MODEL_RUNNER= in the environment: it must be 0 or 1" in told


GIB = 2**30


@pytest.fixture
def waited(monkeypatch):
    """The seconds of each pause, on a clock that only pauses move."""
    pauses: list[float] = []
    monkeypatch.setattr(start.time, "sleep", pauses.append)
    monkeypatch.setattr(start.time, "monotonic", lambda: sum(pauses))
    return pauses


def _free(monkeypatch, seen):
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (next(seen) * GIB, 80 * GIB))


def test_start_waits_for_free_memory(monkeypatch, waited):
    """It goes on once there is enough and after a minute at the latest."""
    seen = iter([4, 40, 71, 72, 80])
    _free(monkeypatch, seen)
    wait_for_memory(0.9)
    assert len(waited) == 3
    assert list(seen) == [80]  # 72 of 80 are enough
    _free(monkeypatch, iter([8, 44, 80]))
    # beside an engine of the same share: one that has ended has not freed its part yet
    wait_for_memory(0.45)
    assert len(waited) == 4
    before = sum(waited)
    _free(monkeypatch, iter(lambda: 40, None))  # somebody else's: vLLM refuses it
    wait_for_memory(0.9)
    assert 59 < sum(waited) - before < 62


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """A program of that name, which prints a line of `answers` for each GPU and call
    and notes what it was asked."""
    answers, program = tmp_path / "answers", tmp_path / "nvidia-smi"
    program.write_text(
        f"""#!/bin/sh
echo "$@" >> {tmp_path}/asked
[ -s {answers} ] || exit 9
head -n 2 {answers}
sed -i 1,2d {answers}
"""
    )
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(
        "torch.cuda.mem_get_info", lambda: pytest.fail("it takes memory")
    )
    return answers


def test_separate_workers_wait_for_gpus(nvidia_smi, monkeypatch, waited):
    """Workers of their own wait until every gpu is free if somebody tells."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-7b,5")
    nvidia_smi.write_text(
        "80000, 81559\n4, 81559\n80000, 81559\n70000, 81559\n80000, 81559\n73404,"
        " 81559\n"
    )
    wait_for_memory(0.9, gpus=2)
    assert len(waited) == 2
    asked = nvidia_smi.with_name("asked").read_text().splitlines()
    assert len(asked) == 3
    assert asked[0].endswith("-i 3,GPU-7b")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    for answer in ("", "[N/A], 81559\n[N/A], 81559\n"):
        nvidia_smi.write_text(answer)
        wait_for_memory(0.9, gpus=2)
    assert nvidia_smi.with_name("asked").read_text().splitlines()[3].endswith("-i 0,1")
    monkeypatch.setenv("PATH", "")
    wait_for_memory(0.9, gpus=2)
    assert len(waited) == 2
