"""What a type's tiny configuration needs beyond the rules: data for `shrink`."""

from __future__ import annotations

from typing import Any

from tests.models.ledger.overrides_images import IMAGES
from tests.models.ledger.overrides_sounds import SOUNDS
from tests.models.ledger.overrides_texts import TEXTS

FILLED: dict[str, Any] = {
    "head_dim": 16,
    "prediction_length": 4,
    "num_experts_per_tok": 2,
    "n_routed_experts": 4,
}
"""Fields without a default that models can't do without."""

DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma4_assistant": {
        "text_config": {
            "model_type": "gemma4_text",
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": 0,
        }
    },
}
"""What a configuration's class has to be given to make a configuration at all."""

ROTARY_SECTIONS: tuple[tuple[str, tuple[int, ...]], ...] = (
    (r"glm4v_moe.*", (2, 1, 1)),
    (r"(glm4v|glm46v|glm_ocr|glm_image|glmga)(_text)?", (4, 2, 2)),
    (r"hunyuan_vl(_text)?", (2, 2, 2, 2)),
    (r"hy_v4_vl(_text)?", (1, 1, 2)),
    (
        r"(qwen2_vl|qwen2_5_vl|qwen3_vl|qwen3_vl_moe|qwen3_5|qwen3_5_moe|colqwen2|qwen2_5_omni|qwen3_omni).*",
        (2, 3, 3),
    ),
    (r"ernie4_5_vl.*", (3, 3, 2)),
    (r"(paddleocr_vl|video_llama_3).*", (2, 3, 3)),
)
"""(types, sections): half of a head's rotated part, shared out over time, height and width."""

OVERRIDES: dict[str, dict[str, Any]] = {**TEXTS, **IMAGES, **SOUNDS}
