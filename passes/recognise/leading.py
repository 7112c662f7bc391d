"""SDPA on tensors of more than four dimensions: all but the last three are batch."""

from __future__ import annotations

from torch import fx

from npu_compile.passes.axes import Frame, fresh
from npu_compile.passes.recognise.assemble import Declined
from npu_compile.passes.recognise.placing import views_to
from npu_compile.passes.site import Operand, Views
from npu_compile.passes.values import aten, same, same_shape, shape, viewed


class Leading:
    """The leading dimensions of a call, whose query, key and value must agree in them."""

    def __init__(self, query: fx.Node, *others: fx.Node) -> None:
        """Raises Declined where they are broadcast."""
        sizes = shape(query)[:-3]
        if any(not same_shape(shape(other)[:-3], sizes) for other in others):
            raise Declined("query, key and value of more than four dimensions differ in the leading ones")
        self._frame = fresh(sizes)
        self._batch = tuple(axis for dim in self._frame for axis in dim)

    def folded(self, read: Operand) -> Operand:
        """(B, N, S, D) of an operand as the program has it."""
        return viewed(read, aten.reshape.default, [-1, *shape(read.node)[-3:]])

    def unfolded(self, output: fx.Node) -> Views:
        """From (B, N, Q, D_v) to the program's own result."""
        return ((aten.reshape.default, (list(shape(output)),)),)

    def mask_views(self, mask: fx.Node) -> Views:
        """The views that make a mask broadcast to (B, N, Q, K)."""
        sizes = shape(mask)
        own = fresh(sizes[-3:])
        leading = tuple(
            () if same(size, 1) else dim
            for size, dim in zip(reversed(sizes[:-3]), reversed(self._frame), strict=False)
        )
        frame: Frame = (*reversed(leading), *own)
        if len(frame) <= 4 and not any(leading):
            return ()
        return views_to(frame, (self._batch, *own))
