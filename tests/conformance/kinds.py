"""The calls that our operators and the real ones are compared on: every kind the project emits, and more.

The same list is made here and in the process that has torch_npu, so a call is known by its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from tests.kernels.contract_calls import FIA, FIA_V2, causal, dense, mla, packed, paged, v2, zeros
from tests.kernels.contract_refusals import REFUSALS
from tests.kernels.test_contract_legal import LEGAL

TWINS = {
    "npu_scatter_pa_kv_cache": "npu_scatter_pa_kv_cache_functional",
    "npu_gather_pa_kv_cache": "npu_gather_pa_kv_cache_functional",
    "npu_mla_prolog_v3": "npu_mla_prolog_v3_functional",
    "npu_scatter_nd_update_": "npu_scatter_nd_update",
}
"""Operators that write to an argument, and those that return what they would have written."""


class Kind(NamedTuple):
    name: str
    op: str
    args: dict[str, Any]


UNPACKED = ("BSH", "BSND", "BNSD", "BNSD_BSND", "BSH_BNSD", "BSND_BNSD", "BSH_NBSD", "BSND_NBSD", "BNSD_NBSD")
PACKED = ("TND", "NTD", "TND_NTD", "NTD_TND")


def legal() -> Iterator[Kind]:
    """Calls that are legal on some target."""
    for name, (op, args, _) in LEGAL.items():
        yield Kind(name, op, args)
        if op in TWINS:
            yield Kind(f"{name}, {TWINS[op]}", TWINS[op], args)
    for layout in UNPACKED:
        yield from _fia(f"{layout}", dense(layout, b=3, n=6, kn=2, q=5, s=54, d=32))
        yield from _fia(
            f"{layout}, causal", dense(layout, q=17, s=17) | {"sparse_mode": 3, "atten_mask": causal()}
        )
        yield from _fia(
            f"{layout}, no heads shared", dense(layout, n=3, kn=3, d=16) | {"num_key_value_heads": 0}
        )
        if not layout.startswith("BNSD_BSND"):
            yield from _fia(f"{layout}, one token", dense(layout, q=1, actual_seq_lengths_kv=[0, 48]))
        for form in ("BnBsH", "NZ") if layout.startswith("BS") else ("BnBsH", "BnNBsD", "NZ"):
            yield from _fia(f"{layout} on {form}", paged(form, 5, layout))
        yield from _fia(
            f"{layout}, absorbed", mla(q=3, layout=layout) | {"sparse_mode": 3, "atten_mask": causal()}
        )
        yield from _fia(
            f"{layout}, int8 out", dense(layout) | {"quant_scale2": zeros(1, dtype=torch.float32)}
        )
    for layout in PACKED:
        yield from _fia(layout, packed([3, 6], [4, 9], d=128, layout=layout))
        yield from _fia(f"{layout}, V 64", packed([3, 6], [4, 9], d=96, dv=64, layout=layout))


def _fia(name: str, args: dict[str, Any]) -> Iterator[Kind]:
    """With and without LSE, for both versions of the operator."""
    for lse in (False, True):
        call = args | {"softmax_lse_flag": lse}
        yield Kind(f"v1 {name}, lse {lse}", FIA, call)
        yield Kind(f"v2 {name}, lse {lse}", FIA_V2, _quantised_output(v2(call)))


def _quantised_output(args: dict[str, Any]) -> dict[str, Any]:
    return {{"quant_scale2": "quant_scale_out"}.get(name, name): value for name, value in args.items()}


def doubtful() -> Iterator[Kind]:
    """Calls that are mostly wrong: those of the refusal tests, and legal ones with one thing changed."""
    for rule, case in REFUSALS.items():
        yield Kind(f"refusal {rule}", case.op, case.args)
    for name, (op, args, _) in LEGAL.items():
        for argument, value in args.items():
            for change, bad in _changed(value):
                yield Kind(f"{name}: {argument} {change}", op, args | {argument: bad})


def _changed(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, torch.Tensor):
        yield "with a dim more", value[None]
        if value.dim() and value.shape[0]:
            yield "with a dim less", value[0]
            yield "without elements", value[:0]
        yield "in float64", value.double()
    elif isinstance(value, str):
        yield "misspelt", value + "X"
    elif type(value) is int:
        for other in (0, -1, 7):
            yield f"of {other}", other


def on_meta(args: dict[str, Any]) -> dict[str, Any]:
    """The same call without data."""

    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to("meta")
        if isinstance(value, list) and value and isinstance(value[0], torch.Tensor):
            return [move(item) for item in value]
        return value

    return {name: move(value) for name, value in args.items()}


def described(result: Any) -> Any:
    """Shapes and dtypes of what an operator returns, as JSON has them."""
    if isinstance(result, (tuple, list)):
        return [described(item) for item in result]
    if isinstance(result, torch.Tensor):
        return [str(result.dtype), [int(size) for size in result.shape]]
    return None if result is None else str(result)
