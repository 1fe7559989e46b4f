"""A tiny random model of each causal architecture that transformers lists.

A default configuration is shrunk by the names of its fields: what stands for a
width, a count or a window becomes small. ADJUSTED adds what one architecture's sizes
must agree on. Layers of both kinds are kept where there are two, and windows are
shorter than the prompts of the tests."""

from typing import Any

import torch

VOCABULARY = 384
_WIDTHS = """hidden_size d_model n_embd dim emb_dim lru_width embedding_size mamba_d_ssm attention_hidden_size
    word_embed_proj_dim embedding_dim"""
_INNER = """intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim n_inner dff d_ff feed_forward_size block_ff_dim
    moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size ffn_hidden_size dim_ff
    mlp_hidden_size expert_ffn_hidden_size intermediate_size_mlp moe_shared_expert_intermediate_size"""
_LAYERS = """num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_encoder_layers
    num_decoder_layers num_blocks"""
_HEADS = """num_attention_heads n_head n_heads num_heads decoder_attention_heads encoder_attention_heads
    num_encoder_attention_heads num_decoder_attention_heads mamba_n_heads mamba_num_heads linear_num_value_heads
    num_experts num_local_experts n_routed_experts moe_num_experts num_routed_experts"""
_PAIRS = """num_key_value_heads linear_num_key_heads n_kv_heads num_kv_heads num_experts_per_tok moe_topk top_k_experts
    moe_top_k moe_k kv_n_heads"""
_HEAD_SIZES = """head_dim linear_key_head_dim linear_value_head_dim attention_head_size mamba_head_dim mamba_d_head
    v_head_dim qk_nope_head_dim attention_head_dim index_head_dim global_head_dim swa_head_dim swa_v_head_dim
    hidden_size_per_layer_input"""
_SMALL = """qk_rope_head_dim rotary_dim kv_lora_rank q_lora_rank state_size mamba_d_state ssm_state_size o_lora_rank
    sliding_window sliding_window_size attention_chunk_size local_attention window_size index_topk mamba_chunk_size
    chunk_size"""
_LENGTHS = """max_position_embeddings n_positions n_ctx max_seq_len max_target_positions max_source_positions
    max_seq_length"""
_ONES = "n_group topk_group mamba_n_groups n_groups"
_VOCABULARIES = "vocab_size vocab_size_per_layer_input decoder_vocab_size"
_SIZES = {
    name: size
    for names, size in (
        (_WIDTHS, 64), (_INNER, 96), (_LAYERS, 2), (_HEADS, 4), (_PAIRS, 2), (_HEAD_SIZES, 16), (_SMALL, 8),
        (_LENGTHS, 256), (_ONES, 1), (_VOCABULARIES, VOCABULARY),
    )
    for name in names.split()
}  # fmt: skip
_FIRST = {"bos_token_id": 1, "eos_token_id": 0}  # every other special token is 2
_DROPPED = {"model_type", "transformers_version", "architectures", "rope_parameters", "per_layer_config",
            "qk_head_dim", "layers_block_type", "mlp_layer_types", "layer_types", "num_attention_heads_per_layer",
            "_name_or_path", "output_attentions"}  # fmt: skip
_HYBRID = {"layer_types": ["linear_attention", "full_attention"]}
_SLIDING = {"layer_types": ["sliding_attention", "full_attention"]}
_FINITE = {"time_step_limit": [0.0, 100.0]}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16}
_ZAMBA = {
    "num_hidden_layers": 4, "layer_types": ["linear_attention", "hybrid"] * 2, "hybrid_layer_ids": [1, 3],
    "layers_block_type": ["mamba", "hybrid"] * 2, "attention_hidden_size": 128, "attention_head_dim": 32,
}  # fmt: skip
_GEMMA3N = {
    **_SLIDING, "intermediate_size": 96, "num_kv_shared_layers": 0, "activation_sparsity_pattern": [0.0, 0.0],
}  # fmt: skip
ADJUSTED: dict[str, dict[str, Any]] = {
    "bamba": {**_MAMBA, **_FINITE, "attn_layer_indices": [1]},
    "cohere_compass_text": {
        **_SLIDING,
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}
            for kind in _SLIDING["layer_types"]
        },
    },
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 100.0}, "ffn_config": {}},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_shared_experts": 1, "num_experts_per_tok": 2, "num_local_experts": 4},
    "falcon_h1": {"mamba_n_heads": 4, "mamba_d_head": 16, **_FINITE},
    "gemma3n_text": _GEMMA3N,
    "gemma4_text": {**_SLIDING, "num_kv_shared_layers": 0},
    "gemma4_unified_text": {**_SLIDING, "num_kv_shared_layers": 0},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "attention_layers": ["global", "local"]},
    "granitemoehybrid": {**_MAMBA, **_FINITE, "layer_types": ["mamba", "attention"]},
    "hrm_text": {"H_cycles": 1, "L_cycles": 1, "num_layers_per_stack": 1},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16, "moe_topk": 2, "num_experts": 4},
    "jamba": {"num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1},
    "kimi_linear": {**_HYBRID, "num_experts_per_token": 2, "linear_head_dim": 16, "linear_num_heads": 4},
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_ff_dim": 96},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "llama4_text": {
        "layer_types": ["chunked_attention", "full_attention"], "no_rope_layers": [1, 0], "moe_layers": [1]
    },
    "longcat_flash": {"num_layers": 1, "zero_expert_num": 4},
    "mamba2": {"num_heads": 8, "head_dim": 16, **_FINITE},
    "minimax": _HYBRID,
    "ministral": {"head_dim": 16},
    "nemotron": {"head_dim": 16, "num_key_value_heads": 2},
    "nemotron_h": _FINITE,
    "olmo_hybrid": _HYBRID,
    "qwen3_5_moe_text": _HYBRID,
    "qwen3_5_text": _HYBRID,
    "qwen3_next": _HYBRID,
    "recurrent_gemma": {"num_hidden_layers": 3, "attention_window_size": 8},
    "reformer": {
        "is_decoder": True, "attn_layers": ["local", "lsh"], "axial_pos_shape": [16, 16], "num_buckets": 4,
        "axial_pos_embds_dim": [32, 32], "local_attn_chunk_length": 8, "lsh_attn_chunk_length": 8,
    },
    "xlnet": {"d_head": 16},
    "xmod": {"default_language": "en_XX"},
    "zamba": {**_ZAMBA, "mamba_dt_rank": 4, "n_mamba_heads": 2},
    "zaya": {"num_experts_per_tok": 1},
    "zamba2": {**_ZAMBA, "mamba_headdim": 16, "n_mamba_heads": 8, "mamba_ngroups": 1, "num_mem_blocks": 1, **_FINITE},
}  # fmt: skip
for _name in ("llama4", "gemma4", "gemma4_unified", "qwen3_5", "qwen3_5_moe"):
    ADJUSTED[_name] = {"text_config": ADJUSTED[f"{_name}_text"]}


# Not built: no width that we can set, a package that is not there, or a part that
# transformers adds to another model.
NOT_TINY = {
    "blt",
    "gemma3n",
    "gemma4_assistant",
    "gemma4_unified_assistant",
    "musicgen",
    "musicgen_melody",
}


def causal_kinds() -> list[str]:
    """Every architecture that transformers lists as causal and that can be made
    tiny."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys() - NOT_TINY)


def tiny_model(kind: str, **changes: Any) -> Any:
    """A model in float32, its weights spread wide. Raises as transformers does where
    sizes do not agree."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    fields = _shrunk(CONFIG_MAPPING[kind]().to_dict())
    _merge(fields, {**ADJUSTED.get(kind, {}), **changes})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        CONFIG_MAPPING[kind].from_dict(fields), dtype=torch.float32
    ).eval()
    assert sum(each.numel() for each in model.parameters()) < 2e7, "not tiny"
    _draw(model)
    return model


def _shrunk(fields: dict[Any, Any]) -> dict[Any, Any]:
    latent = (
        {"head_dim": 8, "num_key_value_heads": 4}
        if "qk_rope_head_dim" in fields
        else {}
    )
    return {
        name: _size(name, value)
        for name, value in fields.items()
        if name not in _DROPPED
    } | latent


def _size(name: Any, value: Any) -> Any:
    if isinstance(value, dict):
        return _shrunk(value)
    if isinstance(name, str) and name.endswith("token_id") and isinstance(value, int):
        return _FIRST.get(name, 2)
    return _SIZES[name] if name in _SIZES and isinstance(value, int) else value


def _merge(fields: dict[Any, Any], changes: dict[Any, Any]) -> None:
    for name, value in changes.items():
        if isinstance(value, dict) and isinstance(fields.get(name), dict):
            _merge(fields[name], value)
        else:
            fields[name] = value


def _draw(model: Any) -> None:
    """Normal weights: matrices with a deviation of .2, norms near one, biases of .1;
    decay rates stay as they are."""
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=draw)
            if any(part in name for part in ("A_log", "dt_bias", "a_param")):
                continue
            if parameter.dim() > 1:
                parameter.copy_(0.2 * noise)
            else:
                parameter.copy_(0.1 * noise + (name.endswith("weight")))
