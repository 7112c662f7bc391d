"""The operators of FlashAttention and its relatives, and what their arguments mean.

flash-attn 2 and 3, vLLM's builds of them, SGLang's, and the kernels that transformers loads from the Hub
register one family of operators in namespaces of their own (a Hub kernel's ends with a hash). Names of
arguments differ a little, meanings don't.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from npu_compile.passes.values import given_arguments

NAMESPACE = re.compile(r"flash_?attn|flash_attention|vllm_fa\d|^sgl_kernel$")
FORWARD = ("_flash_attn_forward", "_flash_attn_varlen_forward", "fwd", "varlen_fwd", "fwd_kvcache")
NO_ATTENTION = re.compile(r"bwd|backward|combine|metadata")

CANONICAL = {
    "k_": "k_new",
    "v_": "v_new",
    "kcache": "k",
    "vcache": "v",
    "seqlens_k_": "seqused_k",
    "cache_seqlens": "seqused_k",
    "page_table": "block_table",
    "is_causal": "causal",
    "learnable_sink": "s_aux",
}
"""Names of flash-attn 3's Python operator for those that others use; beside a trailing underscore."""

IRRELEVANT = frozenset(
    (
        "max_seqlen_k",
        "return_softmax",
        "scheduler_metadata",
        "num_splits",
        "pack_gqa",
        "sm_margin",
        "gen",
        "zero_tensors",
        "deterministic",
        "rotary_interleaved",
        "is_rotary_interleaved",
    )
)
"""Arguments that the first result doesn't depend on, or not by themselves."""


class NotTranslated(Exception):
    """A call that FIA can't stand for; the message says why."""


@dataclass(frozen=True)
class FlashCall:
    """What a call computes, by flash-attn 3's names.

    ``q`` is (B, S, N, D), or (T, N, D) with ``cu_seqlens_q`` (B + 1), which begins with 0. Keys and values
    are laid out as the queries are, or are pages (blocks, block_size, N_kv, D) with ``block_table``
    (B, columns). ``seqused_k`` (B,) counts the keys of each request, or those before ``k_new``
    (B, S_new, N_kv, D), which the call writes behind them first. Causality and windows are aligned at the
    bottom right.
    """

    q: fx.Node
    k: fx.Node
    v: fx.Node
    k_new: fx.Node | None = None
    v_new: fx.Node | None = None
    cu_seqlens_q: fx.Node | None = None
    cu_seqlens_k: fx.Node | None = None
    seqused_k: fx.Node | None = None
    block_table: fx.Node | None = None
    s_aux: fx.Node | None = None
    max_seqlen_q: Any = None
    softmax_scale: float | None = None
    causal: bool = False
    window_size_left: int = -1
    window_size_right: int = -1


def is_flash_call(node: fx.Node) -> bool:
    """Whether ``node`` calls attention of FlashAttention's family, whether it can be translated or not."""
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return False
    namespace, name = node.target._schema.name.split("::")
    if name in FORWARD:
        return NAMESPACE.search(namespace) is not None
    alike = NAMESPACE.search(f"{namespace}::{name}") is not None and namespace not in ("aten", "npu")
    return alike and NO_ATTENTION.search(name) is None


def read_call(node: fx.Node) -> FlashCall:
    """Raises NotTranslated for an operator that isn't known, and for arguments that FIA can't follow."""
    operator = str(node.target)
    if node.target._schema.name.split("::")[1] not in FORWARD:  # type: ignore[union-attr]
        raise NotTranslated(f"{operator} isn't one of FlashAttention's operators that are known")
    meant: dict[str, Any] = {}
    for spec, given in given_arguments(node):
        given = spec.default_value if given is None and spec.has_default_value() else given
        name = CANONICAL.get(spec.name) or CANONICAL.get(spec.name.rstrip("_"), spec.name.rstrip("_"))
        if name in FlashCall.__dataclass_fields__:
            if given is not None:
                meant[name] = given
        elif name not in IRRELEVANT and (isinstance(given, fx.Node) or given not in (None, 0, False)):
            raise NotTranslated(f"{spec.name}={given}: FIA has nothing like it")
    missing = {"q", "k", "v"} - meant.keys()
    if missing:
        raise NotTranslated(f"{operator} has no argument {', '.join(sorted(missing))}")
    for name in ("softmax_scale", "causal", "window_size_left", "window_size_right"):
        if isinstance(meant.get(name), (fx.Node, torch.SymInt, torch.SymFloat)):
            raise NotTranslated(f"{name}: its value isn't known when compiling")
    return FlashCall(**meant)
