"""Tensor parallel by a Hugging Face model's own plan, on one dim of a mesh.

For models that every rank holds whole. What ``from_pretrained`` has sharded by the same plan is taken
over by :mod:`~npu_compile.parallel.sharded_model`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn
from torch.distributed import ProcessGroup

from npu_compile.errors import AscendFiaError

from .group import GroupLike, resolve
from .tensor_hooks import gather_columns, sum_row
from .tp_plan import COLUMN, GATHERED, LOOKED_UP, ROW, pattern_of, plan_of

REPLICATED = (LOOKED_UP, "replicated_with_grad_allreduce", "sequence_parallel")
"""Rules without which the result is the same."""


def tensor_parallel(model: nn.Module, group: GroupLike) -> dict[str, str]:
    """Shard ``model`` in place over the ranks of ``group``, by its ``tp_plan``; returns the rules applied.

    Attention and dense MLPs are sharded; a block with another rule (mixture of experts, say) stays
    whole on every rank. Every rank must hold the whole model before.

    Raises AscendFiaError where the model has no plan, or a sharded size doesn't divide.
    """
    plan = plan_of(model)
    if not plan:
        raise AscendFiaError("model", type(model).__name__, "has no tp_plan")
    process_group = resolve(group)
    known = {*_RULES, *REPLICATED}
    whole = {_block(pattern) for pattern, rule in plan.items() if rule not in known}
    applied: dict[str, str] = {}
    for name, module in list(model.named_modules()):
        pattern = pattern_of(name)
        rule = plan.get(pattern, "")
        if rule in _RULES and _block(pattern) not in whole:
            if not isinstance(module, nn.Linear):
                raise AscendFiaError(name, type(module).__name__, f"tp_plan's rule {rule!r} is for Linear")
            _RULES[rule](name, module, process_group)
            applied[name] = rule
    return applied


def _block(pattern: str) -> str:
    """The part of a layer that a rule belongs to: its rules only work together."""
    layer, star, rest = pattern.partition(".*.")
    return layer + star + rest.partition(".")[0] if star else pattern


def _column(name: str, module: nn.Linear, group: ProcessGroup) -> None:
    module.weight = _part(f"{name}.weight", module.weight, 0, group)
    if module.bias is not None:
        module.bias = _part(f"{name}.bias", module.bias, 0, group)


def _gathered_column(name: str, module: nn.Linear, group: ProcessGroup) -> None:
    if module.out_features % group.size():
        return  # whole on every rank: the result is the same
    _column(name, module, group)
    gather_columns(module, module.out_features, group)


def _row(name: str, module: nn.Linear, group: ProcessGroup) -> None:
    module.weight = _part(f"{name}.weight", module.weight, 1, group)
    sum_row(module, group)


def _part(name: str, whole: Tensor, dim: int, group: ProcessGroup) -> nn.Parameter:
    size = whole.shape[dim]
    if size % group.size():
        raise AscendFiaError(name, tuple(whole.shape), f"{size} is not a multiple of {group.size()} ranks")
    part = whole.detach().chunk(group.size(), dim)[group.rank()]
    return nn.Parameter(part.clone(), requires_grad=whole.requires_grad)


_RULES: Mapping[str, Callable[[str, nn.Linear, ProcessGroup], None]] = {
    COLUMN: _column,
    ROW: _row,
    **dict.fromkeys(GATHERED, _gathered_column),
}
