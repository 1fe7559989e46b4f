"""The cost of a sweep: jobs, requests, tokens and disk space. Reads no weight and needs
no network.

The settings give the numbers of items, requests and prompts. Lengths are assumptions,
printed with the result. The time follows from the last run in the same directory, if
there is one: its engines' requests a second, on its machine.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial, reduce

from evaluator.asking.prompts import CAPPED_FORMATS
from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.files import check_files
from evaluator.core.errors import Document, InputError, Json, rows_at
from evaluator.probes.base import Cost
from evaluator.probes.config import EvalConfig
from evaluator.tasks import TaskSpec
from evaluator.tasks.loading import (
    DEEP_ITEMS,
    UNKNOWN_SIZE,
    is_here,
    items_by_language,
    load_task,
    question_bytes,
)
from launch.provenance import count_gpus
from launch.sweep.config import SweepConfig
from launch.sweep.controls import with_controls
from launch.sweep.jobs import CheckpointJob, expand, models_of
from launch.sweep.models import local_directory
from launch.sweep.preflight_checks import bytes_of, keeps_references, reference_bytes

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
        own = asdict(self).items()
        return Work(**{name: n + count * getattr(more, name) for name, n in own})

    def of(self, items: int | None) -> "Work":
        """The part of it that `items` take; None: all."""
        if items is None or items >= self.items:
            return self
        own = asdict(self).items()
        return Work(**{name: n * items // self.items for name, n in own})


@dataclass(slots=True, kw_only=True)
class JobEstimate:
    """One checkpoint. The disk space is None if the size of its model is unknown."""

    job: CheckpointJob
    works: Mapping[str, Work]  # by task
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
# by checkpoint and task: settings that change, and the items that lack what they ask for
Left = Mapping[tuple[str, str], Sequence[tuple[Json, int]]]


def total_of(estimates: Estimates) -> Work:
    return reduce(Work.plus, (row.work for row in estimates), Work())


def estimate(config: SweepConfig, left: Left | None = None) -> list[JobEstimate]:
    """One estimate for each checkpoint, in the order of the jobs. `left`: those that are
    to be done, where not all. Raises InputError as expanding the sweep does."""
    values = models_of(config)
    # several checkpoints have one task, and several works its data
    work_once = cache(partial(work_of, measure=cache(question_bytes)))
    estimates = []
    on_gpus = "RAY_ADDRESS" in os.environ or count_gpus() != 0
    jobs = with_controls(expand(config), config, on_gpus=on_gpus)
    for job in jobs:
        works, asked = {}, {}
        for name, task in job.tasks.items():
            works[name] = work_once(task).of(job.most)
            asked[name] = works[name]
            if left and (job.name, name) in left:
                asked[name] = Work()
                for update, items in left[job.name, name]:
                    more = work_once(task.model_copy(update=update), items)
                    asked[name] = asked[name].plus(more)
        row = JobEstimate(job=job, works=asked)
        if keeps_references(job, jobs):
            row.reference_bytes = _references(job, works, config.engine.dtype)
        if (made := job.quantise or job.prune) is None:
            row.disk_bytes = 0
        elif (size := parameters_of(str(values[job.model]))) is not None:
            row.disk_bytes = bytes_of(made, int(2 * size))  # of a bfloat16 model
        estimates.append(row)
    return estimates


def seconds_of(work: Work, run: Document) -> float | None:
    """The engines' seconds of so much work, as the run with this run.json did its own;
    None without an engine's work there."""
    served = [row for row in rows_at(run, "engine_stats") if row.get("busy_seconds")]
    requests = sum(row["requests"] for row in served)
    if not requests:
        return None
    seconds = sum(row["busy_seconds"] + row["waiting_seconds"] for row in served)
    return float(seconds * work.requests / requests)


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


def work_of(
    task: EvalConfig,
    items: int | None = None,
    *,
    measure: Callable[..., float | None] = question_bytes,
) -> Work:
    """The load of one task on one checkpoint. Reads local data only. `items`: so many,
    which all its probes ask. Raises InputError as loading the task does."""
    work = Work()
    if task.is_text:
        (size,) = TaskSpec.parse(task.task).task.sizes.values() or (0,)
        if is_here(task.task):
            size = len((load_task(task.task, task.languages).text or "").encode())
        tokens = max(1, size // _BYTES_PER_TOKEN)
        for text_probe in task.text_probes:
            work = work.plus(text_probe.cost(tokens, task))
        return work.of(items)
    deep = items
    if items is None or deep is None:
        asked = items_by_language(
            task.task, task.languages, task.data_settings, task.items
        ).values()
        items, deep = sum(asked), sum(min(count, DEEP_ITEMS) for count in asked)
    formats, scored = {"open"}, set[str]()
    measured = measure(task.task, task.languages, task.data_settings)
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
    return min(tokens * (1 + task.few_shot), task.prompt_tokens)


def parameters_of(value: str) -> float | None:
    """A model's number of parameters, from the size of its tensors or a known hub id;
    None for any other."""
    directory = local_directory(value)
    if directory is None:
        return _PARAMETERS.get(value.partition("@")[0])
    try:
        check_files(directory)  # reading a pipe would never end
        checkpoint = Checkpoint(directory)
        return checkpoint.bytes / (4 if checkpoint.dtype == "float32" else 2)
    except (InputError, OSError):
        return None


def assumptions(estimates: Estimates) -> str:
    """What they assume, in words."""
    tasks = [task for row in estimates for task in row.job.tasks.values()]
    formats = {
        form
        for task in tasks
        for probe in task.item_probes
        for form in probe.formats(task)
    }
    of_hub = [task for task in tasks if not is_here(task.task)]
    sizes = [items_by_language(task.task, task.languages) for task in of_hub]
    said = {
        f"{_BYTES_PER_TOKEN} bytes in a token of texts": len(of_hub) < len(tasks),
        f"{_PROMPT['open']} tokens in an open prompt, as in XQuAD with Qwen's"
        " vocabulary": of_hub,
        **{f"{_PROMPT[form]} in {form}": form in formats for form in CAPPED_FORMATS},
        f"{_UNSHARED:.0%} of a long context": any(task.length for task in tasks),
        f"{UNKNOWN_SIZE:,} items in each language of an unknown data set": any(
            UNKNOWN_SIZE in size.values() for size in sizes
        ),
        f"{_OPTION} tokens in a candidate": True,
        "every answer runs to its token cap": True,
    }
    used = "; ".join(text for text, is_used in said.items() if is_used)
    return f"assumed: {used}. Nothing was started and nothing fetched."
