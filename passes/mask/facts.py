"""What a run that doesn't fail proves about tensors that only the run will hold."""

from __future__ import annotations

from npu_compile.passes.mask.interpret import Interpreter
from npu_compile.passes.mask.linear import Dim, Held, Linear, any_of, size
from npu_compile.passes.mask.values import Number
from npu_compile.passes.values import argument, aten, is_call, is_tensor, node_input, shape


def learn_positions(interpreter: Interpreter) -> None:
    """A static cache is written with ``index_copy_(cache, dim, arange(n) + start, ...)``.

    ``index_copy_`` raises an error for any position outside of [0, capacity). So ``start >= 0`` and
    ``start + n <= capacity`` in every run that gets through, whatever ``start`` holds.
    """
    seen = set()
    for node in interpreter.graph.nodes:
        if not is_call(node, aten.index_copy_, aten.index_copy) or not is_tensor(node.args[2]):
            continue
        cache, axis, positions = node_input(node), argument(node, 1, "dim"), node_input(node, 2)
        capacity, count = size(shape(cache)[axis]), size(shape(positions)[0])
        if (positions, capacity) in seen:
            continue
        seen.add((positions, capacity))
        value = interpreter.value(positions)
        if not isinstance(value, Number):
            continue
        start = value.linear.substitute({-1: Linear()})
        steps = value.linear - start in (Linear(), Linear.of(Dim(-1)))
        if steps and any_of([start], lambda atom: isinstance(atom, Held)) and not start.dims():
            interpreter.prover.assume(start)
            interpreter.prover.assume(capacity - count - start)
