"""The steps of a night on a GPU. The cheapest decisive ones come first: imports, one engine, then everything else.

A night's findings are a card for each step and one summary."""

import contextlib
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from benchmarks.harness import module_command
from launch.doctor.machine import Machine


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """How one step ended; `reason`: why it did not pass; `result`: the line of JSON that it printed."""

    step: str
    state: Literal["passed", "failed", "timed out", "skipped"]
    reason: str | None = None
    seconds: float = 0.0
    return_code: int | None = None
    command: Sequence[str] = ()
    last_lines: Sequence[str] = ()
    result: Mapping[str, Any] | None = None


def read(out: Path, names: Sequence[str]) -> dict[str, Card]:
    """The cards that lie in `out`, by step; a file that is no card counts as none."""
    found = {}
    for name in names:
        with contextlib.suppress(OSError, ValueError, TypeError):
            found[name] = Card(**json.loads((out / f"{name}.json").read_bytes()))
    return found


def markdown(machine: Machine, names: Sequence[str], cards: Mapping[str, Card]) -> str:
    """The summary: the machine, then a row of each step."""
    gpu = next(iter(machine.gpus), "No GPU").partition(",")[0]
    lines = [f"# {gpu}: a night", "", "| machine | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in machine.facts]
    lines += ["", "| step | state | seconds | result |", "|---|---|---|---|"]
    for name in names:
        card = cards.get(name)
        row = ("not run", "", "") if card is None else (card.state, f"{card.seconds:.0f}", said(card, cards))
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in (name, *row)) + " |")
    return "\n".join([*lines, ""])


def said(card: Card, cards: Mapping[str, Card]) -> str:
    """The measurements of a step, or the reason why it did not pass."""
    found = card.result or {}
    if card.state != "passed":
        return card.reason or ""
    if "ours_s" in found:
        ratio = "ratio {ratio:.2f} ({ratio_min:.2f}-{ratio_max:.2f})".format(**found)
        times = "ours {ours_s:.2f} s, theirs {theirs_s:.2f} s".format(**found)
        return f"{times}, {ratio}{_beside_default(card, cards)}; {found['agreement']}"
    if found.get("benchmark") == "prune":
        return "; ".join("{method} {seconds:.1f} s, peak {peak_gib:.1f} GiB".format(**row) for row in found["rows"])
    if "idle_share" in found:
        return "the device idles {idle_share:.1%} of the time; {host_ms_a_step:.2f} ms of the host a step".format(
            **found
        )
    return str(found.get("verdict") or (card.last_lines[-1] if card.last_lines else ""))


def _beside_default(card: Card, cards: Mapping[str, Card]) -> str:
    """How long a pass took, beside the one with default settings."""
    default = cards.get(next(iter(VARIANTS)))
    if default is None or default.step == card.step or card.step not in VARIANTS or default.state != "passed":
        return ""
    assert card.result is not None
    assert default.result is not None
    return f", {card.result['ours_s'] / default.result['ours_s']:.2f} times as long as {default.step}"


SCRATCH = "night.tmp"  # a folder beside the cards, removed at the end
# What each pass changes in our engine's settings (EngineConfig). The others are compared with the first; the last runs
# late.
VARIANTS: Mapping[str, dict[str, Any]] = {
    "pass": {},
    "pass-compile": {"compile": True},
    "pass-piecewise": {"cuda_graphs": "piecewise"},
    "pass-decode": {"cuda_graphs": "decode"},
    "pass-deterministic": {"deterministic": True},
}
# The first engines on a GPU, a test each.
TESTS: Mapping[str, str] = {
    "test-eager": "test_scores_and_swaps_agree_with_the_oracle[qwen3-bfloat16-False]",
    "test-graphs": "test_scores_and_swaps_agree_with_the_oracle[qwen3-bfloat16-full]",
    "test-two-runs": "test_two_runs_of_the_same_requests_do_not_mix",
}
_EVERYWHERE = ("torch", "vllm", "ray")
# What vLLM imports on a GPU, and a machine may lack.
_ON_A_GPU = (
    *("cuda.bindings.driver", "vllm._C_stable_libtorch", "vllm.vllm_flash_attn._vllm_fa3_C"),
    "vllm.model_executor.warmup.minimax_m3_msa_warmup",
)
_IMPORT = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]; import torch; print({})"
# Triton's kernels, to be carried to the next machine: an archive of at most 16 MiB.
_PACK = """
mkdir -p "$TRITON_CACHE_DIR" && tar -C "$TRITON_CACHE_DIR" -czf "$0" . || exit
size=$(stat -c %s "$0"); echo "$size bytes"
test "$size" -le 16777216 || { rm "$0"; echo "$size bytes are more than 16 MiB: the archive is removed"; exit 1; }
"""
_PATIENCE = {"1.7b": 2, "8b": 4}  # how much longer the time limits of larger models are
_SHARE = {"gpu_memory_utilization": 0.42}  # for the engine of either side
# The settings of vLLM's offline interface on a GPU, with the sizes that ours chooses.
_THEIRS = {"dtype": "bfloat16", "enforce_eager": False, "block_size": None, "max_num_seqs": 256, **_SHARE} | {
    "enable_chunked_prefill": True,
    "max_num_batched_tokens": 16_384,
}


@dataclass(frozen=True, slots=True)
class Step:
    """One process of the night, with its time limit. `needs`: a "gpu", and the "model" that step `model` writes."""

    name: str
    seconds: int
    command: list[str]
    needs: tuple[str, ...] = ()


def steps(out: Path, *, shape: str, tiny: bool, gpu: bool) -> list[Step]:
    """The whole list; its files lie in `out`. `tiny`: the smallest counts. Without a `gpu`, all suits a CPU."""
    model = out / SCRATCH / "model"
    memory = "torch.accelerator.get_memory_info()" if gpu else "torch.__version__"
    imports = [sys.executable, "-P", "-c", _IMPORT.format(memory), *_EVERYWHERE, *(_ON_A_GPU if gpu else ())]
    pace = ("--rows", 16, "--items", 9) if tiny else ("--rows", 256, "--items", 300)
    texts = ("--samples", 2, "--tokens", 64) if tiny else ("--samples", 128, "--tokens", 2048)

    def serving(name: str, rounds: int, *options: object, **ours: Any) -> list[str]:
        engine = json.dumps((_SHARE if gpu else {}) | ours)
        common = ("--model", model, "--rounds", 1 if tiny else rounds, "--engine-args", engine)
        return module_command(f"benchmarks.serving.{name}", *common, *options)

    def both(items: int) -> tuple[object, ...]:
        return "--items", 2 if tiny else items, "--llm-args", json.dumps(_THEIRS if gpu else {})

    sides = ("--model", model, "--only", "gpu" if gpu else "ours", "--repeat", 1)
    prune = module_command("benchmarks.pruning.prune", *sides, *texts)
    passes = [
        Step(name, 180, serving("checkpoint_pass", 1, *both(90), **ours), ("model", "gpu") if ours else ("model",))
        for name, ours in VARIANTS.items()
    ]
    one_test = "tests/gpu/test_engine_gpu.py::{}".format
    listed = [
        Step("imports", 60, imports),
        *(Step(name, 120, module_command("tests.gpu", one_test(test)), ("gpu",)) for name, test in TESTS.items()),
        Step("doctor", 420, module_command("launch.commands.cli", "doctor", "--json", "--out", out / "doctor.md")),
        Step("host", 120, module_command("benchmarks.host", "--pace", 4, *pace)),
        Step("model", 300, module_command("benchmarks.pruning.synthetic", shape, model)),
        *passes[:-1],
        Step("prune", 180, prune, ("model",)),
        Step("tests", 900, module_command("tests.gpu"), ("gpu",)),
        Step("kernels", 120, ["sh", "-c", _PACK, str(out / "kernels.tar.gz")]),
        passes[-1],
        Step("score", 300, serving("score", 3, *both(200)), ("model",)),
        Step("swap", 300, serving("swap", 2), ("model",)),
    ]
    patience = _PATIENCE.get(shape, 1) if gpu else 10
    return [replace(step, seconds=patience * step.seconds) for step in listed]
