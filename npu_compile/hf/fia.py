"""One call of FIA on the tensors of a Hugging Face attention module."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..kernels.contract import packed_dims
from ..kernels.contract.fia_call import V2_NAMES


def host(lengths: Tensor) -> Tensor:
    """``lengths`` as the operators take them; in a graph all layers share the one copy to the host."""
    if torch.compiler.is_compiling():
        return torch.ops.ascend_fia.host_lengths(lengths)
    return lengths


def packs(query: Tensor, value_dim: int, heads: int, kv_heads: int, paged: bool = False) -> bool:
    """Whether the device takes these heads in the packed layout TND, without a rope part.

    ``query`` is any tensor with D last.
    """
    if query.device.type in ("cpu", "meta"):
        return True
    return packed_dims.packs("TND", query.shape[-1], value_dim, heads, kv_heads, paged)


def attend(query: Tensor, key: Tensor, value: Tensor, sink: Tensor | None = None, **arguments: Any) -> Tensor:
    """FIA's output, laid out as ``input_layout`` says; ``arguments`` by their names in v1.

    ``sink`` (N,) are logits that take part in the softmax sum and have no value row. v2 takes them with
    layout TND only. Elsewhere they follow from the log-sum-exp of what v1 computed: a sink adds
    exp(sink) to the sum, so it scales the output by sigmoid(lse - sink).
    """
    if sink is None:
        return torch.ops.ascend_fia.npu_fused_infer_attention_score(query, key, value, **arguments)[0]
    if arguments["input_layout"] == "TND":
        named = {V2_NAMES.get(name, name): argument for name, argument in arguments.items()}
        v2 = torch.ops.ascend_fia.npu_fused_infer_attention_score_v2
        return v2(query, key, value, learnable_sink=sink, **named)[0]
    out, lse = torch.ops.ascend_fia.npu_fused_infer_attention_score(
        query, key, value, softmax_lse_flag=True, **arguments
    )
    if arguments["input_layout"].endswith("BSND"):
        lse = lse.transpose(1, 2)
        sink = sink.view(1, 1, -1, 1)
    else:
        sink = sink.view(1, -1, 1, 1)
    return (out * torch.sigmoid(lse - sink.float())).to(out.dtype)
