"""From `TASK[:PATH]` to its items by language, or its text; and which items of a
language are evaluated.

The selection follows The Benchmark Illusion (arXiv 2606.17609)."""

import hashlib
import json
import random
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from evaluator.core.errors import InputError, unknown
from evaluator.core.grading import gradable
from evaluator.core.records import Item, is_group
from evaluator.core.text import code_of
from evaluator.tasks.base import Items, NoSplit, TaskSpec
from evaluator.tasks.source import Source

# items in a language of a data set that would have to be fetched to be counted
UNKNOWN_SIZE = 10_000
TRAINING = "train"  # the split of solved examples
# in tables: the pooled languages, and the mean over them
NO_LANGUAGES = ("all", "mean")
_ANY_LANGUAGE = "?"  # a column says it


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskData:
    """A task with everything that it can ask."""

    name: str  # what records call it; safe as the name of a directory
    digest: str  # SHA-256 (hex) over every item of every language: identifies the data
    # requested language -> all its items in file order, as requested
    pools: Mapping[str, tuple[Item, ...]]
    # the same for all languages of the task: `unrelated` draws from these
    every_pool: Mapping[str, tuple[Item, ...]]
    # language -> the items of the data set's training split, if it is not the task's
    examples: Mapping[str, tuple[Item, ...]] = field(default_factory=dict)
    text: str | None = None  # of a text task, which has no pools
    left_out: tuple[str, ...] = ()  # fields or data files that were not read

    def named(self, name: str) -> "TaskData":
        if name == self.name:
            return self
        pools = {}
        for language, pool in self.every_pool.items():
            pools[language] = tuple(replace(item, task=name) for item in pool)
        chosen = {language: pools[language] for language in self.pools}
        return replace(self, name=name, pools=chosen, every_pool=pools)


def load_task(
    spec: str,
    languages: Sequence[str] | None,
    name: str | None = None,
    said: Source | None = None,
) -> TaskData:
    """The items of `TASK` or `TASK:PATH` in `languages`, names or codes (None: all), or
    a text task's text.

    `name` is the task's in records; `said`: the user's settings. Raises InputError for
    what is unknown or unreadable.
    """
    parsed = TaskSpec.parse(spec)
    name = task_name(spec, name)
    task = parsed.task
    if task.read_text is not None:
        if languages is not None:
            raise InputError(
                f"task {spec!r}: languages: a text has none to choose from"
            )
        text = task.read_text(parsed.path)
        digest = hashlib.sha256(text.encode("utf-8")).hexdigest()
        return TaskData(name=name, digest=digest, pools={}, every_pool={}, text=text)
    translations: bool | None = task.translations
    if task.data is not None:
        given = said or Source()
        read = task.data.read(parsed.path, given)
        described, _ = task.data.source(parsed.path)
        stated = given.over(described).translations
        translations = task.translations if stated is None else stated
    else:
        assert task.read_items is not None
        read = task.read_items(parsed.path)
    by_language = _by_language(spec, read)
    apart = set() if translations else _shared_clusters(by_language)
    content, every_pool = hashlib.sha256(), {}
    for language, pool in sorted(by_language.items()):
        for item in pool:
            # Without the task's name: a file that is renamed holds the same data.
            fields = (
                *(item.language, item.item_id, item.context, item.question),
                *(item.answers, item.cluster, item.options),
            )
            content.update(json.dumps(fields, ensure_ascii=False).encode() + b"\n")
        every_pool[language] = tuple(_named(item, name, apart) for item in pool)
    wanted = every_pool if languages is None else spelled(name, languages, every_pool)
    return TaskData(
        name=name,
        digest=content.hexdigest(),
        pools={language: every_pool[language] for language in wanted},
        every_pool=every_pool,
        left_out=read.left_out if isinstance(read, Items) else (),
    )


def with_examples(data: TaskData, spec: str, said: Source | None) -> TaskData:
    """The task with the items of its data set's training split, where it has one; they
    are a part of its digest. Raises InputError as `load_task` does."""
    if TaskSpec.parse(spec).task.data is None:
        return data
    training = Source(split=TRAINING).over(said or Source())
    try:
        train = load_task(spec, None, data.name, training)
    except NoSplit:
        return data
    content = hashlib.sha256(f"{data.digest} {train.digest}".encode())
    return replace(data, examples=train.every_pool, digest=content.hexdigest())


def _by_language(spec: str, items: Iterable[Item]) -> dict[str, list[Item]]:
    """The items of each language. Raises InputError without items, for an id that is
    twice in a language, and for a language that is spelled in two ways or that names a
    row of the tables."""
    by_language: dict[str, dict[str, Item]] = {}
    spellings: dict[str, str] = {}
    for item in items:
        language = item.language
        first = spellings.setdefault(code_of(language), language)
        pool = by_language.setdefault(language, {})
        problem = ""
        if language.strip().lower() in NO_LANGUAGES:
            problem = (
                f"{language!r} (item {item.item_id!r}) names a row of the tables, and"
                " no language; give it another name"
            )
        elif is_group(language):
            problem = f"{language!r} (item {item.item_id!r}) looks like a group's name"
        elif first != language:
            problem = f"{first!r} and {language!r} are one language; spell it one way"
        elif item.item_id in pool:
            problem = f"{language!r}: field 'id' repeats {item.item_id!r}"
        if problem:
            raise InputError(f"task {spec!r}: language: {problem}")
        pool[item.item_id] = item
    if not by_language:
        raise InputError(f"task {spec!r}: holds no items")
    return {language: list(pool.values()) for language, pool in by_language.items()}


def _shared_clusters(by_language: Mapping[str, Sequence[Item]]) -> set[str]:
    """The clusters with items of several languages."""
    seen: dict[str, str] = {}
    shared = set()
    for language, pool in by_language.items():
        for item in pool:
            if seen.setdefault(item.cluster, language) != language:
                shared.add(item.cluster)
    return shared


def _named(item: Item, name: str, apart: Collection[str]) -> Item:
    """An item of the task `name`, with its digest. Languages do not share the
    clusters `apart`."""
    asked = json.dumps([item.context, item.question, item.answers, item.options])
    digest = hashlib.sha256(asked.encode()).hexdigest()
    cluster = item.cluster
    if cluster in apart:
        cluster = f"{item.language}: {cluster}"
    return replace(item, task=name, cluster=cluster, digest=digest)


def is_here(spec: str) -> bool:
    """Whether a task's data are read without the network. Raises InputError as
    `load_task` does."""
    parsed = TaskSpec.parse(spec)
    if parsed.task.data is not None:
        return parsed.task.data.source(parsed.path)[1]
    return parsed.path is not None or not parsed.task.sizes


def items_by_language(
    spec: str,
    languages: Sequence[str] | None,
    said: Source | None = None,
    most: int = 0,
) -> Mapping[str, int]:
    """How many items are asked by language, `most` if not 0, without the network (or
    `UNKNOWN_SIZE`). Raises InputError as `load_task` does."""
    parsed = TaskSpec.parse(spec)
    task, given = parsed.task, said or Source()
    sizes, usual = task.sizes, Source()
    if task.data is not None:
        usual, _ = task.data.source(parsed.path)
        if given.config is not None or given.split is not None:
            sizes = {}
    if is_here(spec):
        pools = load_task(spec, languages, said=said).pools
        return {
            language: sum(not is_excluded(item) for item in select(pool, most))
            for language, pool in pools.items()
        }
    known: Collection[str] = sizes
    if task.data is not None and (said or not sizes):
        configs = given.over(usual).configs
        known = [language or _ANY_LANGUAGE for language in configs]
    wanted: Sequence[str] = languages or tuple(known)
    if known != [_ANY_LANGUAGE]:
        wanted = spelled(spec, wanted, known)
    found = {language: sizes.get(language, UNKNOWN_SIZE) for language in wanted}
    return {language: min(most or size, size) for language, size in found.items()}


def question_bytes(
    spec: str, languages: Sequence[str] | None, given: Source | None = None
) -> float | None:
    """The mean UTF-8 bytes of a question with its context, without the network; None
    if the items are not on this machine. Raises InputError as `load_task` does."""
    if not is_here(spec):
        return None
    sizes: list[int] = []
    for pool in load_task(spec, languages, said=given).pools.values():
        sizes += [len(f"{item.context} {item.question}".encode()) for item in pool]
    return sum(sizes) / len(sizes) if sizes else None


def task_name(spec: str, name: str | None = None) -> str:
    """`name`, else a file's stem, else the task itself. Raises InputError as
    `TaskSpec.parse` does."""
    parsed = TaskSpec.parse(spec)
    task, argument = parsed.task, parsed.task.argument
    if name is not None:
        return name
    if parsed.word is not None and argument is not None:
        return argument.words[parsed.word]
    if task.named_after == "task" or parsed.path is None:
        return task.name
    # The hub's ORG/NAME@REVISION gives NAME, which may contain dots.
    stem = (
        parsed.path.stem
        if parsed.path.exists()
        else str(parsed.path).partition("@")[0].rpartition("/")[2]
    )
    # Without anything that could upset a file system or a shell; readers of Parquet
    # skip names that begin with . or _.
    return re.sub(r"[^\w.-]+", "-", stem).lstrip("-._").rstrip("-.") or task.name


def spelled(
    task: str, languages: Sequence[str], known: Collection[str]
) -> tuple[str, ...]:
    """`languages` as `known` spells them ("sw": "swahili"). Raises InputError for an
    unknown one and for none."""
    if not languages:
        raise InputError(f"task {task!r}: no language is asked for")
    spellings = []
    for language in languages:
        code = code_of(language)
        same = [each for each in known if code_of(each) == code]
        if language in known:
            same = [language]
        if len(same) != 1:
            what = f"{'ambiguous ' if same else ''}language of task {task!r}:"
            raise unknown(what, language, same or known)
        spellings += same
    return tuple(spellings)


# The subset is part of the protocol, not of a run: every run, whatever its seed, asks
# the same items.
_SUBSET_SEED = 42
# Beam and sample run on the first 100 items of a language only.
DEEP_ITEMS = 100


def select(pool: Sequence[Item], items: int) -> list[Item]:
    """The first `items` of a seeded shuffle of the pool, which is in file order; 0
    means all, and so does too many."""
    shuffled = list(pool)
    random.Random(_SUBSET_SEED).shuffle(shuffled)
    return shuffled[:items] if items else shuffled


def is_excluded(item: Item) -> bool:
    """Whether grading could say nothing about the item: no gold answer, or none that
    is `gradable`."""
    return not gradable(item.answers, item.language)


def gold_option(item: Item) -> str:
    """The first gradable answer of an item, not excluded: it is listed, scored and
    ranked."""
    return gradable(item.answers, item.language)[0]
