"""`resurface list` lists what is registered, `tasks` describes one task, and
`show-prompt` shows one item's exact prompts and tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from evaluator.asking.prompts import prompt_text
from evaluator.core.config import validated
from evaluator.core.errors import InputError, Json, nearest, unknown
from evaluator.core.graders import GRADERS
from evaluator.core.records import FORMATS, Format, Item
from evaluator.probes import PROBES
from evaluator.probes.config import EvalConfig
from evaluator.tasks import TASKS, Source, Task, TaskData, TaskSpec, load_task
from evaluator.tasks.base import PAPER
from evaluator.tasks.distractors import choose_options
from evaluator.tasks.loading import DEEP_ITEMS
from launch.commands.options import (
    Prompts,
    TaskName,
    as_option,
    completing,
    listed,
    question,
    task_names,
    with_fields,
)
from launch.commands.terminal import (
    AsJson,
    console,
    empty_table,
    print_json,
    print_plain,
    printed,
)
from launch.documents import Names
from launch.sweep.compress import KINDS
from pruning.methods import METHODS
from quantising.methods import METHODS as QUANTISING

if TYPE_CHECKING:
    from evaluator.asking.prompts import Prompt, Prompter
    from evaluator.asking.questions import Question
    from evaluator.asking.templates import PromptTemplate


FORMATS_HELP: Mapping[Format, str] = {
    "open": "the context and the question",
    "shown": "also the gold answer and wrong options",
    "distractors_only": "also wrong options, without the gold answer",
    "unrelated": "also four answers of other languages",
    "one_shot": "a solved example before the question",
    "open_capped": "open, with a context as short as in one_shot",
}


Lists = Mapping[str, Mapping[Any, str]]  # by kind: a name and what it is


def _tables() -> Lists:
    from evaluator.metrics import TABLES

    return {"table": {each.name: each.title for each in TABLES}}


def _recipes() -> Lists:
    from evaluator.metrics.published import paper

    about: Json = paper()["recipes"]
    return {"recipe": {name: each["question"] for name, each in about.items()}}


LISTS: Mapping[str, Callable[[], Lists]] = {
    "tasks": lambda: {"task": {_spelled(each): each.help for each in TASKS}},
    "probes": lambda: {
        "probe": {each.name: each.help for each in PROBES},
        "format": FORMATS_HELP,
    },
    "graders": lambda: {"grader": {each.name: each.help for each in GRADERS}},
    "methods": lambda: {
        "method to prune": {each.name: each.help for each in METHODS},
        "method to quantise": {each.name: each.help for each in QUANTISING},
    },
    "tables": _tables,
    "recipes": _recipes,
}
_MORE = {
    "tasks": "[:DIR]: the data set is on the hub, or in DIR. `resurface tasks TASK` shows"
    " a sample and its prompts.",
    "methods": f"calibration texts: {', '.join(KINDS)}",
    "recipes": "small/NAME: the same on the bundled model; `resurface sweep NAME --show`"
    " prints the file",
}


def list_names(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND", help=", ".join(LISTS), autocompletion=completing(LISTS)
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """List the names of a kind, with a line on each."""
    if kind not in LISTS:
        raise unknown("kind", kind, LISTS)
    lists = LISTS[kind]()
    if as_json:
        print_json(Names(names=lists))
        return
    for what, names in lists.items():
        table = empty_table((what, "description"), {what, "description"}, between=1)
        for row in names.items():
            table.add_row(*map(escape, row))
        console.print(table)
    if kind == "probes":
        deep = ", ".join(each.name for each in PROBES if getattr(each, "deep", False))
        print_plain(f"{deep}: the first {DEEP_ITEMS} items of each language only")
    if kind in _MORE:
        print_plain(_MORE[kind])


def tasks(
    task: Annotated[
        str,
        typer.Argument(
            metavar="TASK",
            help="one of `resurface list tasks`",
            autocompletion=task_names,
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Show a task with a sample item and its prompts. Needs no network.

    Samples were made for this command. `resurface show-prompt` shows an item of the
    data, in a model's tokens.
    """
    found = TaskSpec.parse(task).task if ":" in task else TASKS[task]
    if as_json:
        print_json(Names(names={"task": {_spelled(found): found.help}}))
    else:
        printed("\n".join([*_described(found), ""]))


def _spelled(task: Task) -> str:
    """The task as an option names it: gazetteer, squad[:DIR], text:FILE|gazetteer."""
    if task.argument is None:
        return task.name
    value = ":" + "|".join((task.argument.placeholder, *task.argument.words))
    return task.name + (value if task.argument.required else f"[{value}]")


def _described(task: Task) -> Iterator[str]:
    yield f"{task.name}   (--task {', '.join(task.spellings)})"
    yield f"  {task.help}"
    yield from (f"  {line}" for line in task.example.splitlines())
    if task.sizes and task.kind == "items":
        listed = [f"{language} {size:,}" for language, size in task.sizes.items()]
        yield f"  items on the hub: {', '.join(listed)}"
    if task.open:
        yield f"  open answers: {task.open}"
    if task.choice_only:
        yield "  for the probes choice and hard_choice only"
    if task.licence:
        yield f"  licence: {task.licence}"
    if task.settings:
        listed = [
            f"{name} {' '.join(value) if isinstance(value, list) else value}"
            for name, value in task.settings.items()
        ]
        yield f"  settings: {', '.join(listed)}"
    yield from _columns(task)
    if task.sample is not None:
        yield from _posed(task, task.sample())


def _columns(task: Task) -> Iterator[str]:
    """The columns that a preset reads of its data, and those of a suite."""
    for name, settings in {"": {}, **task.suites}.items():
        if (
            task.data is None
            or task.sample is None
            or (name and "fields" not in settings)
        ):
            continue
        source, _ = task.data.source(None)
        said = Source.model_validate({"fields": settings.get("fields")}).over(source)
        if said.fields:
            where = f" in {name}" if name else ""
            yield f"  columns{where}: {', '.join(said.fields.columns())}"


def _posed(task: Task, item: Item) -> Iterator[str]:
    """An item's prompts, and what choice scores."""
    from evaluator.asking.templates import PromptTemplate, Wording

    near = task.settings.get("options") == "near"
    options = None
    if item.options or near:
        options = choose_options(item, [item], seed=0, near=near)
    first = "probe choice" if task.choice_only else "format open"
    text = prompt_text(item, "open")
    if task.prompt:
        template = PromptTemplate(name=task.name, text=task.prompt)
        shown = () if options is None else options.texts
        text = Wording(template).whole(item, item.context, shown)
    prompts = {f"sample, the prompt of the {first}": text}
    if options is not None and not task.choice_only and not task.prompt:
        text = prompt_text(item, "shown", options.texts)
        prompts["the prompt of the format shown"] = text
    for title, text in prompts.items():
        yield f"  {title}:"
        yield from (f"    | {line}".rstrip() for line in text.split("\n"))
    if options is None:
        yield f"  right: {' / '.join(item.answers)}"
        yield (
            "  choice: the answer among three answers of other questions in its"
            " language"
        )
        return
    yield "  choice, scored after the first prompt (* is right):"
    for number, text in enumerate(options.texts):
        mark = "*" if number == options.gold else " "
        yield f"  {mark} {text}"


SAMPLE = "sample"


@with_fields(
    *("The questions", EvalConfig, "languages", "formats", "chat", "items"),
    *("seed", "options", "few_shot", "system", "thinking", "date"),
)
def show_prompt(
    task: TaskName,
    model: Annotated[
        str, typer.Option(help="directory, hub id, 'bundled': for its tokenizer")
    ],
    item: Annotated[
        str | None, question(help="an item's id, or 'sample'; default: the first item")
    ] = None,
    prompts: Prompts = None,
    prompt: Annotated[str | None, question(help="only this one of --prompts")] = None,
    **typed: Any,
) -> None:
    """Print an item's prompt, its tokens, and the options that choice scores. Starts
    no engine."""
    templates = _templates(prompts, prompt)
    for name in {"languages", "formats"} & typed.keys():
        typed[name] = listed(name, typed[name])
    data, found = _found(task, item, typed.pop("languages", None))
    from evaluator.asking.template_checks import try_prompts
    from evaluator.checkpoints.tokenizer import load_tokenizer
    from evaluator.probes.planning import prompter_of
    from launch.sweep.models import resolve_model
    from launch.sweep.prepared_tasks import today
    from launch.sweep.prompts import misfit

    config = validated(
        EvalConfig,
        {
            "task": task,
            "probes": ("greedy" if typed.get("thinking") else "choice",),
            **({"grader": "number"} if typed.get("options") == "near" else {}),
            "date": today(),
            **typed,
        },
        "resurface show-prompt",
        as_option,
    )
    wanted = [form for form in FORMATS if form in config.formats]
    tokenizer = load_tokenizer(resolve_model(model))
    blocks = []
    for template, format in product(templates, wanted):
        if template is not None and (why := misfit([format], template)):
            raise InputError(f"format {why}")
        posed = config.model_copy(
            update={"template": template or config.usual_template}
        )
        question = _question(data, found, posed)
        if not question.can_pose(format):
            raise InputError(
                f"item {found.item_id!r}: format {format!r}: {question.why_not(format)}"
            )
        candidates = question.candidates.get(format, ())
        if template is not None:
            try_prompts(template, [(found, candidates)])
        prompter = prompter_of(tokenizer, posed)
        shown = prompter.build(
            found,
            format,
            candidates=candidates,
            exemplar=question.exemplar,
            examples=question.examples,
        )
        lines = [*_shown(question, shown, format, prompter, tokenizer)]
        if prompts is not None:
            lines.insert(0, f"prompt {PAPER if template is None else template.name}")
        blocks.append("\n".join(lines))
    printed("\n\n".join(blocks))


def _templates(file: Path | None, only: str | None) -> list[PromptTemplate | None]:
    """The prompts to show; None is the paper's. Raises InputError for an unknown
    name."""
    from evaluator.asking.templates import PromptTemplate
    from launch.sweep.config import read_prompts

    texts = {} if file is None else read_prompts(file)
    if only not in (None, PAPER, *texts):
        raise unknown("prompt", str(only), [PAPER, *texts])
    names = [PAPER, *texts] if only is None else [only]
    return [
        None if name == PAPER else PromptTemplate(name=name, text=texts[name])
        for name in names
    ]


def _question(data: TaskData, item: Item, config: EvalConfig) -> Question:
    """The item as `questions_of` poses it. Raises InputError for one that is
    excluded."""
    from evaluator.probes.planning import questions_of

    if not item.answers:
        raise InputError(
            f"task {config.task!r}, item {item.item_id!r}: no right answer, so that it"
            " is excluded"
        )
    pools = {item.language: data.every_pool[item.language]}
    one = replace(data, pools=pools)
    # A run might not select this item. Its prompt is the same then, except for the
    # example of one_shot.
    for asked in (True, False):
        settings = config if asked else config.model_copy(update={"items": 0})
        for posed in questions_of(one, settings, refuse=False, asked=asked):
            if posed.item is item:
                return posed
    raise AssertionError("every item of the pool is asked")


def _found(
    task: str, item_id: str | None, languages: Sequence[str] | None
) -> tuple[TaskData, Item]:
    parsed = TaskSpec.parse(task)
    if parsed.task.kind == "text":
        raise InputError(f"task {task!r}: a text has no items, and no prompts")
    if item_id == SAMPLE and parsed.task.sample is not None:
        item = parsed.task.sample()
        pools = {item.language: (item,)}
        return TaskData(name=task, digest="", pools=pools, every_pool=pools), item
    data = load_task(task, languages)
    known = [item for pool in data.pools.values() for item in pool]
    if item_id is None:
        return data, next((item for item in known if item.answers), known[0])
    same = [item for item in known if item.item_id == item_id]
    if not same:
        ids = [item.item_id for item in known]
        raise InputError(
            f"task {task!r}: there is no item {item_id!r} (the first are"
            f" {', '.join(ids[:3])}){nearest(item_id, ids)}"
        )
    if len(same) > 1:
        several = ", ".join(item.language for item in same)
        raise InputError(
            f"task {task!r}: item {item_id!r} is in several languages: name one with"
            f" --languages ({several})"
        )
    return data, same[0]


def _shown(
    question: Question,
    prompt: Prompt,
    format: Format,
    prompter: Prompter,
    tokenizer: Any,
) -> Iterator[str]:
    item = question.item
    cut = ", its context cut to fit" if prompt.truncated else ""
    yield (
        f"item {item.item_id}, {item.language}, format {format}:"
        f" {len(prompt.token_ids)} tokens{cut}"
    )
    yield ""
    yield prompt.text
    yield ""
    yield "tokens (| between two; \\n a line break; (3) a character of 3 tokens):"
    yield "|".join(_pieces(prompt.token_ids, prompter, tokenizer))
    yield ""
    yield f"right: {' / '.join(item.answers)}"
    yield ""
    options = question.options
    if format != "open" or options is None:
        why = (
            question.why_not("shown") if format == "open" else "it asks in format open"
        )
        yield f"choice scores no options: {why}"
        return
    yield "choice scores, after this prompt (* is right):"
    scored = prompter.continuations(prompt, options.texts)
    for number, text in enumerate(options.texts):
        its = scored[number]
        moved, note = len(prompt.token_ids) - len(its.prompt_ids), ""
        if moved:
            note = (
                f"   [from {moved} tokens before the prompt's end: the tokenizer merges"
                " across it]"
            )
        pieces = "|".join(_pieces(its.continuation_ids, prompter, tokenizer))
        mark = "*" if number == options.gold else " "
        yield f"{mark} {text}: {pieces}{note}"


def _pieces(
    token_ids: Sequence[int], prompter: Prompter, tokenizer: Any
) -> Iterator[str]:
    """The text of each token. Joins the tokens of one character; a special token has
    its name."""
    told, held = "", 0
    for end in range(1, len(token_ids) + 1):
        text = prompter.decode(token_ids[:end])
        held += 1
        if text.endswith("\ufffd") and end < len(token_ids):
            continue
        piece = text[len(told) :].replace("|", "\\|").replace("\n", "\\n")
        if not piece:
            piece = str(tokenizer.convert_ids_to_tokens(token_ids[end - 1]))
        yield piece if held == 1 else f"({held}){piece}"
        told, held = text, 0
