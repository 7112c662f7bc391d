"""Products of two activations in every spelling: matmul, bmm, baddbmm, einsum."""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from npu_compile.passes.site import MaskTerm, Operand, Views
from npu_compile.passes.values import argument, aten, is_call, is_tensor, node_input, operand, shape, viewed


@dataclass(frozen=True)
class Product:
    """``node`` = scale * (lhs @ rhs) (+ added), seen through ``output_views``.

    ``lhs`` is (..., M, D) and ``rhs`` (..., D, N); leading dimensions broadcast as in matmul.
    """

    node: fx.Node
    lhs: Operand
    rhs: Operand
    scale: float = 1.0
    added: MaskTerm | None = None
    output_views: Views = ()


def match_product(node: fx.Node) -> Product | None:
    """The product that ``node`` computes, or None."""
    if is_call(node, aten.matmul.default, aten.bmm.default, aten.mm.default):
        lhs, rhs = node_input(node), node_input(node, 1)
        return _if_matrices(Product(node, operand(lhs, node), operand(rhs, node)))
    if is_call(node, aten.baddbmm.default, aten.baddbmm_.default):
        return _match_baddbmm(node)
    if is_call(node, aten.einsum.default):
        return _match_einsum(node)
    return None


def _if_matrices(product: Product) -> Product | None:
    ranks = [len(shape(read.node)) for read in (product.lhs, product.rhs)]
    return product if min(ranks) >= 2 else None


def _match_baddbmm(node: fx.Node) -> Product | None:
    lhs, rhs = node_input(node, 1), node_input(node, 2)
    beta, alpha = argument(node, 3, "beta", 1), argument(node, 4, "alpha", 1)
    if beta not in (0, 1) or not isinstance(alpha, (int, float)):
        return None
    term = MaskTerm("add", node_input(node)) if beta == 1 else None
    return Product(node, operand(lhs, node), operand(rhs, node), float(alpha), term)


def _match_einsum(node: fx.Node) -> Product | None:
    """einsum over two operands with one contracted letter, as a batched matmul of permuted views."""
    equation, operands = argument(node, 0, "equation"), argument(node, 1, "tensors")
    if "." in equation or "->" not in equation or len(operands) != 2 or not all(map(is_tensor, operands)):
        return None
    inputs, output = equation.replace(" ", "").split("->")
    if inputs.count(",") != 1:
        return None
    left, right = inputs.split(",")
    if any(len(set(letters)) != len(letters) for letters in (left, right, output)):
        return None
    contracted = [c for c in left if c in right and c not in output]
    rows = [c for c in left if c not in right]
    columns = [c for c in right if c not in left]
    if len(contracted) != 1 or len(rows) != 1 or len(columns) != 1 or not {*rows, *columns} <= set(output):
        return None
    batch = [c for c in output if c not in (rows[0], columns[0])]
    lhs = _permuted(operand(operands[0], node), left, [*batch, rows[0], contracted[0]])
    rhs = _permuted(operand(operands[1], node), right, [*batch, contracted[0], columns[0]])
    canonical = [*batch, rows[0], columns[0]]
    return Product(node, lhs, rhs, output_views=_permutation([canonical.index(c) for c in output]))


def _permuted(read: Operand, letters: str, wanted: list[str]) -> Operand:
    present = [c for c in wanted if c in letters]
    for target, arguments in _permutation([letters.index(c) for c in present]):
        read = viewed(read, target, *arguments)
    for position, letter in enumerate(wanted):
        if letter not in letters:
            read = viewed(read, aten.unsqueeze.default, position)
    return read


def _permutation(order: list[int]) -> Views:
    """The view that reorders dimensions; a swap of two is a transpose, no change is nothing."""
    moved = [i for i, source in enumerate(order) if i != source]
    if not moved:
        return ()
    if len(moved) == 2:
        return ((aten.transpose.int, (moved[0], moved[1])),)
    return ((aten.permute.default, (order,)),)
