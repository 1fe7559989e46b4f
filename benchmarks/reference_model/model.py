"""The reference model's shape: the smallest Qwen3 that answers, so that a whole pruning study fits a laptop.

The reference model's tokenizer: byte-level BPE over the generator's own text in all nine languages.

Numbers are cut into groups of two digits and words are kept whole (letters with their combining marks, and the space
before them), so that an answer always starts at a token boundary after the prompt.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from benchmarks.reference_model.lessons import IGNORED, Batch, question_block
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


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """A freshly initialised model, float32."""
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
    """Mean cross-entropy (nats per token) of answers and of questions; the output layer runs at those positions only.

    The questions repeat names of the passage, and so teach to find a name again long before answers do.
    """
    hidden_BLD = model.model(
        input_ids=batch.ids_BL,
        attention_mask=batch.mask_B1LL,
        position_ids=batch.positions_BL,
        use_cache=False,
    ).last_hidden_state
    losses = []
    for labels_BL in (batch.labels_BL, batch.asked_BL):
        supervised_BL = labels_BL != IGNORED
        logits_NV = model.lm_head(hidden_BLD[supervised_BL])
        losses.append(functional.cross_entropy(logits_NV.float(), labels_BL[supervised_BL]))
    return losses[0], losses[1]
