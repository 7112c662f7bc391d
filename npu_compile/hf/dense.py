"""Attention of a padded batch with a mask that ``generate()`` and ``forward()`` bring: (B, N, S, D)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .fia import attend


def attend_dense(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keep: Tensor | None,
    causal: bool,
    scale: float,
    sink: Tensor | None,
    causal_mask: Tensor,
    softcap: float | None = None,
) -> Tensor:
    """(B, Q, N, Dv) for ``query`` (B, N, Q, D), ``key`` (B, N_kv, K, D) and ``value`` (B, N_kv, K, Dv).

    ``keep`` (B or 1, 1, Q, K), bool, is True where a key takes part. Without it, ``causal`` means that query
    i sees keys 0 to i, as SDPA's ``is_causal`` does. ``sink`` is None where there is a ``softcap``.
    """
    q_len, value_dim = query.shape[2], value.shape[-1]
    arguments: dict[str, Any] = {
        "num_heads": query.shape[1],
        "num_key_value_heads": key.shape[1],
        "scale": scale,
    }
    if keep is not None:
        arguments.update(atten_mask=keep.logical_not(), sparse_mode=1)
    elif causal and q_len > 1:
        arguments.update(atten_mask=causal_mask, sparse_mode=2)
    if softcap is not None:
        capped = torch.ops.ascend_fia.softcap_attention(query, key, value, softcap=softcap, **arguments)
        return capped[0].transpose(1, 2)
    if keep is not None and q_len > 1:
        # Rows of padding see no key; without the correction for such rows others lose accuracy.
        arguments["inner_precise"] = 2
    if query.device.type not in ("cpu", "meta"):
        value = F.pad(value, (0, query.shape[-1] - value_dim)) if value_dim < query.shape[-1] else value
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    if q_len == 1:
        out = attend(query, key, value, sink, input_layout="BNSD", **arguments).transpose(1, 2)
    else:
        out = attend(query, key, value, sink, input_layout="BNSD_BSND", **arguments)
    return out[..., :value_dim]
