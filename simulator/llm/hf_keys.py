"""Fields of a config that may be ignored: never one that could change a layer's shape."""

from __future__ import annotations

import re

from simulator.llm.fields import Fields, shown_value

_WORDS = """
attn block blocks cache cell channel channels chunk column columns compress compressed compression conv count cross
depth dim dimension dimensions dims embed embedding embeddings every expand expert experts feature features ffn freq
frequency full global group grouped groups head heads hidden hybrid index indexer inner interval kernel key keys kv
lane lanes latent layer layers length lengths lightning linear local lora mamba mapping memory mixer mlp mod moe mtp
mult multiplier n nextn num offset outer pattern period pool pooling proj projection q qk query rank ranks ratio
ratios recurrent recursion repeat reuse routed row rows schedule selection sets share shared sharing size sizes skip
slot slots sparse sparsity ssm stage stages state states step stream streams stride sub swa top topk unshared v
value values width widths window windows wise
"""
_GEOMETRY = frozenset(_WORDS.split())
"""Words in the name of a field that may state a shape: counts, widths, layer selections, sharing."""

_INERT_FIELDS = """
_attn_implementation add_cross_attention altup_correct_scale altup_lr_multiplier architectures attention_multiplier
attention_type attention_value_scale attn_implementation attn_pdrop attn_scale attn_temperature_tuning attn_type
aux_loss_alpha block_auto_adjust_ff_dim block_mlp_init_scale block_norm_eps block_out_init_scale block_use_swiglu
block_use_xavier_init boi_token_index bos_token_id cache_implementation chunk_size chunk_size_feed_forward
conv_use_xavier_init cross_attention_hidden_size decoder_start_token_id do_layer_norm_before embd_pdrop
embed_dropout embedding_multiplier eoa_token_index eoi_token_index eos_token_id ep_size expand expert_dtype
expert_model_parallel_size exponential_decay_length_penalty final_logit_softcapping forced_bos_token_id
forced_eos_token_id freeze_mm_mlp_adapter full_attn_mod hc_sinkhorn_iters hidden_act hidden_activation
hidden_dropout hidden_dropout_prob id2label ignore_index image_token_index initial_context_length initializer_range
keep_router_fp32 label2id layer_norm_elementwise_affine layer_norm_eps layer_norm_epsilon layerdrop
layernorm_epsilon length_penalty lm_head_multiplier logits_scaling mamba_hidden_act mamba_proj_bias max_length
max_new_tokens max_sequence_length max_window_layers min_length mlp_hidden_act mlp_multipliers mlp_pdrop
model_max_length model_type moe_apply_router_weight_on_input moe_renormalize moe_router_activation_func
moe_router_dtype moe_router_scaling_factor moe_shared_expert_overlap mtp_loss_scaling_factor
mtp_use_dedicated_embeddings n_ctx n_group no_repeat_ngram_size norm_expert_weight norm_topk_prob num_beam_groups
num_beams num_expert_group num_image_tokens num_labels num_logits_to_keep num_output_attentions num_return_sequences
original_max_position_embeddings output_attentions output_hidden_states output_router_logits pad_token_id
pad_vocab_size_multiple partial_rotary_factors position_embedding_type pretraining_sequence_length pretraining_tp
problem_type qk_norm_type query_pre_attn_scalar remove_invalid_values reorder_and_upcast_attn
rescale_prenorm_residual resid_mlp_multiplier residual_multiplier return_dict return_dict_in_generate
rope_local_base_freq rotary_dim routed_scaling_factor router_aux_loss_coef router_jitter_noise
scale_attn_by_inverse_layer_idx scale_attn_weights sep_token_id seq_aux seq_length share_expert_gate shared_moe_mode
sliding_window
softmax_type summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj
suppress_tokens swiglu_limit swiglu_limits swiglu_limits_shared task_specific_params tie_encoder_decoder
time_step_rank token_healing tokenizer_class tokenizer_model_max_length top_k top_p topk_group topk_method
transformers_version tune_mm_mlp_adapter type_vocab_size typical_p use_bidirectional_attention use_cache
use_conv_bias use_embedding_sharing use_gemma_norm use_grouped_topk use_kernels use_mamba_kernels use_mem_rope
use_mm_proj use_moe_router_bias use_nope_layers use_parallel_block use_parallel_embedding use_parallel_residual
use_rope_layers use_sliding_window yarn_only_types zero_centered
"""
INERT = frozenset(_INERT_FIELDS.split())
"""Fields with such a word that state no shape of the language model: training, sampling, activations, routing rules,
labels, the sizes of what engines choose for themselves."""

_QUIET = re.compile(
    r"_(eps|epsilon|dtype|id|ids|dropout|pdrop|prob|loss|coef|coeff|theta|factor|scaling|std|beta|alpha|limit|limits|softcap|softcapping|path|version"
    r"|type|activation|func|fn|act|implementation|seed|label|labels|interleave|interleaved)$"
)
"""Endings of training, numerics and labels."""
_OTHER_MEDIA = re.compile(
    r"^(auto_map|time_step|torch_|quantization|transformers|visual|mm_|projector|media|spatial_|speech|vit_|img_|perceiver"
    r"|sub_configs)|(^|_)(vision|image|video|audio)(_|$)"
)
"""Encoders of other media, and the software that wrote the file."""


def refuse_unread(fields: Fields) -> None:
    """Refuse a field that may state a shape and that no reader requested.

    Raises:
        ForerunError: naming the first such field.
    """
    for key, value in fields.values.items():
        if key not in fields.seen and _may_shape(key) and not _says_nothing(value):
            fields.fail(
                key,
                f"({shown_value(value)}) may change the shape of layers, and Forerun does not know it for this model; "
                "remove it if it does not",
            )


def _may_shape(key: str) -> bool:
    words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower())
    if key in INERT or not _GEOMETRY.intersection(words):
        return False
    return not (_QUIET.search(key) or _OTHER_MEDIA.search(key))


def _says_nothing(value: object) -> bool:
    """Whether a value is null, off, zero or empty, so that the feature of the field is not used."""
    return value is None or value is False or (not isinstance(value, bool) and value in (0, "", [], {}))
