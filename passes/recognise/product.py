"""Products of two activations in every spelling: matmul, bmm, baddbmm, einsum."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import fx

from npu_compile.passes.recognise.einsum import Letters, letters_of
from npu_compile.passes.site import MaskTerm
from npu_compile.passes.values import argument, aten, is_call, node_input, same, shape


@dataclass(frozen=True)
class Product:
    """``node`` = scale * (left x right) (+ added), as an einsum of two tensors.

    Each dimension has a letter: one that both factors and the result have is a batch dimension, one that
    only the factors have is summed over. A dimension of size 1 that broadcasts has the letter "".
    """

    node: fx.Node
    left: fx.Node
    right: fx.Node
    letters: tuple[Letters, Letters, Letters]
    """Of left, right and the result."""
    scale: float = 1.0
    added: MaskTerm | None = None

    @property
    def summed(self) -> list[str]:
        left, right, result = self.letters
        return [letter for letter in left if letter and letter in right and letter not in result]


def match_product(node: fx.Node) -> Product | None:
    """The product that ``node`` computes, or None."""
    if is_call(node, aten.matmul.default, aten.bmm.default, aten.mm.default):
        return _of_matrices(node, node_input(node), node_input(node, 1))
    if is_call(node, aten.baddbmm.default, aten.baddbmm_.default):
        return _of_baddbmm(node)
    if is_call(node, aten.einsum.default):
        return _of_einsum(node)
    return None


def _of_matrices(
    node: fx.Node, left: fx.Node, right: fx.Node, scale: float = 1.0, added: MaskTerm | None = None
) -> Product | None:
    """matmul's rule: leading dimensions broadcast, aligned at the right."""
    if min(len(shape(left)), len(shape(right))) < 2:
        return None
    rank = len(shape(node))
    batch = [f"batch{i}" for i in range(rank - 2)]

    def lettered(factor: fx.Node, rows: str, columns: str) -> Letters:
        own = shape(factor)
        leading = batch[rank - len(own) :]
        names = ("" if same(n, 1) else name for name, n in zip(leading, own[:-2], strict=True))
        return (*names, rows, columns)

    letters = lettered(left, "m", "d"), lettered(right, "d", "n"), (*batch, "m", "n")
    return Product(node, left, right, letters, scale, added)


def _of_baddbmm(node: fx.Node) -> Product | None:
    beta, alpha = argument(node, 3, "beta", 1), argument(node, 4, "alpha", 1)
    if not isinstance(beta, (int, float)) or not isinstance(alpha, (int, float)):
        return None
    added = MaskTerm("add", node_input(node)) if beta != 0 else None
    if added is not None and beta != 1:
        added = replace(added, views=((aten.mul.Tensor, (float(beta),)),))
    return _of_matrices(node, node_input(node, 1), node_input(node, 2), float(alpha), added)


def _of_einsum(node: fx.Node) -> Product | None:
    operands = argument(node, 1, "tensors")
    letters = letters_of(argument(node, 0, "equation"), [len(shape(operand)) for operand in operands])
    if letters is None:
        return None
    left, right = operands
    sizes = [dict(zip(letters[i], shape(operands[i]), strict=True)) for i in (0, 1)]

    def without_broadcast(side: int) -> Letters:
        """A size of 1 that meets a larger one has no letter."""
        other = sizes[1 - side]
        return tuple(
            "" if same(sizes[side][one], 1) and not same(other.get(one, 1), 1) else one
            for one in letters[side]
        )

    return Product(node, left, right, (without_broadcast(0), without_broadcast(1), letters[2]))
