"""Which quantised checkpoints this machine's vLLM can serve, checked before anything
starts.

A separate process tries it::

    python -m evaluator.engine.vllm.verify.rehearsal CHECKPOINT ENGINE ANSWER

The available kernels depend on vLLM's build, the processor's instructions, layout,
dtype and shapes. A missing kernel has many symptoms: the process may end, or a kernel
may return wrong values. For example, int8 products overflow on a processor without VNNI
instructions. So an engine loads the checkpoint's first layer, with all checks of a
whole one. On a GPU vLLM only reads the configuration: the memory may be in use, and
engines may be on other nodes.
"""

import hashlib
import json
import os
import re
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.first_layer import first_layer, shortened
from evaluator.checkpoints.info import CheckpointInfo
from evaluator.checkpoints.overlay import served_config
from evaluator.checkpoints.quantisation import ONLINE, Quantisation, online_scheme
from evaluator.core.config import Frozen
from evaluator.core.errors import EngineError, InputError, one_line
from evaluator.core.files import cache_folder, write_atomically
from evaluator.core.isolated import run_module
from evaluator.engine import processor
from evaluator.engine.base import FixedSource, Generate
from evaluator.engine.config import EngineConfig, build_engine
from evaluator.engine.vllm.schemes import cpu_dtypes
from evaluator.engine.vllm.start import INT4_AS_W4A8, installed_version, serves_cpus

# Layouts that left vLLM's core, and the packages that bring them back.
_PLUGINS = {"gguf": "vllm-gguf-plugin", "bitsandbytes": "vllm-bnb-plugin"}
# By scheme: the hardware that serves it. For others, only a GPU is known to.
_SERVED_BY = {
    "W4A16": "a processor with AVX-512, or a GPU",
    "W8A8": (
        "a processor with VNNI instructions (int8 products overflow without them), or a"
        " GPU"
    ),
    "FP8": ("scales per row and dynamic activations, a processor with AMX, or a GPU"),
}
_GPTQ = ("gptq", "gptq_marlin", "auto_gptq")
_POSITIONS = 64
_REASON = 300  # characters


class Rehearsal(Frozen):
    """The result of a rehearsal."""

    # why the checkpoint cannot be served, in one line; None: it can
    reason: str | None = None
    # that it was computed in; None where only the configuration was read
    dtype: str | None = None
    # vLLM's names of those that multiplied the quantised matrices
    kernels: tuple[str, ...] = ()


def check_quantisation(
    config: EngineConfig, place: str, quantisation: Quantisation, here: bool
) -> None:
    """Raises InputError for what vLLM, or its kernels on this CPU if `here`, cannot
    serve; `place` names it."""
    label = f"{place}: {quantisation.label}"
    if (plugin := _PLUGINS.get(quantisation.library)) is not None:
        try:
            distribution(plugin)
        except PackageNotFoundError:
            raise InputError(
                f"{label}: vLLM reads {quantisation.library} with the package {plugin},"
                " which is not installed"
            ) from None
    # With one group to a row, GPTQ's order changes nothing, and vLLM takes it.
    harmless = quantisation.per == "channel" and quantisation.library in _GPTQ
    if quantisation.activation_order == "group" and not harmless:
        raise InputError(
            f"{label}: vLLM has removed groups in activation order (desc_act,"
            " actorder), on every processor and GPU; quantise again with desc_act:"
            " false or a static order"
        )
    if not (here and serves_cpus()):
        return
    served = cpu_dtypes(quantisation, processor.instruction_sets())
    if served == ():
        raise InputError(
            f"{label}: vLLM has no kernel for this scheme here; {_needs(quantisation)}"
        )
    if served is not None and config.dtype not in ("auto", *served):
        raise InputError(
            f"{label} in {config.dtype}: vLLM has no kernel for this scheme and dtype"
            f" here; set --dtype {served[0]} (engine.dtype in a sweep file), which is"
            " then that of its base too"
        )


def rehearse_all(
    config: EngineConfig, checkpoints: Sequence[CheckpointInfo]
) -> tuple[str, ...]:
    """A line on each quantised checkpoint. Raises InputError for the first that
    cannot be served on this machine; it names the scheme, and what could serve it."""
    notes = []
    for info in checkpoints:
        if info.quantisation is None:
            continue
        label, found = info.quantisation.label, rehearse(info.path, config)
        if found.reason is not None:
            why = textwrap.shorten(found.reason, _REASON, placeholder=" ...")
            # whole with --debug
            raise InputError(
                f"checkpoint {info.path}: {label}: {why}; {_needs(info.quantisation)}"
            ) from EngineError(found.reason)
        by = f" by {', '.join(found.kernels)}" if found.kernels else ""
        how = f", computed in {found.dtype}{by}" if found.dtype else ""
        notes.append(f"{info.name}: {label}{how}")
    return tuple(notes)


def _needs(quantisation: Quantisation) -> str:
    if cpu_dtypes(quantisation, processor.instruction_sets()):
        return "it needs a GPU"  # no other processor would do
    return f"it needs {_SERVED_BY.get(quantisation.scheme, 'a GPU')}"


def rehearse(checkpoint: Path, config: EngineConfig) -> Rehearsal:
    """Rehearse a checkpoint, or recall an earlier success of its kind, which the user's
    cache keeps. Failures are tried again."""
    kept = _kept(checkpoint, config)
    with suppress(OSError, ValueError):
        return Rehearsal.model_validate_json(kept.read_bytes())
    found = _in_a_process(checkpoint, config)
    if found.reason is None:
        with suppress(OSError, InputError):  # then it is rehearsed again
            write_atomically(kept, found.model_dump_json().encode())
    return found


def _kept(checkpoint: Path, config: EngineConfig) -> Path:
    combination = {
        "config": shortened(Checkpoint(checkpoint).config),
        "dtype": config.dtype,
        "tensor_parallel": config.tensor_parallel,
        "vllm": installed_version(),
        "instructions": processor.instruction_sets(),
        "int4": os.environ.get(INT4_AS_W4A8),
    }
    text = json.dumps(combination, sort_keys=True)
    name = f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    return cache_folder() / "rehearsals" / name


def _in_a_process(checkpoint: Path, config: EngineConfig) -> Rehearsal:
    with tempfile.TemporaryDirectory(prefix="resurface-rehearsal-") as folder:
        answer, log = Path(folder) / "answer.json", Path(folder) / "log"
        arguments = [str(checkpoint.absolute()), config.model_dump_json(), str(answer)]
        ending = run_module("evaluator.engine.vllm.verify.rehearsal", arguments, log)
        if answer.exists():
            return Rehearsal.model_validate_json(answer.read_bytes())
        return Rehearsal(reason=f"vLLM's process {ending.how} when it tried to")


def _read_by_vllm(checkpoint: Path) -> Rehearsal:
    """Whether vLLM knows the layout and takes the configuration, and this GPU is not
    too old for it."""
    from vllm.model_executor.layers.quantization import get_quantization_config
    from vllm.platforms import current_platform

    config = Checkpoint(checkpoint).config
    if (scheme := online_scheme(config)) is not None:
        from vllm.config.quantization import ONLINE_QUANT_SHORTHAND_NAMES

        if scheme not in ONLINE_QUANT_SHORTHAND_NAMES:
            return Rehearsal(
                reason=f"this vLLM does not quantise to {scheme} while it loads"
            )
        kind = get_quantization_config(ONLINE)
    else:
        config = dict(served_config(config))
        layout = dict(config["quantization_config"])
        method = str(layout.get("quant_method", "compressed-tensors"))
        kind = get_quantization_config(method.lower())
        kind.from_config(layout)
    if not current_platform.has_device_capability(kind.get_min_capability()):
        capability = kind.get_min_capability() / 10
        return Rehearsal(
            reason=(
                f"vLLM serves it on GPUs of compute capability {capability:.1f} or more"
            )
        )
    return Rehearsal()


def _answer(checkpoint: Path, config: EngineConfig) -> Rehearsal:
    if not serves_cpus():
        return _read_by_vllm(checkpoint)
    settings = {
        "max_model_len": _POSITIONS,
        "max_num_seqs": 1,
        "compile": False,
        "scoring": "prompt_logprobs",
    }
    with tempfile.TemporaryDirectory(prefix="resurface-rehearsal-") as folder:
        engine: Any = build_engine(config.model_copy(update=settings))
        engine.load(first_layer(checkpoint, Path(folder)))
        request = Generate(
            request_id="rehearsal", prompt_ids=(0, 1, 2, 3), max_tokens=2
        )
        list(engine.run(FixedSource([request])))
        return Rehearsal(dtype=engine.dtype, kernels=engine.quantised_kernels())


def main() -> None:
    checkpoint, config, answer = sys.argv[1:]
    try:
        found = _answer(Path(checkpoint), EngineConfig.model_validate_json(config))
    except (EngineError, InputError) as error:
        # The reason needs no path: the directory of the one layer is deleted, and the
        # caller names the checkpoint.
        found = Rehearsal(reason=re.sub(r"^/\S+: ", "", one_line(error, 500)))
    except BaseException as error:  # vLLM can raise anything, even DeprecationWarning
        found = Rehearsal(reason=f"{type(error).__name__}: {one_line(error, 500)}")
    write_atomically(Path(answer), found.model_dump_json().encode())
    os._exit(0)  # vLLM's threads and workers need not be waited for


if __name__ == "__main__":
    main()
