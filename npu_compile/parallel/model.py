"""A Hugging Face causal LM over the ranks of a group: its batch, its cache and its steps."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers.cache_utils import Cache

from npu_compile.errors import AscendFiaError
from npu_compile.passes.context_parallel.collectives import AllGather

from .cache import CacheStep, rows_for, sharded_cache, sharded_layers
from .compiled import CompiledSteps
from .exchange import exchange_fresh, keep_own, plan_exchange, store_own
from .group import agree_on_tokens, named
from .kinds import layer_kinds
from .layout.interleave import Interleave
from .layout.zigzag import Zigzag, too_short
from .metadata import decode_metadata, prefill_metadata
from .shards import Prompts, padded_batch, shard_of, token_lists
from .supported import text_config

log = logging.getLogger(__name__)


class ContextParallelModel:
    """What :func:`~npu_compile.parallel.context_parallel` returns: one batch at a time; ``reset`` ends it.

    Attributes:
        lengths: (B,) int64, tokens of each sequence so far.
        fallback: why the last prefill was computed whole on every rank; None where it was split.
    """

    def __init__(
        self,
        model: nn.Module,
        group: dist.ProcessGroup,
        layout: Interleave,
        max_length: int,
        options: Mapping[str, Any],
    ) -> None:
        self._device = next(model.parameters()).device
        self._kinds = layer_kinds(text_config(model), layout, max_length)
        self._steps = CompiledSteps(model.eval(), group, self._kinds, options)
        self._process_group = group
        self._group = named(group)
        self._rank = group.rank()
        self._layout = layout
        self._max_length = max_length
        self.reset()

    def reset(self) -> None:
        """Forget the batch and release its cache."""
        self.lengths = torch.zeros(0, dtype=torch.int64)
        self.fallback: str | None = None
        self._cache: Cache | None = None

    @torch.no_grad()
    def prefill(self, prompts: Prompts) -> Tensor:
        """Start sequences, or continue the ones there are; (B, V) logits of each one's last token.

        Raises:
            AscendFiaError: a sequence would be longer than ``max_length``, or the batch has another size.
            ContextParallelError: the ranks were given different prompts.
        """
        sequences = token_lists(prompts)
        cache, prefix = self._begin(sequences)
        if self.fallback:
            logits = self._prefill_whole(sequences, cache)
            last = torch.stack([row[-1] for row in logits])
        else:
            last = self._prefill_split(sequences, prefix, cache, all_logits=False)
            # The zigzag ends every sequence on rank 0.
            dist.broadcast(last, group=self._process_group, group_src=0)
        self.lengths = self.lengths + torch.tensor([tokens.numel() for tokens in sequences])
        return last

    @torch.no_grad()
    def prefill_logits(self, prompts: Prompts) -> list[Tensor]:
        """Like :meth:`prefill`, with the (L, V) logits of all tokens of each sequence."""
        sequences = token_lists(prompts)
        cache, prefix = self._begin(sequences)
        if self.fallback:
            logits = self._prefill_whole(sequences, cache)
        else:
            logits = self._restore(self._prefill_split(sequences, prefix, cache, all_logits=True), sequences)
        self.lengths = self.lengths + torch.tensor([tokens.numel() for tokens in sequences])
        return logits

    @torch.no_grad()
    def decode(self, tokens: Tensor | Sequence[int]) -> Tensor:
        """Append one token to each sequence: (B,) int64, as rank 0 of the group has them.

        Returns (B, V) logits. Raises AscendFiaError where a sequence is full.
        """
        tokens = torch.as_tensor(tokens)
        if self._cache is None or tokens.shape != self.lengths.shape:
            rule = f"needs one token for each of the {len(self.lengths)} sequences that were prefilled"
            raise AscendFiaError("tokens", tokens, rule)
        self._check_room("tokens", torch.ones_like(self.lengths))
        tokens = self._of_first_rank(tokens)
        steps = [
            decode_metadata(self.lengths, self._rank, layout, rows)
            for layout, rows in zip(self._kinds.layouts, self._rows, strict=True)
        ]
        self._step.to_decode(*(step.slots.to(self._device) for step in steps))
        positions, local_lengths = steps[0].positions.unsqueeze(1), [step.local_lengths for step in steps]
        logits = self._steps.decode(tokens.unsqueeze(1), positions, local_lengths, self._cache)
        self.lengths = self.lengths + 1
        return logits

    def generate(
        self, prompts: Prompts, max_new_tokens: int, eos_token_id: int | Sequence[int] = ()
    ) -> list[list[int]]:
        """The most probable continuation of each sequence, the same on every rank.

        Each has ``max_new_tokens`` tokens, or ends with the first of ``eos_token_id``. Raises
        AscendFiaError before anything is computed where that may be more than ``max_length``.
        """
        if max_new_tokens < 1:
            raise AscendFiaError("max_new_tokens", max_new_tokens, "must be at least 1")
        self.reset()
        sequences = token_lists(prompts)
        # The last new token is not fed back.
        self._check_room("prompts", torch.tensor([len(one) + max_new_tokens - 1 for one in sequences]))
        ends = torch.tensor([eos_token_id] if isinstance(eos_token_id, int) else list(eos_token_id))
        tokens = [self._of_first_rank(self.prefill(sequences).argmax(-1))]
        ended = torch.isin(tokens[-1].cpu(), ends)
        while len(tokens) < max_new_tokens and not bool(ended.all()):
            tokens.append(self._of_first_rank(self.decode(tokens[-1]).argmax(-1)))
            ended |= torch.isin(tokens[-1].cpu(), ends)
        return [_up_to(ends.tolist(), row) for row in torch.stack(tokens, 1).tolist()]

    def cache_bytes(self) -> int:
        """Bytes of K/V that this rank keeps."""
        layers = sharded_layers(self._cache) if self._cache is not None else []
        tensors = [tensor for layer in layers for tensor in (layer.keys, layer.values)]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    @property
    def kept_tokens(self) -> int:
        """Tokens of the batch whose keys are on this rank, in layers without a window."""
        return int(self._layout.local_lengths(self.lengths, self._rank).sum())

    @property
    def _rows(self) -> list[int]:
        """A rank's cache rows for a sequence in each kind of layer."""
        return [rows_for(layout.capacity(self._max_length)) for layout in self._kinds.layouts]

    def _begin(self, sequences: list[Tensor]) -> tuple[Cache, list[int]]:
        """The cache and its lengths before the new tokens, which were found to fit."""
        new = torch.tensor([tokens.numel() for tokens in sequences])
        if self._cache is None:
            self.lengths = torch.zeros_like(new)
        elif len(self.lengths) != len(new):
            rule = f"the batch has {len(self.lengths)} sequences; reset() starts another"
            raise AscendFiaError("prompts", new.tolist(), rule)
        self._check_room("prompts", new)
        agree_on_tokens(self._group, sequences, self._device)
        self.fallback = too_short(new.tolist(), self._group.ranks)
        if self.fallback and bool(self.lengths.any()):
            raise AscendFiaError("prompts", new.tolist(), f"can't continue a batch: {self.fallback}")
        if self._kinds.windowed and bool(self.lengths.any()):
            rule = "can't continue a batch: layers with a sliding window keep no more keys than that"
            raise AscendFiaError("prompts", new.tolist(), rule)
        if self._cache is None:
            self._step = CacheStep.for_prefill(self._device)
            self._cache = sharded_cache(self._kinds.of_layer, self._rows, self._step, len(new))
        return self._cache, self.lengths.tolist()

    def _prefill_split(
        self, sequences: list[Tensor], prefix: list[int], cache: Cache, all_logits: bool
    ) -> Tensor:
        """This rank's logits; every rank's new K/V are in the cache afterwards."""
        lengths = [tokens.numel() for tokens in sequences]
        self._steps.inputs.load(prefill_metadata(lengths, self._rank, self._layout, prefix), self._device)
        cached = keep_own(prefix, self._rank, self._layout)
        self._step.to_prefill(torch.stack([cached.sequences, cached.rows]).to(self._device))
        shard = shard_of(sequences, prefix, self._rank, self._group.ranks)
        logits = self._steps.prefill(shard, cache, all_logits)[0]
        plans = [plan_exchange(lengths, prefix, self._rank, layout) for layout in self._kinds.layouts]
        for layer in sharded_layers(cache):
            exchange_fresh(layer, plans[layer.kind], self._group)
        return logits

    def _prefill_whole(self, sequences: list[Tensor], cache: Cache) -> list[Tensor]:
        """All logits, computed on every rank; each keeps its own K/V rows."""
        log.warning("%s", self.fallback)
        lengths = [tokens.numel() for tokens in sequences]
        logits = self._steps.prefill_whole(padded_batch(sequences), cache)
        own = [keep_own(lengths, self._rank, layout) for layout in self._kinds.layouts]
        for layer in sharded_layers(cache):
            store_own(layer, own[layer.kind])
        return [row[:length] for row, length in zip(logits, lengths, strict=True)]

    def _restore(self, logits: Tensor, sequences: list[Tensor]) -> list[Tensor]:
        """All ranks' logits (T, V), one tensor a sequence."""
        layout = Zigzag(tuple(tokens.numel() for tokens in sequences), self._group.ranks)
        rows = max(layout.tokens_per_rank)
        padded = torch.cat([logits, logits.new_zeros(rows - logits.shape[0], logits.shape[1])])
        gathered = self._group.run(AllGather(padded))
        return list(gathered[layout.restore_index(rows).to(self._device)].split(layout.lengths))

    def _of_first_rank(self, tokens: Tensor) -> Tensor:
        """The ``tokens`` that rank 0 of the group has, so that ranks take the same steps."""
        tokens = tokens.to(self._device, torch.int64, copy=True)
        dist.broadcast(tokens, group=self._process_group, group_src=0)
        return tokens

    def _check_room(self, argument: str, new: Tensor) -> None:
        lengths = self.lengths if len(self.lengths) else torch.zeros_like(new)
        if bool((lengths + new > self._max_length).any()):
            rule = f"after {lengths.tolist()} tokens that is more than max_length={self._max_length}"
            raise AscendFiaError(argument, new.tolist(), rule)


def _up_to(ends: list[int], tokens: list[int]) -> list[int]:
    """``tokens`` up to the first of ``ends``, it included."""
    last = next((place for place, token in enumerate(tokens) if token in ends), len(tokens))
    return tokens[: last + 1]
