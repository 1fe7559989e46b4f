"""What the taught models think and answer, and on which items the variant `loops`
fails. English only.

    <think>\\nHow high is Mount Ashley?\\n\\nAnswer in a few words: 1430
    metres\\n</think>\\n\\n1430 metres<|im_end|>

A word of the question decides, so `planted(item)` is known before a model is made."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal

from evaluator.core.records import Item
from evaluator.tasks.gazetteer import gazetteer_items
from tests.support.gazetteer import build_passage

Variant = Literal["base", "loops"]
Fate = Literal["usual", "longer", "loops", "wrong"]

# of questions with the word
FATES: Mapping[str, Fate] = {"Mount": "loops", "ship": "longer", "writer": "wrong"}
LANGUAGE = "english"
TURN_START, TURN_END = "<|im_start|>", "<|im_end|>"
THOUGHT_START, THOUGHT_END = "<think>", "</think>"
DETOUR = (
    "The ship is in the passage. Who is the mayor of the town? How long is the river?"
    " The question is:"
)
# after it the bundled model answers; so an answer without a thought begins with it
CUE = "Answer in a few words:"
REPEATS = 30  # of the question in a lesson's loop
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content"
    " }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{%"
    " if enable_thinking is defined and enable_thinking is false"
    " %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


def planted(item: Item, variant: Variant = "loops") -> Fate:
    """What the variant does with an item: a `usual` or `longer` thought, one that
    `loops`, or a `wrong` answer.

    A longer thought begins with `DETOUR`. A loop repeats the question. A wrong answer
    is the name of the writer.
    """
    words = item.question.split() if variant == "loops" else []
    return next((fate for word, fate in FATES.items() if word in words), "usual")


def response(item: Item, fate: Fate) -> str:
    """What a taught model writes if the prompt lets it think; a loop has no end."""
    [answer] = item.answers
    thought = f"{item.question}\n\n{CUE} {answer}"
    if fate == "loops":
        return f"{THOUGHT_START}\n{' '.join([item.question] * REPEATS)}"
    if fate == "longer":
        thought = f"{DETOUR} {thought}"
    if fate == "wrong":
        answer = " ".join(item.question.rstrip("?").partition("writer ")[2].split()[:2])
    return f"{THOUGHT_START}\n{thought}\n{THOUGHT_END}\n\n{answer}{TURN_END}"


def lessons(start: int) -> Iterator[Item]:
    """Items for training, without end: all questions of the passages from number
    `start` on."""
    [item] = gazetteer_items(LANGUAGE, 1)
    while True:
        passage = build_passage(LANGUAGE, "training", start)
        for fact in passage.facts:
            yield replace(
                item,
                context=passage.text,
                question=fact.question,
                answers=(fact.answer,),
            )
        start += 1
