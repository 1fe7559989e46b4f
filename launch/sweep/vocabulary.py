"""Whether a model has a row for each token that its run's prompts need.

A tokenizer with more tokens than its model has rows is common and harmless, as long as
no prompt has such a token."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from evaluator.asking.questions import Question
from evaluator.core.errors import InputError, counted
from evaluator.probes.planning import prompter_of
from launch.sweep.models import vocabulary_of
from launch.sweep.preflight_checks import Infos
from launch.sweep.prepared_tasks import Asked, PreparedTask, Tokenizers


def refused_by_tokens(
    infos: Infos, tokenizers: Tokenizers, asked: Asked
) -> tuple[dict[str, str], list[str]]:
    """Why checkpoints cannot answer this run's prompts, by name; and notes on tokens
    that no prompt has."""
    refused, notes = {}, []
    for name, info in infos.items():
        rows, known = vocabulary_of(info.path), tokenizers[name].get_vocab()
        beyond = {at: token for token, at in known.items() if at >= rows}
        if info.served or not rows or not beyond:
            continue
        if stray := _stray(asked.get(name, ()), tokenizers[name], beyond):
            refused[name] = (
                f"checkpoint {info.path}: {stray} is beyond the {rows} rows of the model"
                " (config.json: vocab_size): the tokenizer is another model's"
            )
        else:
            notes.append(
                f"{name}: no prompt has {counted(len(beyond), 'token')} of its tokenizer"
                f" beyond the model's {rows} rows, as {beyond[min(beyond)]!r}"
            )
    return refused, notes


def _stray(
    tasks: Iterable[PreparedTask], tokenizer: Any, beyond: Mapping[int, str]
) -> str:
    """The first token of a prompt that has no row, in words; empty for none."""
    for task in tasks:
        for item, ids in _asked(task, tokenizer):
            if found := beyond.keys() & set(ids):
                return f"token {min(found)} ({beyond[min(found)]!r}) of {item}"
    return ""


def _asked(task: PreparedTask, tokenizer: Any) -> Iterator[tuple[str, Iterable[int]]]:
    """The tokens of each open prompt, and of its options; in words, what they are of."""
    for window in task.windows:
        yield f"task {task.name!r}", map(int, window.token_ids)
    prompter = prompter_of(tokenizer, task.config)
    for question in task.questions:
        if not isinstance(question, Question):
            continue
        name = f"item {question.item.item_id!r} of task {task.name!r}"
        with suppress(InputError):  # the run leaves it out
            yield name, prompter.build(question.item, "open").token_ids
        for text in question.option_texts:
            yield name, tokenizer(text, add_special_tokens=False)["input_ids"]
