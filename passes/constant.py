"""Numbers that are known when compiling, however the program wrote them down."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from npu_compile.passes.specialise import specialised
from npu_compile.passes.values import aten, is_call, is_tensor, same_value_input, value, written_through


def is_symbolic(node: Any) -> TypeGuard[fx.Node]:
    """Whether ``node`` is a float that dynamo made an input of, as it does with dynamic=True."""
    return isinstance(node, fx.Node) and isinstance(node.meta.get("val"), torch.SymFloat)


def constant(given: Any) -> float | None:
    """A number known when compiling: a Python number or a tensor filled with one; bools are none.

    A symbolic float is fixed under a guard.
    """
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        return float(given)
    if is_symbolic(given):
        return specialised(given.meta["val"])
    if is_tensor(given) and written_through(given):
        return None
    if (held := number_in(written_down(given))) is not None:
        return constant(held)
    if not is_tensor(given) or value(given).dtype == torch.bool or value(given).dtype.is_complex:
        return None
    number = _filled_with(given)
    held = None if number is None else rounded(number, value(given).dtype)
    return None if held is None else float(held)


def _filled_with(node: fx.Node) -> float | None:
    """The number that each element of a tensor is made of."""
    if is_call(node, aten.to, aten._to_copy, aten.expand, aten.scalar_tensor):
        return constant(node.args[0])
    if (source := same_value_input(node)) is not None:
        return constant(source)
    if is_call(node, aten.full.default, aten.full_like.default, aten.new_full.default):
        return constant(node.args[2 if is_call(node, aten.new_full) else 1])
    if is_call(node, aten.zeros, aten.zeros_like, aten.new_zeros):
        return 0.0
    if is_call(node, aten.ones, aten.ones_like, aten.new_ones):
        return 1.0
    return None


def rounded(number: float, dtype: torch.dtype) -> float | None:
    """``number`` as ``dtype`` holds it: float16 turns float32's minimum into -inf, and integers 0.5 into 0.

    None where integers hold no such number, such as infinity.
    """
    whole = not dtype.is_floating_point
    if whole and not -(2**63) <= number < 2**63:
        return None
    with unset_fake_temporarily():
        exact = torch.tensor(int(number)) if whole else torch.tensor(number, dtype=torch.float64)
        return exact.to(dtype).item()


def written_down(node: Any) -> torch.Tensor | None:
    """The tensor that a ``get_attr`` names, if the program wrote it down as numbers.

    Tracing marks those with ``lift_fresh``; no other tensor of a graph may be read, for it can change.
    """
    if not isinstance(node, fx.Node) or node.op != "get_attr":
        return None
    held = getattr(node.graph.owning_module, str(node.target), None)
    if isinstance(held, FakeTensor):
        held = held.constant
    lifted = all(is_call(user, aten.lift_fresh_copy, aten.lift_fresh) for user in node.users)
    return held if lifted and isinstance(held, torch.Tensor) and not held.is_meta else None


def number_in(held: torch.Tensor | None) -> bool | int | float | complex | None:
    """What a tensor of one element holds, also while values are fake; None for other tensors."""
    if held is None or held.numel() != 1:
        return None
    with unset_fake_temporarily():
        return held.item()
