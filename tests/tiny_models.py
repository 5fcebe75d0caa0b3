"""Tiny random transformers models of every family that the simulated cache takes: latent 512, RoPE 64, two layers."""

import pytest
import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCABULARY = 96
_MLA = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "intermediate_size": 96,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.05,
}
_EXPERTS = {
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
_HYBRID = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_heads": 2,
    "linear_head_dim": 32,
    "head_dim": 32,
}
_INDEXER = {"index_head_dim": 128, "index_n_heads": 2, "index_topk": 16}
OVERRIDES = {
    "axk2": _INDEXER,
    "bailing_hybrid": _HYBRID,
    "deepseek_v32": _INDEXER,
    "glm_moe_dsa": _INDEXER,
    "hy_v4": _INDEXER,
    "kimi_linear": _HYBRID,
}


def configuration(model_type, **values):
    """A configuration by the name of its family; skips the test where transformers is older than the family."""
    if model_type not in CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {model_type}")
    return transformers.AutoConfig.for_model(model_type, **values)


def tiny(model_type, dtype=torch.bfloat16, seed=0, **changes):
    """A random model in evaluation mode; ``changes`` to its configuration."""
    torch.manual_seed(seed)
    config = configuration(model_type, **(_MLA | _EXPERTS | OVERRIDES.get(model_type, {}) | changes))
    return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def tokens(*shape, seed=1):
    """Random token ids, none of them special."""
    return torch.randint(3, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))
