"""The attention function and the mask function that transformers calls for "ascend_fia"."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from ..kernels.causal_mask import causal_mask
from .dense import attend_dense
from .kv_views import AFTER_KEYWORD, KEYWORD, KVView, LatentKV, PackedKV, PagedKV
from .mixed import attend_apart, needs_split
from .mla import attend_latent
from .packed import attend_packed, attend_paged

logger = logging.getLogger(__name__)

fia_mask = sdpa_mask
"""Masks are SDPA's: bool (B, 1, Q, K), True where a key takes part; None where causality says it all."""


class FiaAttention:
    """What transformers calls in the place of SDPA.

    Shapes are transformers': ``query`` (B, N, Q, D), ``key`` (B, N_kv, K, D), ``value`` (B, N_kv, K, Dv);
    the result is (B, Q, N, Dv) and no attention weights. In a continuous batch B is 1 and the keyword
    ``fia_kv`` says where keys and values are.

    What FIA can't do (dropout, float masks, a position bias, masks per head) goes to SDPA, with one log line
    for each reason. Raises ValueError for sinks that would go there, and for a ``softcap`` that would, that
    meets sinks, or that is a continuous batch's; elsewhere ``ascend_fia::softcap_attention`` computes it.
    """

    def __init__(self) -> None:
        self._masks: dict[torch.device, Tensor] = {}
        self._told: set[str] = set()

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        view = kwargs.get(KEYWORD) or _from_cumulative(attention_mask, kwargs)
        if softcap is not None and (view is not None or s_aux is not None):
            what = "with sinks" if view is None else "of packed requests"
            raise ValueError(f"softcap={softcap}: no soft cap {what}; use attn_implementation='eager'")
        if view is not None:
            out = self._attend_rows(module, query, key, value, view, scale, s_aux)
            if AFTER_KEYWORD in kwargs:
                kwargs[AFTER_KEYWORD]()
            return out.unsqueeze(0), None
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        reason = unsupported(attention_mask, dropout, kwargs)
        if reason is not None:
            self._leave_to_sdpa(module, reason, s_aux, softcap)
            return sdpa_attention_forward(
                module, query, key, value, attention_mask, dropout, scale, is_causal=causal, **kwargs
            )
        mask = self.mask(query.device)
        return attend_dense(query, key, value, attention_mask, causal, scale, s_aux, mask, softcap), None

    @torch.compiler.assume_constant_result
    def mask(self, device: torch.device) -> Tensor:
        """The 2048 x 2048 mask of the compressed sparse modes: the one that all of the process share.

        It is held here, 4 MiB per device, because making it anew in every layer would cost more than a short
        prompt's attention.
        """
        if device not in self._masks:
            self._masks[device] = causal_mask(device)
        return self._masks[device]

    def _attend_rows(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        view: KVView,
        scale: float,
        sink: Tensor | None,
    ) -> Tensor:
        """Attention of packed tokens, (T, N, Dv)."""
        rows = query.squeeze(0).transpose(0, 1)
        mask = self.mask(query.device)
        if isinstance(view, PagedKV):
            if not view.decode and needs_split(query.device):
                return attend_apart(lambda q, part: attend_paged(q, part, scale, sink, mask), rows, view)
            return attend_paged(rows, view, scale, sink, mask)
        if isinstance(view, LatentKV):
            return attend_latent(module, rows, view, scale, mask)
        keys, values = key.squeeze(0).transpose(0, 1), value.squeeze(0).transpose(0, 1)
        return attend_packed(rows, keys, values, view, scale, sink, mask)

    def _leave_to_sdpa(
        self, module: nn.Module, reason: str, sink: Tensor | None, softcap: float | None
    ) -> None:
        """Tell so once. Raises ValueError for sinks and a soft cap, which SDPA would drop."""
        if sink is not None or softcap is not None:
            missing = "sinks" if softcap is None else "soft cap"
            raise ValueError(f"{reason}, and SDPA has no {missing}; use attn_implementation='eager'")
        if reason not in self._told and not torch.compiler.is_compiling():
            self._told.add(reason)
            logger.warning("%s: left to SDPA: %s", type(module).__name__, reason)


def unsupported(attention_mask: Tensor | None, dropout: float, kwargs: dict[str, Any]) -> str | None:
    """Why FIA can't compute a padded batch, or None."""
    if dropout > 0:
        return f"dropout={dropout}: FIA is for inference"
    if kwargs.get("position_bias") is not None:
        return "position_bias: a bias may hide keys, which FIA's pse_shift can't express"
    if attention_mask is None:
        return None
    if attention_mask.dtype != torch.bool:
        return f"attention_mask: {attention_mask.dtype}, but only a bool mask says which keys take part"
    if attention_mask.dim() != 4 or attention_mask.shape[1] != 1:
        return f"attention_mask: {tuple(attention_mask.shape)} isn't one mask for all heads, (B, 1, Q, K)"
    return None


def _from_cumulative(attention_mask: Tensor | None, kwargs: dict[str, Any]) -> PackedKV | None:
    """A view for callers that pack requests and say so by ``cu_seq_lens_q`` and ``_k``, with leading 0."""
    queries, keys = kwargs.get("cu_seq_lens_q"), kwargs.get("cu_seq_lens_k")
    if attention_mask is not None or queries is None or keys is None:
        return None
    return PackedKV(queries[1:], keys[1:], kwargs.get("sliding_window"))
