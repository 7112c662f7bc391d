"""MLA on a paged cache of latents: keys and values are never expanded.

A head's key is W_UK c + rope part and its value W_UV c, c being the cached latent, (kv_lora_rank,). Query
and output take the two weights instead of keys and values: q W_UK scores against c itself, and W_UV expands
the average of latents. ``kv_b_proj`` holds both, per head W_UK (P, L) above W_UV (V, L).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .fia import host
from .kv_views import LatentKV

REQUIRED = ("kv_b_proj", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank")
"""What an attention module has to have."""


def require_latent_module(module: Any) -> None:
    """Raise TypeError unless ``module`` keeps its weights where MLA modules of transformers do."""
    missing = [name for name in REQUIRED if not hasattr(module, name)]
    if missing:
        raise TypeError(f"{type(module).__name__}: a latent cache needs {', '.join(missing)} on the module")
    if module.kv_b_proj.bias is not None:
        raise TypeError(f"{type(module).__name__}.kv_b_proj: a bias can't be absorbed into the query")


def attend_latent(module: Any, query: Tensor, view: LatentKV, scale: float, mask: Tensor) -> Tensor:
    """(T, N, V) for ``query`` (T, N, P + R), each request over its own latents, causally."""
    require_latent_module(module)
    heads, nope, width = query.shape[1], module.qk_nope_head_dim, module.kv_lora_rank
    weight = module.kv_b_proj.weight.view(heads, nope + module.v_head_dim, width)
    absorb, expand = weight[:, :nope], weight[:, nope:]
    latent_query = (query[..., :nope].transpose(0, 1) @ absorb).transpose(0, 1)  # (T, N, L)
    # The operator takes powers of two; heads of zeros are computed and dropped.
    padding = (1 << (heads - 1).bit_length()) - heads
    latent_query = F.pad(latent_query, (0, 0, 0, padding))
    rope_query = F.pad(query[..., nope:], (0, 0, 0, padding))
    latents = _fia(latent_query, rope_query, view, scale, mask)[:heads]  # (N, T, L)
    return (latents @ expand.transpose(1, 2)).transpose(0, 1)


def _fia(query: Tensor, rope: Tensor, view: LatentKV, scale: float, mask: Tensor) -> Tensor:
    """The averages of latents, (N, T, L)."""
    heads, block_size = query.shape[1], view.latent_cache.shape[1]
    # With one latent head (blocks, block_size, 1, L) and (blocks, 1, block_size, L) are the same memory.
    cache, rope_cache = view.latent_cache.transpose(1, 2), view.rope_cache.transpose(1, 2)
    arguments: dict[str, Any] = {
        "num_query_heads": heads,
        "num_key_value_heads": 1,
        "softmax_scale": scale,
        "key_rope": rope_cache,
        "block_table": view.block_table,
        "block_size": block_size,
        "actual_seq_kvlen": host(view.kv_lengths),
    }
    if view.decode:
        query, rope = query.unsqueeze(2).contiguous(), rope.unsqueeze(2).contiguous()
        arguments["input_layout"] = "BNSD_NBSD"
    else:
        query, rope = query.contiguous(), rope.contiguous()
        arguments.update(
            input_layout="TND_NTD",
            actual_seq_qlen=host(view.query_lengths),
            atten_mask=mask,
            sparse_mode=3,
        )
    v2 = torch.ops.ascend_fia.npu_fused_infer_attention_score_v2
    out = v2(query, cache, cache, query_rope=rope, **arguments)[0]
    return out.squeeze(2) if view.decode else out
