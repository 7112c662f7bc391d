"""What a tiny configuration changes, by the name of a configuration's field: data for `shrink`.

Sizes only go down: a default that is smaller already stays as it is.
"""

from __future__ import annotations

VOCABULARY = 97
FIRST_SPECIAL_TOKEN = 80
"""Ids from here up to the vocabulary's end stand for image, audio and other special tokens."""

DERIVED = (
    *("transformers_version", "_name_or_path", "architectures", "id2label", "label2id", "dtype"),
    *("out_indices", "stage_names", "_out_features", "_out_indices", "conv_output_size"),
)
"""What a configuration's class finds by itself."""

STAGES = ("out_features",)
"""What it finds by itself where a stage is a layer, of which there are fewer now."""

LAYER_COUNTS = ("num_hidden_layers", "n_layer", "num_layers", "depth")

HEAD_COUNTS = ("num_attention_heads", "num_heads", "n_head")

LAYERS = 1
"""Of each stack, where a configuration doesn't list the kinds of its layers."""

STACKS = (
    r"(num_hidden_layers|n_layers?|num_layers|depth|layers|.*(encoder|decoder|text|vision|attention|block)_layers|"
    r"num_blocks|num_stacks|num_hidden_groups|decoder_num_layers|num_formation_layers)"
)
"""Fields that say how many layers a stack has."""

TOKEN_IDS = r".*_(token_id|token_index|id|index)"

AT_MOST_ALWAYS: tuple[tuple[str, int], ...] = (
    (r"(num_feat_extract_layers|num_lstm_layers|num_adapter_layers)", 99),
    (r".*_layers|num_res_blocks", 2),
    (r"(num_nextn_predict_layers|num_kv_shared_layers|num_loops|n_recurrent_loops|loop_num_passes)", 1),
    (r"(first_k_dense_replace|num_dense_layers|moe_layer_start_index)", 1),
    (r".*(vocab_size.*|n_vocab|num_embeddings|hash_byte_group_vocab)", VOCABULARY),
)
"""(field, limit), also where widths have to stay: the whole name has to match; the first rule is taken."""

AT_MOST: tuple[tuple[str, int], ...] = (
    *AT_MOST_ALWAYS,
    # heads
    (r"(mamba_n_heads|mamba_num_heads)", 8),
    (r".*(attention_heads|num_heads|n_heads?|_heads)", 4),
    (r"(qk_rope_head_dim)", 8),
    (r"(qk_head_dim)", 24),
    (r"(kv_lora_rank|o_lora_rank|q_lora_rank)", 32),
    (r".*(head_dim|dim_head|d_head|d_kv|kv_channels|head_size)", 16),
    (r"(rotary_dim)", 8),
    # experts
    (r".*(num_experts|routed_experts|local_experts|n_experts|zero_expert_num)", 4),
    (r".*(experts_per_tok|experts_per_token|moe_topk|top_k|moe_k|num_selected_experts|experts_top_k)", 2),
    (r"(n_group|num_expert_group)", 2),
    (r"(topk_group)", 1),
    # widths
    (r"(image_embedding_size)", 4),
    (
        r".*(intermediate|ffn|mlp|feedforward|feed_forward|d_ff|dff|d_inner|linear_units|dim_ff|expert_hidden)"
        r".*(size|dim|hidden|ff|units|inner|feedforward)?",
        96,
    ),
    (
        r".*(hidden_size|hidden_dim|d_model|n_embd|embed_dim|embedding_size|embedding_dim|emb_dim|emb_size)",
        64,
    ),
    (r".*(projection_dim|projection_size|proj_dim|output_dim|input_dim|model_dim|query_dim|latent_dim)", 64),
    (r"(hidden_size_global|base_channels)", 64),
    (r"(dim|d_embed|width|project_dim|adapter_in_dim|adapter_out_dim|tdnn_dim|codevector_dim)", 64),
    (r".*(fpn_hidden_size|hidden_channels|fusion_hidden_size|decoder_hidden_size|attention_hidden_size)", 64),
    (r"(word_embed_proj_dim|out_hidden_size|projector_hidden_size|text_hidden_size|vision_output_dim)", 64),
    (r"(lru_width|attention_in_dim|pooler_output_size|pooler_hidden_size|mamba_d_ssm)", 64),
    # texts
    (r".*(max|num|n)_.*position.*|n_positions|n_ctx|max_seq_len|max_sequence_length|seq_length", 128),
    (r"(max_source_positions|max_target_positions|context_length|max_text_length|model_max_length)", 64),
    (r"(sliding_window|sliding_window_size|local_attention|attention_chunk_size)", 5),
    (r"(attention_window)", 4),
    (r"(index_topk)", 4),
    (r"(prompt_length|num_latents|num_image_tokens|resampler_num_latents|latent_query_num)", 8),
    # images
    (r".*(image_size|img_size|spec_size|crop_size|resolution|pretrain_image_size)", 32),
    (r"(patch_size|encoder_stride)", 8),
    (r"(window_size)", 4),
    (r"(num_queries|num_query_tokens|two_stage_num_proposals|num_proposals)", 10),
    (r"(num_frames)", 4),
    (r"(output_channels|neck_out_channels|vision_output_channels|post_conv_in_channels)", 64),
    (r"(num_pos_feats)", 32),
    (r"(vit_dim)", 64),
    # sound
    (r"(num_mel_bins|n_mels|n_mel_bins|mel_dim|mel_bins|input_feat_size)", 16),
    (r"(n_window)", 16),
    (r"(n_window_infer)", 64),
    (r"(num_conv_pos_embeddings|conv_pos_kernel_size)", 16),
    (r"(num_conv_pos_embedding_groups)", 2),
    (r"(codebook_size|codebook_dim|num_codevectors_per_group|xvector_output_dim|classifier_proj_size)", 64),
    # state space layers
    (
        r"(mamba_d_state|state_size|ssm_state_size|mamba_chunk_size|chunk_size|time_step_rank|mamba_dt_rank)",
        16,
    ),
    (r"(linear_num_key_heads|linear_num_value_heads)", 4),
    (r"(n_mamba_heads|num_codebooks|num_quantizers|num_register_tokens)", 2),
    (r"(upsample_groups)", 16),
    (r"(original_max_position_embeddings)", 32),
)
WIDTHS_BY_STAGE = (
    r"((en|de)coder_in_channels|hidden_sizes|embed_dims?|encoder_hidden_sizes|neck_hidden_sizes|"
    r"conv_dim|tdnn_dim|dims)"
)
"""Lists of widths: of a quarter of the size each."""

DEPTHS_BY_STAGE = (
    r"(depths?|num_layers|layers|stage_num_blocks|stage_numb_of_layers|num_block_repeats|block_repeats)"
)
"""Lists of depths: at most two layers in each."""

LAYER_INDICES = (
    r"(.*_layer_ids|.*_layers|.*_indexes|.*_indices|.*_idxs|.*_layer|out_indices|layer_indices|"
    r"insert_layer_id|hook_ids|.*_hook_ids)"
)
"""Indices of layers, alone or in lists: clipped to the layers that are left."""

MROPE = {2: [4, 4], 3: [2, 3, 3], 4: [2, 2, 2, 2]}
"""Rotary sections of a head of 16, by the number of sections."""
