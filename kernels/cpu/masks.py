"""What ``atten_mask``, ``sparse_mode``, ``pre_tokens`` and ``next_tokens`` hide, per request.

Conventions (torch_npu docs): the mask is True (1) where a key is *masked out*. Modes 0 and 1 bring the whole
mask. Modes 2 (causal from the top left), 3 (causal from the bottom right) and 4 (band, from the bottom
right) bring the triangle ``triu(ones(2048, 2048), 1)``, whose content is trusted. Both band limits are
inclusive: ``pre_tokens=p`` keeps p keys before the own one. Mode 9 brings a mask over the last Lq keys: the
tree of a speculative decode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .attend import EVERYTHING, Band
from .requests import Request

UNLIMITED = 2147483647
COMPRESSED = (2048, 2048)
MASK_DTYPES = (torch.bool, torch.int8, torch.uint8)


@dataclass(frozen=True, slots=True)
class Mask:
    """The mask arguments of one call.

    ``whole`` is the mask of modes 0 and 1 as (1 or B, 1, Q, KV); ``tree`` that of mode 9, (B, Q, Q), or 1-D
    if packed: the requests' Lq * Lq values one after the other.
    """

    sparse_mode: int = 0
    pre_tokens: int = UNLIMITED
    next_tokens: int = UNLIMITED
    whole: Tensor | None = None
    tree: Tensor | None = None

    def band(self, q_len: int, kv_len: Any) -> Band:
        """The keys that the mode leaves visible to a request of these lengths, the mask's values aside.

        ``kv_len`` is an int, or a tensor of them; then the limits are tensors.
        """
        if self.sparse_mode == 2:
            return Band(upper=0)
        if self.sparse_mode == 3:
            return Band(upper=kv_len - q_len)
        if self.sparse_mode == 4:
            return self._tokens().shifted(kv_len - q_len, 0)
        if self.sparse_mode == 0 and self.whole is not None:
            return self._tokens()
        return EVERYTHING

    def _tokens(self) -> Band:
        lower = None if self.pre_tokens >= UNLIMITED else -self.pre_tokens
        return Band(lower, None if self.next_tokens >= UNLIMITED else self.next_tokens)

    def hidden(self, request: Request, kv_len: int, trees_before: int) -> Tensor | None:
        """The mask's values: bool, broadcastable to (b, N, Lq, kv_len); None if it has none.

        ``kv_len`` counts a shared prefix. ``trees_before`` is where the request starts in a packed tree mask.
        """
        if self.whole is not None:
            return _window(self.whole, request, kv_len).to(torch.bool)
        if self.tree is None:
            return None
        q_len = request.q_len
        if self.tree.dim() == 1:
            tree = self.tree[trees_before : trees_before + q_len * q_len].reshape(1, 1, q_len, q_len)
        else:
            tree = self.tree[request.index, None, :q_len, :q_len]
        hidden = tree.new_zeros(tree.shape[0], 1, q_len, kv_len, dtype=torch.bool)
        hidden[..., kv_len - q_len :] = tree.to(torch.bool)
        return hidden


NO_MASK = Mask()


def _window(whole: Tensor, request: Request, kv_len: int) -> Tensor:
    """The request's part of a (1 or B, heads, Q, KV) tensor; left padding is skipped on both axes."""
    part = whole if whole.shape[0] == 1 else whole[request.index]
    rows, columns = request.query_offset, request.key_offset
    window = part[:, :, rows : rows + request.q_len, columns : columns + kv_len]
    if tuple(window.shape[2:]) != (request.q_len, kv_len):
        needed = (rows + request.q_len, columns + kv_len)
        raise ValueError(
            f"a mask or bias of shape {tuple(whole.shape)} doesn't cover {needed} queries and keys"
        )
    return window


def bias_of(pse_shift: Tensor, request: Request, kv_len: int) -> Tensor:
    """The request's part of ``pse_shift`` (1 or B, N, Q, KV)."""
    return _window(pse_shift, request, kv_len)


def mask_of(
    tensor: Tensor | None, sparse_mode: int, pre_tokens: int, next_tokens: int, one_token: bool, rope: bool
) -> Mask:
    """The mask of a call, its form checked.

    ``one_token``: one query token per request, not packed. Unless there is a rope part the operator then
    ignores the mode and the tokens; a whole mask still applies, a 2-D one being (B, KV) rather than (Q, KV).
    """
    if sparse_mode not in (0, 1, 2, 3, 4, 9):
        raise ValueError(f"sparse_mode: {sparse_mode} isn't one of 0, 1, 2, 3, 4, 9")
    ignored = one_token and not rope
    if tensor is None:
        if sparse_mode != 0 and not ignored:
            raise ValueError(f"atten_mask: sparse_mode {sparse_mode} needs a mask, got None")
        return NO_MASK
    if tensor.dtype not in MASK_DTYPES:
        raise TypeError(f"atten_mask: {tensor.dtype} isn't one of bool, int8, uint8")
    if sparse_mode in (2, 3, 4):
        if tuple(tensor.shape[-2:]) != COMPRESSED or tensor.numel() != COMPRESSED[0] * COMPRESSED[1]:
            raise ValueError(
                f"atten_mask: sparse_mode {sparse_mode} takes the 2048 x 2048 mask, got {tuple(tensor.shape)}"
            )
        return NO_MASK if ignored else Mask(sparse_mode, pre_tokens, next_tokens)
    if sparse_mode == 9:
        return Mask(9, tree=tensor)
    if tensor.dim() == 2:
        tensor = tensor[:, None, None] if one_token else tensor[None, None]
    elif tensor.dim() == 3:
        tensor = tensor[:, None]
    return Mask(1, whole=tensor) if ignored else Mask(sparse_mode, pre_tokens, next_tokens, tensor)
