"""Training sequences: a passage once, then one block per question. A block sees the passage and itself only.

A plain sequence poses one question per passage. Here all questions of a passage share its tokens: block k attends to
the passage and to itself, and its positions go on from the passage's end, so every block is computed exactly as in the
plain prompt; `tests/unit/benchmarks/test_lessons.py` compares the two.

The model is the smallest Qwen3 that answers, so that a whole pruning study fits a laptop. Its tokenizer is byte-level
BPE over the generator's own text in all nine languages. Numbers are cut into groups of two digits and words are kept
whole (letters with their combining marks, and the space before them), so that an answer always starts at a token
boundary after the prompt.

Every batch is a function of the seed and its number, so a killed run resumes without saved random state.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from evaluator.tasks.gazetteer import LANGUAGES, Passage, build_passage

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
EOS = "<|endoftext|>"
PAD = "<|pad|>"
VOCABULARY = 3072
PASSAGES_PER_LANGUAGE = 6000
# GPT-2's expression leaves combining marks out of its words, which would cut Bengali and Telugu at every vowel sign.
_PIECES = r" ?[\p{L}\p{M}]+| ?\p{N}{1,2}| ?[^\s\p{L}\p{M}\p{N}]+|\s+"
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


def train_tokenizer(vocabulary: int = VOCABULARY, passages: int = PASSAGES_PER_LANGUAGE) -> PreTrainedTokenizerFast:
    """Learn the merges from training passages, the same number in every language."""
    tokenizer = Tokenizer(models.BPE())
    pieces = pre_tokenizers.Split(Regex(_PIECES), "isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pieces, as_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[EOS, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (
        f"Context: {passage.text}{question_block(passage.facts[0].question)} {passage.facts[0].answer}"
        for passage in (build_passage(name, "training", index) for name in LANGUAGES for index in range(passages))
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=EOS,
        pad_token=PAD,
        model_max_length=4096,
        clean_up_tokenization_spaces=False,
    )


def load_or_train_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of `folder`, trained and saved there at the first call."""
    if not (folder / "tokenizer.json").exists():
        train_tokenizer().save_pretrained(folder)
    return PreTrainedTokenizerFast.from_pretrained(folder)


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=192,
        intermediate_size=448,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        initializer_range=0.02,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        attn_implementation="sdpa",
        dtype="float32",
    )
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(config)


def lesson_losses(model: Qwen3ForCausalLM, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean cross-entropy (nats per token) of answers and of questions, which teach to find names long before."""
    hidden_BLD = model.model(
        input_ids=batch.ids_BL, attention_mask=batch.mask_B1LL, position_ids=batch.positions_BL, use_cache=False
    ).last_hidden_state
    losses = []
    for labels_BL in (batch.labels_BL, batch.asked_BL):
        supervised_BL = labels_BL != IGNORED
        logits_NV = model.lm_head(hidden_BLD[supervised_BL])
        losses.append(functional.cross_entropy(logits_NV.float(), labels_BL[supervised_BL]))
    return losses[0], losses[1]
