"""What ``atten_mask``, ``sparse_mode``, ``pre_tokens`` and ``next_tokens`` hide, per request.

Conventions (torch_npu docs): the mask is True (1) where a key is *masked out*. Modes 0 and 1 bring the whole mask.
Modes 2 (causal from the top left), 3 (causal from the bottom right) and 4 (band, from the bottom right) bring the
triangle ``triu(ones(2048, 2048), 1)``, whose content is trusted. Both band limits are inclusive: ``pre_tokens=p``
keeps p keys before the own one. Mode 9 brings a mask over the last Lq keys: the tree of a speculative decode.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from npu_compile.kernels.cpu.attend import EVERYTHING, Band

UNLIMITED = 2147483647
COMPRESSED = (2048, 2048)
MASK_DTYPES = (torch.bool, torch.int8, torch.uint8)


@dataclass(frozen=True, slots=True)
class Mask:
    """The mask arguments of one call, their form checked.

    ``whole`` is the mask of modes 0 and 1 as (1 or B, 1, Q, KV); ``tree`` that of mode 9, (B, Q, Q) or, packed,
    1-D with the requests' Q·Q values one after the other.
    """

    sparse_mode: int = 0
    pre_tokens: int = UNLIMITED
    next_tokens: int = UNLIMITED
    whole: Tensor | None = None
    tree: Tensor | None = None

    def band(self, q_len: int, kv_len: int) -> Band:
        """The keys that the mode leaves visible to a request of these lengths, apart from the mask's values."""
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

    def hidden(self, requests: slice, q_len: int, kv_len: int) -> Tensor | None:
        """The mask's values for some of the requests: bool, broadcasts to (b, N, q_len, kv_len); None if none."""
        if self.whole is None:
            return None
        mask = self.whole if self.whole.shape[0] == 1 else self.whole[requests]
        if mask.shape[2] < q_len or mask.shape[3] < kv_len:
            raise ValueError(
                f"atten_mask: {tuple(self.whole.shape)} doesn't cover {q_len} queries and {kv_len} keys"
            )
        return mask[:, :, :q_len, :kv_len].to(torch.bool)


NO_MASK = Mask()


def mask_of(
    tensor: Tensor | None,
    sparse_mode: int,
    pre_tokens: int,
    next_tokens: int,
    batch: int,
    q_len: int | None,
    rope: bool,
) -> Mask:
    """The mask of a call with ``batch`` requests of ``q_len`` tokens each (None if packed).

    With one query token and no rope the operator ignores the mode and the tokens; a whole mask still applies.
    """
    if tensor is not None and tensor.dtype not in MASK_DTYPES:
        raise TypeError(f"atten_mask: {tensor.dtype} isn't one of bool, int8, uint8")
    if sparse_mode not in (0, 1, 2, 3, 4, 9):
        raise ValueError(
            f"sparse_mode: {sparse_mode} isn't implemented by the operator: 0, 1, 2, 3, 4 and 9 are"
        )
    ignored = q_len == 1 and not rope
    if tensor is None:
        if sparse_mode != 0 and not ignored:
            raise ValueError(f"atten_mask: sparse_mode {sparse_mode} needs a mask, got None")
        return NO_MASK
    if sparse_mode in (2, 3, 4):
        if tuple(tensor.shape[-2:]) != COMPRESSED or tensor.numel() != COMPRESSED[0] * COMPRESSED[1]:
            raise ValueError(
                f"atten_mask: sparse_mode {sparse_mode} takes the 2048x2048 mask, got {tuple(tensor.shape)}"
            )
        return NO_MASK if ignored else Mask(sparse_mode, pre_tokens, next_tokens)
    if sparse_mode == 9:
        return Mask(9, tree=tensor)
    whole = _four_dims(tensor, batch, q_len)
    return Mask(1, whole=whole) if ignored else Mask(sparse_mode, pre_tokens, next_tokens, whole)


def _four_dims(mask: Tensor, batch: int, q_len: int | None) -> Tensor:
    """A whole mask as (1 or B, 1, Q, KV). Two dims are (B, KV) for one query token, else (Q, KV)."""
    if mask.dim() == 2:
        mask = mask[:, None, None] if q_len == 1 else mask[None, None]
    elif mask.dim() == 3:
        mask = mask[:, None]
    if mask.dim() != 4 or mask.shape[1] != 1 or mask.shape[0] not in (1, batch):
        raise ValueError(
            f"atten_mask: {tuple(mask.shape)} isn't (B, 1, Q, KV) or (1, 1, Q, KV) for a batch of {batch}"
        )
    return mask
