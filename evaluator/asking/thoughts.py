"""How models write down what they think before they answer: one object for each
format of chat template. Pure.

    <|im_start|>assistant\\n <think>\\nIt flows through Egypt.\\n</think> \\n\\nThe
    Nile<|im_end|>
    the prompt's end         the thought                       its end   the answer

A thought ends with one token of the vocabulary, so an engine can stop there. It is

- `closed`: the model wrote that token;
- `cut`: the limit or EOS came first, so there is no answer; what is scored follows the
  token that we append;
- `none`: it answered without a thought."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from evaluator.core.errors import InputError
from evaluator.core.records import ThoughtState, TokenIds


@dataclass(frozen=True, slots=True, kw_only=True)
class ThoughtFormat:
    name: str
    marks: tuple[str, ...]  # what a chat template of this format contains
    start: str = "<think>"  # opens a thought, in the prompt or in the response
    end: str = "</think>"  # a single token
    header: str = ""  # what must stand between the end and the answer
    # what models write before the answer, and stands before an answer that is scored
    gap: str = "\n\n"
    bare: str = ""  # what must stand before an answer without a thought


FORMATS = (
    ThoughtFormat(
        name="gpt-oss",
        marks=("<|channel|>", "analysis"),
        start="<|channel|>analysis<|message|>",
        end="<|end|>",
        header="<|start|>assistant<|channel|>final<|message|>",
        gap="",
        bare="<|channel|>final<|message|>",
    ),
    ThoughtFormat(name="qwen", marks=("</think>", "enable_thinking")),
    ThoughtFormat(name="deepseek", marks=("</think>", "<｜Assistant｜>")),
    ThoughtFormat(name="think", marks=("</think>",)),
)


def thinking_variables(on: bool) -> dict[str, bool]:
    """The variables by which chat templates switch thinking."""
    return (
        {"enable_thinking": True, "thinking": True}
        if on
        else {"enable_thinking": False}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Thought:
    """What a model thought before it answers a prompt."""

    state: ThoughtState  # `closed` or `cut`
    # with the tag that opens it, if the model wrote that; without its end
    token_ids: TokenIds
    text: str  # without tags


class Thoughts:
    """The thoughts of one tokenizer's models. Raises InputError if its chat template
    knows none."""

    def __init__(self, tokenizer: Any) -> None:
        template = str(tokenizer.chat_template)  # of several, by their names
        found = next(
            (each for each in FORMATS if all(mark in template for mark in each.marks)),
            None,
        )
        if found is None:
            raise InputError(
                f"{tokenizer.name_or_path}: thinking: the chat template has no thoughts"
                f" in a known format ({', '.join(each.name for each in FORMATS)}); use"
                " thinking: off"
            )
        self.format = found
        self.start_ids, ends = (
            tuple(tokenizer.encode(text, add_special_tokens=False))
            for text in (found.start, found.end)
        )
        if len(ends) != 1:
            raise InputError(
                f"{tokenizer.name_or_path}: thinking: {found.end!r} ends a thought, and"
                f" is {len(ends)} tokens of its vocabulary instead of one; use"
                " thinking: off"
            )
        self.end_id: int = ends[0]

    def read(
        self,
        prompt: str,
        response: TokenIds,
        eos_ids: Collection[int],
        decode: Callable[[Sequence[int]], str],
    ) -> Thought | None:
        """The thought of a response that stopped at the first end of a thought, at
        EOS or at a limit; None without one.

        `prompt` is the text that the model answered."""
        ids = (
            response[:-1]
            if response and (response[-1] == self.end_id or response[-1] in eos_ids)
            else response
        )
        closed = self.end_id in response[-1:]
        tagged = ids[: len(self.start_ids)] == self.start_ids
        if not (closed or tagged or prompt.rstrip().endswith(self.format.start)):
            return None
        inner = ids[len(self.start_ids) :] if tagged else ids
        return Thought(
            state="closed" if closed else "cut",
            token_ids=ids,
            text=decode(inner).strip(),
        )
