"""The reference model's shape: the smallest Qwen3 that answers, so that a whole pruning study fits a laptop."""

from __future__ import annotations

import torch
from torch.nn import functional
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from benchmarks.reference_model.lessons import IGNORED, Batch


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
