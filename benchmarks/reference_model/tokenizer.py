"""The reference model's tokenizer: byte-level BPE over the generator's own text in all nine languages.

Numbers are cut into groups of two digits and words are kept whole (letters with their combining marks, and the space
before them), so that an answer always starts at a token boundary after the prompt.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from benchmarks.reference_model.lessons import question_block
from evaluator.tasks.gazetteer import LANGUAGES, build_passage

EOS = "<|endoftext|>"
PAD = "<|pad|>"
VOCABULARY = 3072
PASSAGES_PER_LANGUAGE = 6000
# GPT-2's expression leaves combining marks out of its words, which would cut Bengali and Telugu at every vowel sign.
_PIECES = r" ?[\p{L}\p{M}]+| ?\p{N}{1,2}| ?[^\s\p{L}\p{M}\p{N}]+|\s+"


def train_tokenizer(vocabulary: int = VOCABULARY, passages: int = PASSAGES_PER_LANGUAGE) -> PreTrainedTokenizerFast:
    """Learn the merges from training passages, the same number in every language."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[EOS, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(passages), trainer)
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


def _texts(passages: int) -> Iterator[str]:
    for language in LANGUAGES:
        for index in range(passages):
            passage = build_passage(language, "training", index)
            first = passage.facts[0]
            yield f"Context: {passage.text}{question_block(first.question)} {first.answer}"
