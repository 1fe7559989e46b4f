"""Training sequences: a passage once, then one block per question. A block sees the passage and itself only.

A plain sequence poses one question per passage. Here all questions of a passage share its tokens: block k attends to
the passage and to itself, and its positions go on from the passage's end, so every block is computed exactly as in the
plain prompt; `tests/unit/benchmarks/test_lessons.py` compares the two.

Every batch is a function of the seed and its number, so a killed run resumes without saved random state.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerFast

from evaluator.tasks.gazetteer import Passage, build_passage

# Uneven on purpose: what pruning takes from a language should depend on how well it was learned.
MIX: Mapping[str, float] = {
    "english": 0.24,
    "russian": 0.14,
    "arabic": 0.12,
    "indonesian": 0.11,
    "finnish": 0.10,
    "korean": 0.09,
    "swahili": 0.08,
    "bengali": 0.06,
    "telugu": 0.06,
}
POOL_BATCHES = 32
IGNORED = -100


def question_block(question: str) -> str:
    """What follows the passage in the open prompt, up to where the answer begins."""
    return f"\n\nQuestion: {question}\n\nAnswer in a few words:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """One packed sequence before padding."""

    ids: list[int]
    positions: list[int]
    blocks: list[int]  # 0 for the passage, k for the k-th question
    labels: list[int]  # the next token where it belongs to an answer, else IGNORED
    asked: list[int]  # the next token where it belongs to a question, else IGNORED


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Padded tensors: B sequences of L tokens."""

    ids_BL: torch.Tensor
    positions_BL: torch.Tensor
    mask_B1LL: torch.Tensor  # True: may be attended to
    labels_BL: torch.Tensor
    asked_BL: torch.Tensor


def pack(passage: Passage, tokenizer: PreTrainedTokenizerFast) -> Lesson:
    """The passage and all of its questions as one sequence, labelled with its answers and its questions."""
    eos = tokenizer.eos_token_id
    texts = [f"Context: {passage.text}"]
    for fact in passage.facts:
        texts += [question_block(fact.question), f" {fact.answer}"]
    encoded = [e.ids for e in tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False)]
    ids = list(encoded[0])
    start = len(ids)
    positions, blocks = list(range(start)), [0] * start
    labels, asked_labels = [IGNORED] * start, [IGNORED] * start
    for block in range(1, len(passage.facts) + 1):
        asked, answer = encoded[2 * block - 1], [*encoded[2 * block], eos]
        ids += asked + answer
        positions += range(start, start + len(asked) + len(answer))
        blocks += [block] * (len(asked) + len(answer))
        labels += [IGNORED] * (len(asked) - 1) + answer + [IGNORED]
        asked_labels += asked[1:] + [IGNORED] * (len(answer) + 1)
    return Lesson(ids=ids, positions=positions, blocks=blocks, labels=labels, asked=asked_labels)


def collate(lessons: Sequence[Lesson], pad: int, multiple: int = 16) -> Batch:
    """Pad to a common length (a multiple of `multiple`, to keep the number of different shapes small)."""
    longest = -(-max(len(lesson.ids) for lesson in lessons) // multiple) * multiple

    def padded(rows: Sequence[list[int]], filler: int) -> torch.Tensor:
        return torch.tensor([row + [filler] * (longest - len(row)) for row in rows])

    blocks_BL = padded([lesson.blocks for lesson in lessons], -1)
    same_BLL = blocks_BL[:, :, None] == blocks_BL[:, None, :]
    passage_BLL = (blocks_BL[:, None, :] == 0).expand_as(same_BLL)
    causal_LL = torch.ones(longest, longest, dtype=torch.bool).tril()
    return Batch(
        ids_BL=padded([lesson.ids for lesson in lessons], pad),
        positions_BL=padded([lesson.positions for lesson in lessons], 0),
        mask_B1LL=((same_BLL | passage_BLL) & causal_LL)[:, None],
        labels_BL=padded([lesson.labels for lesson in lessons], IGNORED),
        asked_BL=padded([lesson.asked for lesson in lessons], IGNORED),
    )


class LessonStream:
    """Batches by number: `stream.batch(step, facts)` is the same whenever and however often it is called."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, *, seed: int, batch_size: int) -> None:
        self._tokenizer = tokenizer
        self._seed = seed
        self._batch_size = batch_size
        self._key: tuple[int, tuple[int, int]] | None = None
        self._pool: list[list[Lesson]] = []

    def batch(self, step: int, facts: tuple[int, int]) -> Batch:
        """Batch number `step`, with passages that have `facts` facts (least, most)."""
        number, offset = divmod(step, POOL_BATCHES)
        if self._key != (number, facts):
            self._pool, self._key = self._build_pool(number, facts), (number, facts)
        return collate(self._pool[offset], self._tokenizer.pad_token_id)

    def _build_pool(self, number: int, facts: tuple[int, int]) -> list[list[Lesson]]:
        """Lessons of a pool are sorted by length before they are cut into batches: less padding."""
        rng = random.Random(f"lessons/{self._seed}/{number}")
        size = POOL_BATCHES * self._batch_size
        languages = rng.choices(list(MIX), weights=list(MIX.values()), k=size)
        lessons = [
            pack(build_passage(language, "training", number * size + i, facts), self._tokenizer)
            for i, language in enumerate(languages)
        ]
        lessons.sort(key=lambda lesson: len(lesson.ids))
        batches = [lessons[i : i + self._batch_size] for i in range(0, size, self._batch_size)]
        rng.shuffle(batches)
        return batches
