"""npu_fusion_attention, which torch_npu's scaled_dot_product_attention calls: the forward, BNSD only."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

NO_KERNEL = "softnpu: npu_fusion_attention has no kernel for "


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    pse: Tensor | None = None,
    padding_mask: Tensor | None = None,
    atten_mask: Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = 2147483647,
    next_tockens: int = 2147483647,
    inner_precise: int = 0,
    prefix: list[int] | None = None,
    actual_seq_qlen: object = None,
    actual_seq_kvlen: object = None,
    sparse_mode: int = 0,
    *rest: Any,
    **keywords: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if pse is not None or prefix is not None or keep_prob != 1.0 or input_layout != "BNSD":
        raise RuntimeError(NO_KERNEL + "pse, prefix, dropout or a layout other than BNSD")
    keep = _keep(query.shape[2], key.shape[2], sparse_mode, atten_mask)
    groups = query.shape[1] // key.shape[1]
    k, v = (x.float().repeat_interleave(groups, 1) for x in (key, value))
    scores = (query.float() @ k.mT * scale).masked_fill(~keep, float("-inf"))
    output = (torch.softmax(scores, -1).nan_to_num() @ v).to(query.dtype)
    statistics = torch.logsumexp(scores, -1, keepdim=True).expand(*scores.shape[:-1], 8).contiguous()
    return output, statistics, torch.ones_like(statistics), query.new_empty(0)


def _keep(queries: int, keys: int, sparse_mode: int, atten_mask: Tensor | None) -> Tensor:
    """Which keys a query attends to, where the operator's mask says which it doesn't."""
    everything = torch.ones(queries, keys, dtype=torch.bool)
    if sparse_mode in (0, 1):
        return everything if atten_mask is None else ~atten_mask.bool()
    if sparse_mode == 2:
        return everything.tril()
    if sparse_mode == 3:
        return everything.tril(keys - queries)
    raise RuntimeError(NO_KERNEL + f"sparse_mode={sparse_mode}")


def _v1(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    return (*_attend(*args, **kwargs), 0, 0, 0)


def _v3(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    seed = torch.zeros(1, dtype=torch.int64)
    return (*_attend(*args, **kwargs), seed, seed.clone())


KERNELS = {"npu_fusion_attention": _v1, "npu_fusion_attention_v3": _v3}
