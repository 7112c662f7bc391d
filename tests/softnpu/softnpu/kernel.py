"""An NPU kernel made from a CPU one: the CPU operator, on aliases of the bytes, launched on the stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from . import tensors as t
from .launch import capturing, fail_capture, launch, synchronise
from .libraries import RUNTIME

DATA_DEPENDENT = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}


class Kernel:
    """The PrivateUse1 kernel of ``op``.

    ``cpu`` is what runs (default: ``op`` itself). ``mutates`` names arguments that it writes where
    the schema doesn't say so, as for the ``Tensor[] out`` of torch_npu. ``check`` is called with the
    arguments before the launch and refuses what the real kernel's tiling refuses.
    """

    def __init__(
        self,
        op: OpOverload,
        cpu: Callable[..., Any] | None = None,
        mutates: tuple[str, ...] = (),
        check: Callable[..., None] | None = None,
    ) -> None:
        schema = op._schema
        self.op, self.run, self.check = op, cpu or op, check
        self.name = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
        self.order = [a.name for a in schema.arguments]
        declared = [a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write]
        self.written = declared + [name for name in mutates if name not in declared]
        keyword_only = {a.name for a in schema.arguments if a.kwarg_only}
        self.outs = [name for name in self.written if name in keyword_only] if op.namespace == "aten" else []
        returns_written = bool(mutates) or all(r.alias_info is not None for r in schema.returns)
        self.in_place = bool(self.written) and returns_written
        self.tensor_positions = {i for i, a in enumerate(schema.arguments) if str(a.type) == "Tensor"}
        self.data_dependent = "repeat_interleave" in schema.name or bool(DATA_DEPENDENT & set(op.tags))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.check:
            self.check(*args, **kwargs)
        args = tuple(self._wrap_number(i, arg) for i, arg in enumerate(args))
        inputs = [x for x in t.tensors_in([list(args), list(kwargs.values())]) if t.on_npu(x)]
        device = inputs[0].device.index if inputs else getattr(kwargs.get("device"), "index", None)
        if self.in_place:
            return self._run_in_place(args, kwargs, device)
        deferred = RUNTIME.soft_pending() > 0 or capturing(device) or RUNTIME.soft_lazy(-1)
        if not deferred:
            return self._run_now(args, kwargs, inputs, device)
        try:
            shapes = self._shapes(args, kwargs)
        except Exception as error:
            if capturing(device):
                fail_capture(f"{self.name} needs the host during a capture", device)
                raise RuntimeError(f"softnpu: {self.name} cannot be captured: {error}") from error
            return self._run_now(args, kwargs, inputs, device)
        return self._run_later(args, kwargs, shapes, device)

    def _wrap_number(self, position: int, arg: Any) -> Any:
        is_number = position in self.tensor_positions and isinstance(arg, int | float | complex)
        return torch.tensor(arg) if is_number else arg

    def _call(self, args: Any, kwargs: Any) -> Callable[[], Any]:
        """The CPU call, on aliases made now."""
        a, k = t.mapped(list(args), t.to_cpu), {name: t.mapped(x, t.to_cpu) for name, x in kwargs.items()}
        return lambda: self.run(*a, **k)

    def _run_in_place(self, args: Any, kwargs: Any, device: int | None) -> Any:
        named = {**dict(zip(self.order, args, strict=False)), **kwargs}
        self._resize_outs(args, kwargs)
        launch(self._call(args, kwargs), self.name, device)
        written = list(t.tensors_in([named.get(name) for name in self.written]))
        count = len(self.op._schema.returns)
        return None if count == 0 else written[0] if count == 1 else tuple(written[:count])

    def _run_now(self, args: Any, kwargs: Any, inputs: list[Tensor], device: int | None) -> Any:
        """Wait for the result, and take its shape from it."""
        results: list[Any] = []
        call = self._call(args, kwargs)
        launch(lambda: results.append(call()), self.name, device)
        if not results:
            synchronise(device)
        return t.result_mapped(results[0], lambda r: t.from_cpu(r, inputs, device))

    def _run_later(self, args: Any, kwargs: Any, shapes: Any, device: int | None) -> Any:
        outputs = t.result_mapped(shapes, lambda s: t.empty_like(s, device) if isinstance(s, Tensor) else s)
        aliases = [t.alias(output) for output in t.tensors_in(outputs)]
        call = self._call(args, kwargs)

        def fill() -> None:
            for output, result in zip(aliases, t.tensors_in(call()), strict=True):
                # Auxiliary results may be empty on one side, such as an LSE that wasn't asked for.
                if result.numel() and output.numel():
                    output.copy_(result)

        launch(fill, self.name, device)
        return outputs

    def _shapes(self, args: Any, kwargs: Any) -> Any:
        """What the operator would return, from its meta kernel or else from a run on zeros."""
        with torch._C._AutoDispatchBelowAutograd(), torch.no_grad():
            try:
                return self._mapped_call(self.op, args, kwargs, t.to_meta)
            except Exception:
                if self.data_dependent:
                    raise
                return self._mapped_call(self.run, args, kwargs, t.to_scratch)

    def _resize_outs(self, args: Any, kwargs: Any) -> None:
        """Give ``out=`` tensors the size of the result, as the operator does."""
        outs = [name for name in self.outs if isinstance(kwargs.get(name), Tensor)]
        if all(kwargs[name].numel() for name in outs):
            return
        shaped = {name: torch.empty(0, dtype=kwargs[name].dtype, device="meta") for name in outs}
        rest = {name: value for name, value in kwargs.items() if name not in outs}
        a, k = t.mapped(list(args), t.to_meta), {name: t.mapped(x, t.to_meta) for name, x in rest.items()}
        self.op(*a, **k, **shaped)
        for name in outs:
            if kwargs[name].size() != shaped[name].size():
                kwargs[name].resize_(shaped[name].size())

    @staticmethod
    def _mapped_call(function: Callable[..., Any], args: Any, kwargs: Any, to: Callable[[Any], Any]) -> Any:
        return function(*t.mapped(list(args), to), **{name: t.mapped(x, to) for name, x in kwargs.items()})
