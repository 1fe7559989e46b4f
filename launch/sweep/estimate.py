"""The cost of a sweep: jobs, requests, tokens and GPU hours. Reads no weight and needs
no network.

The settings give the numbers of items, requests and prompts. Lengths and speeds are
assumptions, printed with the result. In seconds:

    evaluation = 2 P (prompt tokens / PREFILL + generated tokens / DECODE) / PEAK +
    REQUEST * requests / engines + LOAD
    compress   = 2 P passes * samples * sequence_length / (PREFILL * PEAK) + 4 P / DISK

PEAK is the machine's (machines.py). `engines` share a GPU, and one computes while
another's Python works. P is the number of parameters (Kaplan et al., 2020: 2 P
floating-point operations per token of a forward pass). The disk reads and writes every
bfloat16 weight once. The hours show which of two sweeps is larger, and whether one takes
a morning or a week.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, reduce
from pathlib import Path

from evaluator.asking.prompts import CAPPED_FORMATS
from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.files import check_files
from evaluator.checkpoints.quantisation import ONLINE
from evaluator.checkpoints.served import Endpoint
from evaluator.core.errors import InputError
from evaluator.probes.base import Cost
from evaluator.probes.config import EvalConfig
from evaluator.tasks.loading import (
    DEEP_ITEMS,
    UNKNOWN_SIZE,
    items_by_language,
    load_task,
    question_bytes,
)
from launch.sweep.config import SweepConfig
from launch.sweep.controls import with_controls
from launch.sweep.jobs import CheckpointJob, expand, models_of
from launch.sweep.machines import Machine
from launch.sweep.models import ModelValue, is_served, local_directory
from launch.sweep.preflight_checks import bytes_of, keeps_references, reference_bytes
from pruning.config import PruneConfig
from pruning.methods import METHODS
from quantising.config import QuantiseConfig
from quantising.methods import METHODS as QUANTISING

PREFILL, DECODE = 0.4, 0.15  # shares of PEAK that prompts and generated tokens reach
REQUEST = 0.002  # seconds that the driver and the engine's scheduler spend on a request
LOAD = 60.0  # seconds to swap one checkpoint in and start its first requests
DISK = 1e9  # bytes per second

# Mean tokens, measured with Qwen's vocabulary on 60 items in each language of XQuAD
# (caps 512 and 1024).
_PROMPT = {"open": 328, "open_capped": 250, "one_shot": 428}
_QUESTION = 60  # tokens around a context
# the share of a lengthened context that the cache lacks: 45 % came before (gazetteer,
# 2,000 tokens)
_UNSHARED = 0.55
_WORDING = 20  # tokens of the open prompt besides context and question
_LISTED = 40  # tokens that a list of candidates adds to the open prompt
_OPTION = 9  # tokens of a candidate
_BYTES_PER_TOKEN = 4
_GGUF_BYTES = 0.6  # of a parameter, in a file of about 4.8 bits

# Parameters, as in the checkpoints' own safetensors; embeddings once where they are
# tied.
_PARAMETERS: Mapping[str, float] = {
    "Qwen/Qwen3-0.6B": 0.60e9,
    "Qwen/Qwen3-1.7B": 1.72e9,
    "Qwen/Qwen3-4B": 4.02e9,
    "Qwen/Qwen3-8B": 8.19e9,
    "Qwen/Qwen3-14B": 14.77e9,
    "mistralai/Mistral-7B-Instruct-v0.3": 7.25e9,
    "microsoft/Phi-3-mini-4k-instruct": 3.82e9,
    "HuggingFaceTB/SmolLM2-135M-Instruct": 0.135e9,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    items: int = 0
    requests: int = 0
    prompt_tokens: int = 0  # without those in the prefix cache
    generated_tokens: int = 0  # with forced ones, which are scored
    # positions with a compared distribution; the base keeps one for each
    compared: int = 0

    def plus(self, more: "Work | Cost", count: int = 1) -> "Work":
        """This and `count` times `more`."""
        sums = asdict(self)
        for name in sums:
            sums[name] += count * getattr(more, name)
        return Work(**sums)

    def of(self, items: int | None) -> "Work":
        """The part of it that `items` take; None: all."""
        if items is None or items >= self.items:
            return self
        parts = asdict(self)
        for name in parts:
            parts[name] = parts[name] * items // self.items
        return Work(**parts)


@dataclass(slots=True, kw_only=True)
class JobEstimate:
    """One checkpoint. Hours and disk are None if the size of its model is unknown."""

    job: CheckpointJob
    works: Mapping[str, Work]  # by task
    evaluation_hours: float | None = None
    compress_hours: float | None = None  # to prune or to quantise it
    disk_bytes: int | None = None  # bytes of the checkpoint, if the run makes it
    # bytes of distributions that it keeps for others; None: its vocabulary is unknown
    reference_bytes: int | None = 0

    @property
    def checkpoint(self) -> str:
        return self.job.name

    @property
    def work(self) -> Work:
        return reduce(Work.plus, self.works.values(), Work())


Estimates = Sequence[JobEstimate]


def total_of(estimates: Estimates) -> Work:
    return reduce(Work.plus, (row.work for row in estimates), Work())


def estimate(config: SweepConfig, machine: Machine) -> list[JobEstimate]:
    """One estimate for each checkpoint, in the order of the jobs. Raises InputError
    as expanding the sweep does."""
    values, sharing = models_of(config), shared_by(config, machine)
    work_once = cache(work_of)  # several checkpoints have one task
    estimates = []
    jobs = with_controls(expand(config, fetch=False), config, on_gpus=machine.gpus > 0)
    for job in jobs:
        works = {}
        for name, task in job.tasks.items():
            works[name] = work_once(task).of(job.most)
        row = JobEstimate(job=job, works=works)
        if keeps_references(job, jobs):
            row.reference_bytes = _references(job, works, config.engine.dtype)
        size = parameters_of(values[job.model])
        if size is not None:
            row.evaluation_hours = evaluation_hours(size, row.work, machine, sharing)
        made = job.quantise or job.prune
        if made is None:
            row.compress_hours = row.disk_bytes = 0
        elif size is not None:
            row.compress_hours = compress_hours(size, made, machine)
            row.disk_bytes = bytes_of(made, int(2 * size))  # of a bfloat16 model
        estimates.append(row)
    return estimates


def _references(
    job: CheckpointJob, works: Mapping[str, Work], dtype: str
) -> int | None:
    """The bytes of the distributions that a checkpoint keeps; None: unknown."""
    compared = {name: work.compared for name, work in works.items() if work.compared}
    if compared and not job.path.is_dir():
        return None
    return sum(
        reference_bytes(job.tasks[name], positions, job.path, dtype)
        for name, positions in compared.items()
    )


def work_of(task: EvalConfig) -> Work:
    """The load of one task on one checkpoint. Reads local data only. Raises
    InputError as loading the task does."""
    work = Work()
    if task.is_text:
        text = load_task(task.task, task.languages).text or ""
        tokens = max(1, len(text.encode()) // _BYTES_PER_TOKEN)
        for text_probe in task.text_probes:
            work = work.plus(text_probe.cost(tokens, task))
        return work
    items = deep = 0
    sizes = items_by_language(task.task, task.languages, task.data_settings)
    for size in sizes.values():
        count = min(task.items or size, size)
        items += count
        deep += min(count, DEEP_ITEMS)
    formats, scored = {"open"}, set[str]()
    measured = question_bytes(task.task, task.languages, task.data_settings)
    for probe in task.item_probes:
        cost = probe.cost(task)
        work = work.plus(cost, deep if probe.deep else items)
        formats |= set(probe.formats(task))
        scored |= cost.scored
    shared = Work(
        items=items,
        requests=items * len(scored),
        prompt_tokens=items
        * sum(_prompt_tokens(format, task, measured) for format in formats),
        generated_tokens=items * len(scored) * _OPTION,
    )
    return work.plus(shared)


def _prompt_tokens(format: str, task: EvalConfig, measured: float | None) -> int:
    """The tokens of a format's prompt. A format with candidates counts only those
    that it adds to the open prompt. `measured`: the bytes of the task's own
    questions."""
    if format in CAPPED_FORMATS:
        return min(_PROMPT[format], task.one_shot_prompt_tokens)
    if format != "open":
        return _LISTED
    if task.length:
        return _QUESTION + int(_UNSHARED * task.length)
    tokens = _PROMPT["open"]
    if measured is not None:
        tokens = _WORDING + round(measured / _BYTES_PER_TOKEN)
    return min(tokens, task.prompt_tokens)


def shared_by(config: SweepConfig, machine: Machine) -> int:
    """The engines on one GPU. A model of unknown size counts as a large one."""
    memory = int(1e9 * machine.memory)
    sizes = [parameters_of(value) for value in models_of(config).values()]
    width = 4 if config.engine.dtype == "float32" else 2
    largest = max(memory if size is None else width * size for size in sizes)
    return config.sharing(weights=int(largest), memory=memory)


def evaluation_hours(
    parameters: float, work: Work, machine: Machine, engines: int = 1
) -> float:
    """Hours on one GPU that `engines` share, or a CPU, by the module's formula."""
    tokens = work.prompt_tokens / PREFILL + work.generated_tokens / DECODE
    computing = 2 * parameters * tokens / (1e12 * machine.peak)
    return (computing + REQUEST * work.requests / engines + LOAD) / 3600


def compress_hours(
    parameters: float, config: PruneConfig | QuantiseConfig, machine: Machine
) -> float:
    """Hours on one GPU or a CPU, by the module's formula. vLLM's online quantisation is part
    of a load."""
    if config.method == ONLINE:
        return 0.0
    method = METHODS[config.method] if isinstance(config, PruneConfig) else None
    passes = (method or QUANTISING[config.method]).passes
    tokens = 0
    if config.calibration is not None:
        tokens = config.calibration.samples * config.calibration.sequence_length
    operations = 2 * parameters * passes * tokens / PREFILL
    return (operations / (1e12 * machine.peak) + 4 * parameters / DISK) / 3600


def parameters_of(value: ModelValue) -> float | None:
    """A model's number of parameters, from the size of its tensors or a known hub id;
    None for any other. One behind a URL is computed elsewhere."""
    if isinstance(value, Endpoint):
        return 0.0
    if is_served(value):
        file = Path(value)
        return file.stat().st_size / _GGUF_BYTES if file.is_file() else None
    directory = local_directory(value)
    if directory is None:
        return _PARAMETERS.get(value.partition("@")[0])
    try:
        check_files(directory)  # reading a pipe would never end
        checkpoint = Checkpoint(directory)
        return checkpoint.bytes / (4 if checkpoint.dtype == "float32" else 2)
    except (InputError, OSError):
        return None


def assumptions(machine: Machine, engines: int = 1) -> tuple[str, ...]:
    """What is printed with an estimate. `engines` share a GPU."""
    at_once = ""
    if engines > 1:
        at_once = f", for {engines} at a time: {engines} engines share a GPU"
    counts = (
        f"assumed: {_BYTES_PER_TOKEN} bytes in a token of your own questions and"
        f" texts; else {_PROMPT['open']} tokens in an open prompt,"
        f" {_PROMPT['open_capped']} in open_capped, {_PROMPT['one_shot']} in"
        " one_shot (mean of XQuAD with Qwen's vocabulary), each computed once,"
        f" {100 * _UNSHARED:.0f} % of a context with context_tokens;"
        f" {_OPTION} tokens in a candidate; every answer runs to its token cap; {UNKNOWN_SIZE:,} items in"
        f" each language of an unknown data set; {1e3 * REQUEST:.0f} ms of Python for"
        f" each request{at_once}; {LOAD:.0f} s to load a checkpoint"
    )
    return counts, speeds(machine)


def speeds(machine: Machine) -> str:
    return (
        f"assumed for {machine.name}: {machine.peak:.3g} TFLOP/s each; prompts reach"
        f" {100 * PREFILL:.0f} % of that and generation {100 * DECODE:.0f} %; 2"
        f" operations per parameter and token; {DISK / 1e9:.0f} GB/s of disk. An"
        " estimate may be wrong by several times. Nothing was started and nothing"
        " fetched."
    )
