"""`resurface show-prompt`: one item as a model is asked it, to the letter and to the token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evaluator.errors import InputError, unknown
from evaluator.records import FORMATS, Format, Item
from evaluator.tasks import TaskData, TaskSpec, load_task, tasks_help
from launch.commands.terminal import printed

if TYPE_CHECKING:
    from evaluator.asking.prompts import Prompt, Prompter
    from evaluator.asking.questions import Question

SAMPLE = "sample"


def show_prompt(
    task: Annotated[str, typer.Argument(metavar="TASK", help=tasks_help())],
    model: Annotated[str, typer.Option(help="whose tokenizer and chat template: directory, hub id, 'bundled'")],
    item: Annotated[str | None, typer.Option(help="its id; 'sample': the task's own sample; default the first")] = None,
    language: Annotated[str | None, typer.Option(help="name or code; of an id that several languages have")] = None,
    format: Annotated[str, typer.Option(help=", ".join(FORMATS))] = "open",
    chat: Annotated[bool, typer.Option(help="prompt through the tokenizer's chat template")] = False,
    items: Annotated[int, typer.Option(help="per language, as in eval: decides the example of one_shot")] = 200,
    seed: Annotated[int, typer.Option(help="run seed of the distractors")] = 0,
) -> None:
    """Print an item's prompt, where its tokens begin and end, and what choice scores after it. Starts no engine."""
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    question = _question(task, item, language, format, items, seed)
    from evaluator.asking.prompts import Prompter
    from evaluator.checkpoints.tokenizer import load_tokenizer
    from evaluator.probes.config import EvalConfig
    from launch.sweep.models import resolve_model

    tokenizer = load_tokenizer(resolve_model(model))
    caps = {name: EvalConfig.model_fields[name].default for name in ("prompt_tokens", "one_shot_prompt_tokens")}
    prompter = Prompter(tokenizer, chat=chat, **caps)
    if not question.can_pose(format):
        raise InputError(f"item {question.item.item_id!r}: format {format!r}: {question.why_not(format)}")
    candidates = question.candidates.get(format, ())
    prompt = prompter.build(question.item, format, candidates=candidates, exemplar=question.exemplar)
    printed("\n".join(_shown(question, prompt, format, prompter, tokenizer)))


def _question(task: str, item_id: str | None, language: str | None, format: Format, items: int, seed: int) -> Question:
    """The item as `questions_of` poses it. Raises InputError for an item or a language that is not there."""
    from evaluator.asking.questions import Wanted, questions_of

    data, found = _found(task, item_id, language)
    if not found.answers:
        raise InputError(f"task {task!r}, item {found.item_id!r}: no right answer, so that it is excluded")
    pools = {found.language: data.every_pool[found.language]}
    one = TaskData(name=data.name, digest=data.digest, pools=pools, every_pool=data.every_pool)
    # An item that is not among those that a run would ask is posed the same way, but for the example of one_shot.
    for count in (items, 0):
        wanted = Wanted(items=count, seed=seed, formats=(format,), options=True, fits=lambda _: True)
        for question in questions_of(one, wanted):
            if question.item is found:
                return question
    raise AssertionError("every item of the pool is asked")


def _found(task: str, item_id: str | None, language: str | None) -> tuple[TaskData, Item]:
    parsed = TaskSpec.parse(task)
    if parsed.task.kind == "text":
        raise InputError(f"task {task!r}: a text has no items, and no prompts")
    if item_id == SAMPLE and parsed.task.sample is not None:
        item = parsed.task.sample()
        pools = {item.language: (item,)}
        return TaskData(name=task, digest="", pools=pools, every_pool=pools), item
    data = load_task(task, None if language is None else [language])
    known = [item for pool in data.pools.values() for item in pool]
    if item_id is None:
        return data, next((item for item in known if item.answers), known[0])
    same = [item for item in known if item.item_id == item_id]
    if not same:
        raise InputError(
            f"task {task!r}: there is no item {item_id!r} (the first are {', '.join(i.item_id for i in known[:3])})"
        )
    if len(same) > 1:
        languages = ", ".join(item.language for item in same)
        raise InputError(
            f"task {task!r}: item {item_id!r} is in several languages: name one with --language ({languages})"
        )
    return data, same[0]


def _shown(question: Question, prompt: Prompt, format: Format, prompter: Prompter, tokenizer: Any) -> Iterator[str]:
    item = question.item
    cut = ", its context cut to fit" if prompt.truncated else ""
    yield f"item {item.item_id}, {item.language}, format {format}: {len(prompt.token_ids)} tokens{cut}"
    yield ""
    yield prompt.text
    yield ""
    yield "tokens (| between two; \\n a line break; (3) a character of 3 tokens):"
    yield "|".join(_pieces(prompt.token_ids, prompter, tokenizer))
    yield ""
    yield f"right: {' / '.join(item.answers)}"
    if question.options is None or format != "open":
        return  # of one item alone, no other answer can be drawn
    yield ""
    yield "choice scores, after this prompt (* is right):"
    texts = question.options.texts
    for number, (text, scored) in enumerate(zip(texts, prompter.continuations(prompt, texts), strict=True)):
        moved = len(prompt.token_ids) - len(scored.prompt_ids)
        note = f"   [from {moved} tokens before the prompt's end: the tokenizer merges across it]" if moved else ""
        pieces = "|".join(_pieces(scored.continuation_ids, prompter, tokenizer))
        yield f"{'*' if number == question.options.gold else ' '} {text}: {pieces}{note}"


def _pieces(token_ids: Sequence[int], prompter: Prompter, tokenizer: Any) -> Iterator[str]:
    """The text of each token; tokens that are parts of one character stand together, a special one by its name."""
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
