"""What tensor parallel modules do beside their own computation, as collectives a graph can hold.

Each function makes a module whose weight is a shard of ``group`` compute what the whole one would.
Shards are those of ``torch.chunk``: equal, and the last ones short or empty where sizes don't divide.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from npu_compile.passes.context_parallel.collectives import AllGather

from .group import named


def total(part: Tensor, group: ProcessGroup) -> Tensor:
    """The sum of all ranks' parts."""
    summed = torch.ops._c10d_functional.all_reduce.default(part.contiguous(), "sum", group.group_name)
    result: Tensor = torch.ops._c10d_functional.wait_tensor.default(summed)
    return result


def sum_output(module: nn.Module, group: ProcessGroup) -> None:
    """The output is a part of a sum."""

    def reduce(_: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return total(output, group)

    module.register_forward_hook(reduce)


def sum_row(module: nn.Linear, group: ProcessGroup) -> None:
    """A row-wise Linear: the bias, which every rank has, is added once, to the sum."""
    bias = module.bias
    module.register_parameter("bias", None)

    def reduce(_: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> Tensor:
        whole = total(output, group)
        return whole if bias is None else whole + bias

    module.register_forward_hook(reduce)


def gather_columns(module: nn.Module, width: int, group: ProcessGroup) -> None:
    """A column-wise Linear whose readers want all ``width`` output features."""
    ranks = named(group)
    most = -(-width // ranks.ranks)

    def gather(_: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> Tensor:
        # Short shards are the last ones, so the padding comes last in the gathered rows too.
        padded = F.pad(output, (0, most - output.shape[-1])) if width % ranks.ranks else output
        return ranks.run(AllGather(padded.movedim(-1, 0))).movedim(0, -1)[..., :width]

    module.register_forward_hook(gather)


def sum_lookups(module: nn.Embedding, vocabulary: int, group: ProcessGroup) -> None:
    """An Embedding of ``vocabulary`` rows cut by rows: 0 for tokens of other ranks, and the ranks' sum."""
    look_up, rows = module.forward, module.weight.shape[0]
    first = min(group.rank() * -(-vocabulary // group.size()), vocabulary)
    module.padding_idx = None  # a row of the whole table; it matters to gradients only

    def forward(tokens: Tensor) -> Tensor:
        local = tokens - first
        mine = (local >= 0) & (local < rows)
        found = look_up(torch.where(mine, local, 0))
        return total(torch.where(mine.unsqueeze(-1), found, 0.0), group)

    module.forward = forward  # type: ignore[assignment, method-assign]
