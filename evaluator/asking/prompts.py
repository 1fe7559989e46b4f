"""From an item and a format to token ids, and from an answer to its additional ids.
Pure.

    prompter = Prompter(load_tokenizer(checkpoint), chat=False, prompt_tokens=512,
    one_shot_prompt_tokens=1024) prompt = prompter.build(item, "open")
    [scored] = prompter.continuations(prompt, ["Nile"])  # scored.continuation_ids are
                                                         the ids of " Nile"

The wording is the paper's, or a user's template's (`templates.py`).

A prompt over its token cap loses the end of its context, never its question: see
`Prompter.build`. Without a context, a prompt begins with the question.
"""

import hashlib
import json
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from typing import Any

from evaluator.asking.template_checks import LONGEST
from evaluator.asking.templates import PromptTemplate, Wording
from evaluator.asking.thoughts import Thought, Thoughts, thinking_variables
from evaluator.checkpoints.tokenizer import eos_ids_of
from evaluator.core.errors import InputError, one_line
from evaluator.core.records import Format, Item, TokenIds
from evaluator.tasks.loading import gold_option

# of the item in `one_shot`, and in `open_capped`, the 0-shot column beside it
CAPPED_CONTEXT_CHARS = 500
EXEMPLAR_CONTEXT_CHARS = 300
CAPPED_FORMATS: tuple[Format, ...] = ("one_shot", "open_capped")

# Some templates (Llama 3, gpt-oss) give the model today's date; a prompt must not
# change at midnight. So a run has one date. This is the default of Llama 3's templates,
# for prompts without a run.
DATE = date(2024, 7, 26)
_INSTRUCTION = "Answer in a few words:"
# How many longer prefixes are tried past one that fits: a merge can make a longer text
# shorter in tokens.
_LOOKAHEAD = 8
_TOKENS: dict[int, int] = {}  # every token id that was made, once


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt as the model sees it."""

    # chat template applied, context cut; after a thought: what stands between thought
    # and answer
    text: str
    token_ids: TokenIds  # after a thought: prompt, thought and text
    truncated: bool  # the token cap (not a cap in characters) cut the context
    # what the model thought before the answer that is to follow
    thought: Thought | None = None

    @property
    def digest(self) -> str:
        """Of the token ids; 16 hexadecimal digits."""
        return hashlib.blake2b(
            array("I", self.token_ids).tobytes(), digest_size=8
        ).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """Together the encoding of prompt and answer; a tokenizer that merges across the
    two leaves the prompt fewer."""

    prompt_ids: TokenIds
    continuation_ids: TokenIds  # at least one


class Prompter:
    """Makes the prompts of one task for one tokenizer (of transformers). The same call
    gives the same ids.

    `chat`: prompts are user turns of its chat template. `prompt_tokens` and
    `one_shot_prompt_tokens` cap a prompt's length. `template` words the prompts; None:
    the paper. `thinking`: models think before they answer (`thoughts`). `date`: what a
    chat template takes for today. Raises InputError for `chat` without a chat template,
    and for `thinking` without a template of thoughts.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        chat: bool,
        prompt_tokens: int,
        one_shot_prompt_tokens: int,
        template: PromptTemplate | None = None,
        thinking: bool = False,
        date: date | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._date = date or DATE
        self._chat = chat
        self._prompt_tokens = prompt_tokens
        self._one_shot_prompt_tokens = one_shot_prompt_tokens
        self._wording = None if template is None else Wording(template)
        if chat and not tokenizer.chat_template:
            raise InputError(
                f"{tokenizer.name_or_path}: chat: the tokenizer has no chat template"
            )
        # A chat template writes its special tokens itself. A tokenizer that ends every
        # text with one (EOS) would close the prompt before its answer: we drop that
        # tail.
        self._add_special_tokens = not chat
        self._tail = 0 if chat else _special_tail(tokenizer)
        self._opening = [] if chat else opening_of(tokenizer)
        self.system = ""  # the message before the user's turn in a chat template
        self.blank: str | None = None  # in a prompt, where an option is put
        self.whole = False  # spaces at a prompt's end belong to the answer
        self.eos_ids = eos_ids_of(tokenizer)
        self._counts: dict[str, int] = {}
        self.thoughts = Thoughts(tokenizer) if thinking else None

    def build(
        self,
        item: Item,
        format: Format,
        *,
        candidates: Sequence[str] = (),
        exemplar: Item | None = None,
        examples: Sequence[Item] = (),
        context_chars: int | None = None,
    ) -> Prompt:
        """The prompt that poses `item`. Raises InputError if it is too long without any
        context, or lacks an exemplar.

        The solved `examples` stand before it in every format but `one_shot`, each with
        the options that its prompt lists, and with its answer as its only one.

        `shown`, `distractors_only` and `unrelated` list the `candidates`; a template
        that names `options` lists them in every format. `one_shot` shows the
        `exemplar`. `context_chars` cuts the context first: by default to 500 for
        `one_shot` and `open_capped`, which also share a token cap, and not for the
        others.

        If the prompt is over its cap, the context is cut from its end, at a code point,
        to the longest prefix that fits: none of the next 8 longer ones does. (The
        number of tokens is not monotonic in the number of characters. So the search
        starts at the character of the cap's last token, gallops and bisects to a prefix
        that fits while the next one does not, and looks ahead.)
        """
        if context_chars is None and format in CAPPED_FORMATS:
            context_chars = CAPPED_CONTEXT_CHARS
        capped = format in CAPPED_FORMATS
        cap = self._one_shot_prompt_tokens if capped else self._prompt_tokens
        before, context, after = _pieces(
            item, format, candidates, exemplar, context_chars, self._wording
        )
        if examples and format != "one_shot":
            before = "".join(_solved(each, self._wording) for each in examples) + before
        if self._chat:
            before, after = self._in_chat_template(before, context, after)
        prompt = self._fit(before, context, after, cap)
        if prompt is None:
            shortest = len(self._encode(before + after))
            raise InputError(
                f"task {item.task!r}, item {item.item_id!r}: the {format!r} prompt"
                f" takes {shortest} tokens without its context, and the cap is {cap}"
            )
        return prompt

    def pose(self, before: str, middle: str, after: str) -> Prompt | None:
        """Any other text as a prompt, `middle` cut from its end to fit; None if it
        is too long even without."""
        if self._chat:
            before, after = self._in_chat_template(before, middle, after)
        return self._fit(before, middle, after, self._prompt_tokens)

    def _fit(self, before: str, middle: str, after: str, cap: int) -> Prompt | None:
        """The pieces as one prompt of at most `cap` tokens; None when it has more
        without the middle."""
        ids = self._encode(before + middle + after)
        if len(ids) <= cap:
            return Prompt(text=before + middle + after, token_ids=ids, truncated=False)
        kept = self._longest_prefix(before, middle, after, cap)
        if kept is None:
            return None
        text = before + middle[:kept] + after
        return Prompt(text=text, token_ids=self._encode(text), truncated=True)

    def continuations(
        self, prompt: Prompt, answers: Sequence[str]
    ) -> list[Continuation]:
        """Each answer as a continuation of `prompt`, checked by encoding both together,
        in one batch.

        A space precedes an answer, except after a chat template or white space. If the
        joint encoding does not begin with the prompt's ids, it is split after the last
        common token. With a `blank`, each answer is put there, and what follows it is
        its continuation. Raises InputError for an answer that adds no tokens.
        """
        separator = "" if self._chat else _separator(prompt.text)
        if self.blank is not None:
            start, _, rest = prompt.text.partition(self.blank)
            rest = f" {rest.strip()}"
            return [self._following(start + each, rest) for each in answers]
        if self.whole and not self._chat:
            return [self._following(prompt.text, f" {each}") for each in answers]
        before: TokenIds = ()
        # they are no text that could be encoded again
        if prompt.thought is not None and self.thoughts is not None:
            text = prompt.text + self.thoughts.format.gap
            before = prompt.token_ids[
                : len(prompt.token_ids) - len(self._encode(prompt.text))
            ]
            prompt = Prompt(
                text=text, token_ids=self._encode(text), truncated=prompt.truncated
            )
        joint = self._encode_batch(
            [prompt.text + separator + answer for answer in answers]
        )
        return [
            _split(before, prompt.token_ids, ids, answer)
            for ids, answer in zip(joint, answers, strict=True)
        ]

    def _following(self, text: str, rest: str) -> Continuation:
        """A text's continuation, with the white space between them, as in lm-eval."""
        return _split((), self._encode(text.rstrip()), self._encode(text + rest), rest)

    def after(self, prompt: Prompt, thought: Thought | None) -> Prompt:
        """The prompt with a thought that has ended, or None: what follows is the
        answer."""
        assert self.thoughts is not None
        if thought is None:
            if not (bare := self.thoughts.format.bare):
                return prompt
            ids = (*prompt.token_ids, *self._encode(bare))
            return Prompt(
                text=prompt.text + bare, token_ids=ids, truncated=prompt.truncated
            )
        text = self.thoughts.format.end + self.thoughts.format.header
        ids = (*prompt.token_ids, *thought.token_ids, *self._encode(text))
        return Prompt(
            text=text, token_ids=ids, truncated=prompt.truncated, thought=thought
        )

    def quoted(self, text: str) -> str:
        """A text as one line in double quotes that it cannot close, and without any
        special token."""
        if self._special is not None:
            text = self._special.sub(
                lambda token: f"{token.group()[0]} {token.group()[1:]}", text
            )
        return json.dumps(text, ensure_ascii=False)

    @cached_property
    def _special(self) -> re.Pattern[str] | None:
        """Matches the tokenizer's special tokens, the longest first."""
        tokenizer = self._tokenizer
        tokens = {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}
        longer = [re.escape(token) for token in tokens if len(token.strip()) > 1]
        longer.sort(key=len, reverse=True)
        return re.compile("|".join(longer)) if longer else None

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of generated ids, without special tokens and with unchanged white
        space."""
        text: str = self._tokenizer.decode(
            list(token_ids),
            skip_special_tokens=True,
            clean_up_tokenization_spaces=False,
        )
        return text

    def ends(self, text: str) -> list[int]:
        """Where each token of a text by itself ends, in characters; of a slow
        tokenizer, about where."""
        fast = self._tokenizer.is_fast
        encoded = self._tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=fast, verbose=False
        )
        if fast:
            return [end for _, end in encoded["offset_mapping"]]
        count = len(encoded["input_ids"])
        return [len(text) * number // count for number in range(1, count + 1)]

    def count(self, passage: str) -> int:
        """The tokens of a text by itself. It remembers them: passages recur."""
        if passage not in self._counts:
            self._counts[passage] = len(self.ends(passage))
        return self._counts[passage]

    def _in_chat_template(
        self, before: str, context: str, after: str
    ) -> tuple[str, str]:
        """What stands before and after the context once the template is applied."""
        turn = before + context + after
        problem, turns = "", [{"role": "user", "content": turn}]
        if self.system:
            turns.insert(0, {"role": "system", "content": self.system})
        try:
            rendered: str = self._tokenizer.apply_chat_template(
                turns,
                tokenize=False,
                add_generation_prompt=True,
                date_string=self._date.strftime("%d %b %Y"),
                strftime_now=self._date.strftime,
                **thinking_variables(self.thoughts is not None),
            )
        except Exception as error:  # a template divides by zero as it likes
            rendered, problem = "", f"cannot be applied ({one_line(error)})"
        if len(rendered) > len(turn) + len(self.system) + LONGEST:
            problem = f"writes more than {LONGEST:,} characters"
        if not problem and turn not in rendered:
            problem = "rewrites the user's turn"
        if not problem and self.system not in rendered:
            problem = "leaves the system message out"
        if problem:
            name = self._tokenizer.name_or_path
            raise InputError(f"{name}: chat: the chat template {problem}")
        start, _, rest = rendered.partition(turn)
        return start + before, after + rest

    def _encode(self, text: str) -> TokenIds:
        return self._encode_batch([text])[0]

    def _encode_batch(self, texts: Sequence[str]) -> list[TokenIds]:
        if not texts:
            return []
        encoded = self._tokenizer(
            list(texts), add_special_tokens=self._add_special_tokens, verbose=False
        )["input_ids"]
        kept = [self._opening + ids[: len(ids) - self._tail] for ids in encoded]
        # One object for each token of the vocabulary: kept prompts take a fifth of the
        # memory.
        return [tuple(map(_TOKENS.setdefault, ids, ids)) for ids in kept]

    def _longest_prefix(
        self, before: str, context: str, after: str, cap: int
    ) -> int | None:
        """The characters of the context's longest prefix that keeps the prompt
        within `cap` tokens."""

        def fits(length: int) -> bool:
            return len(self._encode(before + context[:length] + after)) <= cap

        if not context or not fits(0):
            return None
        low, high = 0, len(context)  # fits(low) and not fits(high)
        step, probe = 4, self._estimate(before, context, after, cap)
        while high - low > 1:
            length = probe if low < probe < high else (low + high) // 2
            if fits(length):
                low, probe = length, length + step
            else:
                high, probe = length, length - step
            step *= 2
        while low < len(context):
            longer = [
                low + ahead
                for ahead in range(1, _LOOKAHEAD + 1)
                if low + ahead < len(context)
            ]
            encoded = self._encode_batch(
                [before + context[:length] + after for length in longer]
            )
            fitting = [
                length
                for length, ids in zip(longer, encoded, strict=True)
                if len(ids) <= cap
            ]
            if not fitting:
                break
            low = fitting[-1]
        return low

    def _estimate(self, before: str, context: str, after: str, cap: int) -> int:
        """About how many characters of the context fit."""
        text = before + context + after
        if not self._tokenizer.is_fast:
            return len(context) * cap // len(self._encode(text))
        encoded = self._tokenizer(
            text,
            add_special_tokens=self._add_special_tokens,
            return_offsets_mapping=True,
            verbose=False,
        )
        ends: list[int] = [end for _, end in encoded["offset_mapping"]]
        end_of_context = len(before) + len(context)
        tokens_after = sum(end > end_of_context for end in ends) + self._tail
        return ends[max(0, cap - tokens_after - 1)] - len(before)


def prompt_text(
    item: Item,
    format: Format,
    candidates: Sequence[str] = (),
    exemplar: Item | None = None,
) -> str:
    """The prompt before chat template and cap, which take a tokenizer. Raises
    InputError without an exemplar."""
    capped = CAPPED_CONTEXT_CHARS if format in CAPPED_FORMATS else None
    return "".join(_pieces(item, format, candidates, exemplar, capped))


def _pieces(
    item: Item,
    format: Format,
    candidates: Sequence[str],
    exemplar: Item | None,
    context_chars: int | None,
    wording: Wording | None = None,
) -> tuple[str, str, str]:
    """What stands before the context, the context, and what stands after it."""
    context = _context(item)[:context_chars]
    solved = ""
    if format == "one_shot":
        if exemplar is None:
            raise InputError(
                f"task {item.task!r}, language {item.language!r}: format 'one_shot'"
                " needs an item that is not evaluated as its exemplar, and none is"
                " left; use fewer items"
            )
        shown = _context(exemplar)[:EXEMPLAR_CONTEXT_CHARS]
        shot = replace(
            exemplar, context=shown, options=(), answers=(gold_option(exemplar),)
        )
        solved = _solved(shot, wording, "\n")
    if wording is not None:
        before, context, after = wording.around(item, context, candidates)
        return solved + before, context, after
    gap = "\n" if solved else "\n\n"
    listed = f"Candidates: {'; '.join(candidates)}\n\n" if candidates else ""
    before, after = _around(context, gap, item.question)
    return solved + before, context, f"{after}{gap}{listed}{_INSTRUCTION}"


def _solved(example: Item, wording: Wording | None, gap: str = "\n\n") -> str:
    """An example's prompt, with its answer."""
    shown, options = _context(example), example.options
    if wording is None:
        before, after = _around(shown, gap, example.question)
        posed = f"{before}{shown}{after}{gap}{_INSTRUCTION}"
    else:
        posed = wording.whole(example, shown, options)
    return f"{posed}{_separator(posed)}{example.answers[0]}\n\n"


def _separator(prompt: str) -> str:
    """What stands between a completion prompt and an answer."""
    return "" if prompt[-1:].isspace() else " "


def _context(item: Item) -> str:
    """The item's context; none is what holds nothing but white space."""
    return item.context if item.context.strip() else ""


def _around(context: str, gap: str, question: str) -> tuple[str, str]:
    """What stands before and after a context: its label, and the question, which
    alone is left where there is none."""
    return (
        ("Context: ", f"{gap}Question: {question}")
        if context
        else ("", f"Question: {question}")
    )


def _split(
    before: TokenIds, own: TokenIds, joint: TokenIds, answer: str
) -> Continuation:
    pairs = enumerate(zip(own, joint, strict=False))
    common = next(
        (place for place, (one, other) in pairs if one != other),
        min(len(own), len(joint)),
    )
    if not 0 < common < len(joint):
        raise InputError(
            f"answer {answer!r} has no tokens of its own after the prompt in this"
            " tokenizer"
        )
    return Continuation(
        prompt_ids=before + joint[:common], continuation_ids=joint[common:]
    )


def opening_of(tokenizer: Any) -> list[int]:
    """The special tokens that a chat template writes at its very start, outside of any
    turn, and that the tokenizer does not put before a plain text: `[gMASK]<sop>` of
    GLM. Such a model has seen no text without them. Applies no template."""
    template = tokenizer.chat_template
    if not isinstance(template, str):
        return []
    literal = template.lstrip().partition("{")[0].strip()
    ids: list[int] = tokenizer(literal, add_special_tokens=False)["input_ids"]
    names = tokenizer.convert_ids_to_tokens(ids)
    special = {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}
    is_opening = special.issuperset(names) and "".join(names) == literal
    own = tokenizer("a", verbose=False)["input_ids"]
    return ids if is_opening and own[: len(ids)] != ids else []


def _special_tail(tokenizer: Any) -> int:
    """How many special tokens the tokenizer puts after every text."""
    with_special = tokenizer("a", verbose=False)["input_ids"]
    bare = tokenizer("a", add_special_tokens=False, verbose=False)["input_ids"]
    starts = range(len(with_special) - len(bare) + 1)
    start = next(
        (start for start in starts if with_special[start : start + len(bare)] == bare),
        None,
    )
    return 0 if start is None else len(with_special) - start - len(bare)
