"""``context_parallel``: from a model and a group to a model over the group's ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from npu_compile.errors import AscendFiaError
from npu_compile.options import parse

from .fingerprint import fingerprint
from .group import GroupLike, agree, resolve
from .layout.interleave import Interleave
from .model import ContextParallelModel
from .sharded_model import is_sharded, plain_model
from .supported import unsupported


def context_parallel(
    model: nn.Module,
    group: GroupLike = None,
    *,
    max_length: int,
    interleave: int = 1,
    options: Mapping[str, Any] | None = None,
) -> ContextParallelModel:
    """Run ``model`` with its prompts, and then its KV cache, split over the ranks of ``group``.

    Every rank of the job calls this, and then the same methods with the same prompts.

    Args:
        model: a decoder-only Hugging Face model with sdpa attention, the same weights on every rank of
            ``group``. One that transformers has sharded by its ``tp_plan`` is read as
            :func:`~npu_compile.parallel.sharded_model.plain_model` has it.
        group: a process group, a one-dim mesh such as ``mesh["cp"]``, or None for all ranks.
        max_length: the most tokens a sequence can have.
        interleave: cached tokens that stand on a rank in a row.
        options: further options of the ``ascend_fia`` backend.

    Raises:
        AscendFiaError: an argument is wrong, or the model can't run context parallel (and why).
        ContextParallelError: the ranks don't agree, or one didn't come within the group's timeout.
    """
    if isinstance(max_length, bool) or not isinstance(max_length, int) or max_length < 1:
        raise AscendFiaError("max_length", max_length, "must be an int of at least 1")
    parse(options=options)
    process_group = resolve(group)
    layout = Interleave(process_group.size(), interleave)
    if is_sharded(model):
        model = plain_model(model)
    reason = unsupported(model, max_length, layout)
    if reason:
        raise AscendFiaError("model", type(model).__name__, f"can't run context parallel: {reason}")
    device = next(model.parameters()).device
    size = f"{type(model).__name__} with {sum(p.numel() for p in model.parameters())} parameters"
    settings = {"max_length": max_length, "interleave": interleave, "model": size}
    settings["options"] = repr(sorted((options or {}).items()))
    agree(process_group, {**settings, "weights": fingerprint(model)}, device)
    return ContextParallelModel(model, process_group, layout, max_length, options or {})
