"""The three programs of a context parallel model, compiled: split prefill, whole prefill, decode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from transformers.cache_utils import Cache

from npu_compile.passes.context_parallel.config import StepInputs

from ..cache_argument import cache_argument
from .cache import rows_of_kind
from .kinds import LayerKinds, Masks
from .shards import Shard


class CompiledSteps:
    """``model.forward`` with sharded inputs, under the ``ascend_fia`` backend.

    ``fullgraph`` is set because a part that dynamo leaves to eager would attend to this rank's
    tokens only.
    """

    def __init__(
        self, model: nn.Module, group: ProcessGroup, kinds: LayerKinds, options: Mapping[str, Any]
    ) -> None:
        self._model = model
        self._kinds = kinds
        self._device = next(model.parameters()).device
        self._cache_name = cache_argument(model.forward)
        self.inputs = StepInputs()
        prefill = {"mode": "prefill", "group": group, "steps": self.inputs}
        decode = {"mode": "decode", "group": group}
        self._split = self._compile(self._prefill, {**options, "context_parallel": prefill})
        self._whole = self._compile(self._prefill, dict(options))
        self._decode = self._compile(self._decode_step, {**options, "context_parallel": decode})

    @staticmethod
    def _compile(function: Any, options: dict[str, Any]) -> Any:
        return torch.compile(function, backend="ascend_fia", fullgraph=True, options=options or None)

    def prefill(self, shard: Shard, cache: Cache, all_logits: bool) -> Tensor:
        """Logits (1, T or B, V) of this rank's tokens, or of ``shard.last`` only. Load ``inputs`` first."""
        return self._prefill_with(self._split, shard, cache, all_logits)

    def prefill_whole(self, shard: Shard, cache: Cache) -> Tensor:
        """Logits (B, L, V) of a padded batch that every rank computes by itself."""
        return self._prefill_with(self._whole, shard, cache, True)

    def decode(
        self, tokens: Tensor, positions: Tensor, local_lengths: Sequence[Tensor], cache: Cache
    ) -> Tensor:
        """Logits (B, V); ``tokens`` and ``positions`` are (B, 1), and of each kind of layer lengths (B,)."""
        arguments = [tensor.to(self._device) for tensor in (tokens, positions, *local_lengths)]
        _mark_dynamic(*((tensor, 0) for tensor in arguments))
        logits: Tensor = self._decode(cache, *arguments)
        return logits[:, -1]

    def _prefill_with(self, compiled: Any, shard: Shard, cache: Cache, all_logits: bool) -> Tensor:
        input_ids, position_ids = shard.input_ids.to(self._device), shard.position_ids.to(self._device)
        keep = torch.arange(input_ids.shape[1]) if all_logits else shard.last
        keep = keep.to(self._device)
        _mark_dynamic((input_ids, 1), (position_ids, 1), (keep, 0))
        logits: Tensor = compiled(input_ids, position_ids, keep, cache)
        return logits

    def _prefill(self, input_ids: Tensor, position_ids: Tensor, keep: Tensor, cache: Cache) -> Tensor:
        masks = self._kinds.prefill_masks(input_ids.shape[1], input_ids.device)
        return self._forward(input_ids, position_ids, masks, cache, keep)

    def _decode_step(self, cache: Cache, tokens: Tensor, positions: Tensor, *local_lengths: Tensor) -> Tensor:
        # The masks say which rows hold keys; the lowering makes lengths of them.
        def held(kind: int) -> Tensor:
            rows = torch.arange(rows_of_kind(cache, kind), device=tokens.device)
            return (rows < local_lengths[kind][:, None])[:, None, None]

        return self._forward(tokens, positions, self._kinds.masks(held), cache, 0)

    def _forward(
        self, input_ids: Tensor, position_ids: Tensor, mask: Masks, cache: Cache, keep: Any
    ) -> Tensor:
        output = self._model(
            input_ids=input_ids,
            position_ids=position_ids,
            attention_mask=mask,
            use_cache=True,
            logits_to_keep=keep,
            **{self._cache_name: cache},
        )
        logits: Tensor = output.logits
        return logits


def _mark_dynamic(*dims: tuple[Tensor, int]) -> None:
    """Sizes that differ from step to step: compile for all of them at once."""
    for tensor, dim in dims:
        torch._dynamo.maybe_mark_dynamic(tensor, dim)
