"""Attention computations of a run, counted below the compiler's level and without its code.

Every operator that runs is seen. An attention computation is

* a fused operator of torch's own (``_scaled_dot_product_*``, ``_native_multi_head_attention``,
  ``flex_attention``), or
* a softmax whose input comes from a product with a computed value on its right (a parameter there, as in a
  router or a classifier, makes it none; on its left it is a learned query) and whose result goes into
  another such product.

"Comes from" goes through everything but products, convolutions, normalisations, sorting and look-ups.
Attention without a product or without a softmax (linear attention, state space layers, sigmoid scores,
sums of element-wise products) isn't counted. Which of those counted were of use is told by ``uses``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from torch.utils.weak import WeakIdKeyDictionary

from tests.models.ledger.uses import Uses

FUSED = (
    "_scaled_dot_product_",
    "_native_multi_head_attention",
    "_transformer_encoder_layer_fwd",
    "flex_attention",
)
PRODUCTS = ("aten::bmm", "aten::mm", "aten::baddbmm", "aten::addmm", "aten::addbmm")
SOFTMAXES = ("aten::_softmax", "aten::_safe_softmax")
VIEWS = (
    "aten::t",
    "aten::transpose",
    "aten::permute",
    "aten::view",
    "aten::_unsafe_view",
    "aten::reshape",
    "aten::expand",
    "aten::unsqueeze",
    "aten::squeeze",
    "aten::select",
    "aten::slice",
    "aten::detach",
    "aten::clone",
    "aten::_to_copy",
    "aten::alias",
    "aten::as_strided",
    "aten::split",
    "aten::repeat",
)
ENDS = (
    "aten::convolution",
    "aten::native_layer_norm",
    "aten::native_group_norm",
    "aten::_fused_rms_norm",
    "aten::topk",
    "aten::sort",
    "aten::argmax",
    "aten::embedding",
    "aten::native_batch_norm",
)


@dataclass(eq=False)
class Softmax:
    """One softmax over a product's result; ``used``: a product has read it."""

    used: bool = False


@dataclass(frozen=True)
class Origin:
    """What a tensor comes from."""

    weight: bool = False
    score: bool = False
    softmaxes: frozenset[Softmax] = frozenset()


NOTHING = Origin()


@dataclass
class Count:
    """``fused``: by torch's own operators; ``written``: by a product, a softmax and a product."""

    fused: int = 0
    softmaxes: list[Softmax] = field(default_factory=list)

    @property
    def written(self) -> int:
        return sum(softmax.used for softmax in self.softmaxes)

    @property
    def total(self) -> int:
        return self.fused + self.written


class Counting(TorchDispatchMode):
    """Counts the attention computations of what runs inside of it, into ``count``.

    ``uses`` is told of every operator that runs, and of the attention computations that it ends.
    """

    supports_higher_order_operators = True

    def __init__(self, uses: Uses | None = None) -> None:
        super().__init__()
        self.count = Count()
        self.uses = uses
        self._origins: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def _origin(self, value: torch.Tensor) -> Origin:
        if isinstance(value, torch.nn.Parameter):
            return Origin(weight=True)
        return self._origins.get(value, NOTHING)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func.name() if isinstance(func, HigherOrderOperator) else func._schema.name
        read = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, torch.Tensor)]
        origin, computed = self._of_result(name, [self._origin(value) for value in read])
        if self.uses is not None:
            self.uses.ran(func, args, kwargs, result, computed)
        if origin != NOTHING:
            for value in tree_flatten(result)[0]:
                if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
                    self._origins[value] = origin
        return result

    def _of_result(self, name: str, read: list[Origin]) -> tuple[Origin, Iterable[object]]:
        """Where the result comes from, and which attention computations the operator ends."""
        if any(part in name for part in FUSED):
            self.count.fused += 1
            return NOTHING, [object()]
        if name in PRODUCTS:
            return self._product(read[-2:])
        return self._carried(name, read), ()

    def _carried(self, name: str, read: list[Origin]) -> Origin:
        if name in SOFTMAXES:
            if not read[0].score:
                return NOTHING
            self.count.softmaxes.append(Softmax())
            return Origin(softmaxes=frozenset(self.count.softmaxes[-1:]))
        if name in ENDS:
            return NOTHING
        softmaxes = frozenset().union(*(origin.softmaxes for origin in read))
        weight = name in VIEWS and bool(read) and read[0].weight
        return Origin(weight, any(origin.score for origin in read), softmaxes)

    def _product(self, factors: list[Origin]) -> tuple[Origin, Iterable[object]]:
        if factors[-1].weight:
            return NOTHING, ()
        probabilities = {softmax for factor in factors for softmax in factor.softmaxes}
        for softmax in probabilities:
            softmax.used = True
        return NOTHING if probabilities else Origin(score=True), probabilities
