"""The attention operators a compiled graph holds: torch_npu's FIA with tensors for lengths, and ``composed``.

torch_npu takes the lengths of FIA as lists of host integers. As values they can't be traced, and as
constants they would compile anew at every step. The operators here take tensors, never look at them
while tracing, and make the real call when they run. Their schemas are torch_npu's with ``Tensor?`` for
``SymInt[]?``, so every argument keeps its name, order and default.

``ascend_fia::host_lengths(Tensor lengths) -> Tensor`` is the device to host copy that all layers of a
step share; reading lengths that lie on the CPU costs no synchronisation.

There is no backward: inputs that require grad, under grad mode, raise RuntimeError.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.library import Library, register_fake

from .composed import COMPOSED
from .fakes import FAKES
from .lengths import HOST_READS, require_lengths
from .register import NAMESPACE as NPU
from .register import ensure_npu_ops
from .schemas import SCHEMAS

NAMESPACE = "ascend_fia"
OPERATORS = ("npu_fused_infer_attention_score", "npu_fused_infer_attention_score_v2")
HOST_LIST = "SymInt[]?"

Kernel = Callable[..., tuple[Tensor, Tensor]]

_libraries: list[Library] = []


def graph_schema(name: str) -> str:
    """torch_npu's schema of ``name`` with tensors for its lists of lengths."""
    return SCHEMAS[name].replace(HOST_LIST, "Tensor?")


def length_arguments(name: str) -> tuple[str, ...]:
    """Names of the arguments of ``name`` that torch_npu takes as lists of host integers."""
    schema = torch._C.parse_schema(SCHEMAS[name])
    return tuple(a.name for a in schema.arguments if str(a.real_type) == "Optional[List[int]]")


def ensure_graph_ops() -> None:
    """Define ``torch.ops.ascend_fia.*``; does nothing the second time."""
    if _libraries:
        return
    ensure_npu_ops()
    library = Library(NAMESPACE, "DEF")
    _libraries.append(library)
    for name in OPERATORS:
        _define(library, name, graph_schema(name), _real_call(name), FAKES[name])
    for name, composed in COMPOSED.items():
        _define(library, name, composed.schema, composed.kernel, composed.fake)
    library.define("host_lengths(Tensor lengths) -> Tensor", tags=torch.Tag.pt2_compliant_tag)
    library.impl("host_lengths", HOST_READS.to_host, "CPU")
    library.impl("host_lengths", HOST_READS.to_host, "PrivateUse1")
    register_fake(f"{NAMESPACE}::host_lengths", _fake_host_lengths, lib=library)


def _define(library: Library, name: str, schema: str, kernel: Kernel, fake: Kernel) -> None:
    library.define(schema, tags=torch.Tag.pt2_compliant_tag)
    library.impl(name, kernel, "CPU")
    library.impl(name, kernel, "PrivateUse1")
    library.impl(name, _without_backward(name, kernel), "Autograd")
    register_fake(f"{NAMESPACE}::{name}", fake, lib=library)


def _real_call(name: str) -> Kernel:
    operator = getattr(getattr(torch.ops, NPU), name).default
    lengths = length_arguments(name)

    def call(query: Tensor, key: Tensor, value: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor]:
        # torch strips arguments that equal their default, so what is here was given.
        for argument in lengths:
            given = kwargs.get(argument)
            if given is not None:
                kwargs[argument] = HOST_READS.to_list(argument, given)
        result: tuple[Tensor, Tensor] = operator(query, key, value, **kwargs)
        return result

    return call


def _without_backward(name: str, kernel: Kernel) -> Kernel:
    """What runs before ``kernel`` wherever gradients may be recorded, while tracing too."""
    graph_operator = getattr(getattr(torch.ops, NAMESPACE), name).default

    def call(query: Tensor, key: Tensor, value: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
            raise RuntimeError(f"{NAMESPACE}::{name} has no backward; call it under torch.no_grad()")
        with torch._C._AutoDispatchBelowAutograd():
            if type(query) is Tensor and not query.is_meta and not torch._C._len_torch_dispatch_stack():
                return kernel(query, key, value, **kwargs)  # where dispatching again would lead
            result: tuple[Tensor, Tensor] = graph_operator(query, key, value, **kwargs)
            return result

    return call


def _fake_host_lengths(lengths: Tensor) -> Tensor:
    require_lengths("lengths", lengths)
    # A real meta tensor has no values to copy, so its result has none either.
    device = "meta" if lengths.device.type == "meta" else "cpu"
    return torch.empty(lengths.shape, dtype=torch.int64, device=device)
