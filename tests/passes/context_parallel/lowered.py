"""Graphs with lowered attention calls, as the pass finds them."""

from __future__ import annotations

import torch
from torch.fx.experimental.proxy_tensor import make_fx

import npu_compile.passes.context_parallel.fia_call  # noqa: F401  (defines torch.ops.ascend_fia)


def traced(program, *inputs, dynamic=False):
    return make_fx(program, tracing_mode="symbolic" if dynamic else "fake", pre_dispatch=True)(*inputs)


def causal_program(sparse_mode=3, layout="BNSD", **arguments):
    """(q, k, v, mask) -> 2 * causal attention, heads (4, 2)."""

    def program(q, k, v, mask):
        out, _ = torch.ops.ascend_fia.npu_fused_infer_attention_score.default(
            q,
            k,
            v,
            atten_mask=mask,
            num_heads=4,
            num_key_value_heads=2,
            scale=0.25,
            input_layout=layout,
            sparse_mode=sparse_mode,
            **arguments,
        )
        return out * 2

    return program


def decode_program(layout="BNSD", heads=4, **arguments):
    """(q, k, v, lengths) -> 2 * attention over the first ``lengths`` keys, two K/V heads."""

    def program(q, k, v, lengths):
        out, _ = torch.ops.ascend_fia.npu_fused_infer_attention_score.default(
            q,
            k,
            v,
            actual_seq_lengths_kv=lengths,
            num_heads=heads,
            num_key_value_heads=2,
            scale=0.25,
            input_layout=layout,
            **arguments,
        )
        return out * 2

    return program


def causal_inputs(tokens=8, keys=8):
    return (
        torch.randn(1, 4, tokens, 16),
        torch.randn(1, 2, keys, 16),
        torch.randn(1, 2, keys, 16),
        torch.ones(2048, 2048, dtype=torch.bool).triu(1),
    )


def decode_inputs(batch=3, heads=4):
    rows = torch.randn(batch, 2, 9, 16), torch.randn(batch, 2, 9, 16)
    return torch.randn(batch, heads, 1, 16), *rows, torch.tensor([9, 4, 1][:batch])


def targets(module):
    """Names of the operators a graph calls, in order, without reshaping ones."""
    shaping = {"transpose", "permute", "flatten", "unflatten", "squeeze", "unsqueeze", "contiguous", "view"}
    names = [
        node.target._opname for node in module.graph.nodes if isinstance(node.target, torch._ops.OpOverload)
    ]
    return [name for name in names if name not in shaping and name != "sym_size"]
