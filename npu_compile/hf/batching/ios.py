"""The inputs of a step: transformers' own, and where the step writes and reads the cache."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from transformers.generation.continuous_batching.input_outputs import ContinuousBatchingIOs
from transformers.generation.continuous_batching.requests import FutureRequestState

from .allocators import RingAllocator
from .cache import FiaPagedCache
from .step import KEYWORD, Gather, Part, Step

NOWHERE = -1
"""The slot of a token that isn't written."""

Request = tuple[str, int, int]
"""Id, tokens in the cache before the step, tokens of the step."""


class FiaBatchIOs(ContinuousBatchingIOs):
    """Adds a :class:`Step` to the model's arguments.

    Steps of one token per request are padded as the engine asks, so that they can be captured; padding rows
    have no keys and write nothing. Other steps come as they are.
    """

    cache: FiaPagedCache

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # A step runs on the stream that its inputs are written on: on one of its own, as the engine would
        # have it, nothing made it wait for them.
        self.compute_stream = None

    def prepare_batch_tensors(
        self,
        requests_in_batch: list[FutureRequestState],
        logits_processors: Any,
        use_decode_fast_path: bool,
        num_q_tokens: int,
        max_kv_read: int,
        use_padding: bool,
    ) -> None:
        if not use_decode_fast_path:
            num_q_tokens, use_padding = sum(f.query_length for f in requests_in_batch), False
        super().prepare_batch_tensors(
            requests_in_batch, logits_processors, use_decode_fast_path, num_q_tokens, max_kv_read, use_padding
        )
        requests = [
            (f.state.request_id, f.state.position_offset - f.query_length, f.query_length)
            for f in requests_in_batch
        ]
        rows = self._get_num_sequences(use_padding)
        self._step = (
            self._decode_step(requests, rows) if self.use_block_table else self._ragged_step(requests)
        )

    def get_model_kwargs(self, use_padding: bool = False) -> Any:
        kwargs: Any = super().get_model_kwargs(use_padding and self.use_block_table)
        kwargs[KEYWORD] = self._step
        return kwargs

    def _decode_step(self, requests: list[Request], rows: int) -> Step:
        """One token per request, the block table where it always is, ``rows`` rows with the padding."""
        padding = rows - len(requests)
        parts = []
        for index, allocator in enumerate(self.cache.cache_allocators.values()):
            slots = [slot for r in requests for slot in allocator.get_write_indices(*r)]
            lengths = [allocator.get_seqlen_k(past, new) for _, past, new in requests]
            # Unused columns and rows name block 0, which exists: what isn't read can't be wrong either.
            table = self.block_table[index, :rows].clamp_(min=0)
            parts.append(
                Part(
                    slots=self._on_device(slots + [NOWHERE] * padding),
                    kv_lengths=torch.tensor(lengths + [0] * padding),
                    block_table=table,
                )
            )
        return Step(torch.arange(1, rows + 1), True, tuple(parts))

    def _ragged_step(self, requests: list[Request]) -> Step:
        queries = [new for _, _, new in requests]
        query_lengths = torch.tensor(list(accumulate(queries)))
        fresh = all(past == 0 for _, past, _ in requests)
        parts = tuple(
            self._ragged_part(allocator, requests, query_lengths, fresh)
            for allocator in self.cache.cache_allocators.values()
        )
        return Step(query_lengths, max(queries) == 1, parts)

    def _ragged_part(
        self, allocator: Any, requests: list[Request], query_lengths: Tensor, fresh: bool
    ) -> Part:
        slots, written = self._writes(allocator, requests)
        if fresh:
            return Part(slots, query_lengths, written)
        lengths = [allocator.get_seqlen_k(past, new) for _, past, new in requests]
        if self.cache.reads_table(allocator, max(new for _, _, new in requests)):
            table = self._table(allocator, requests)
            return Part(slots, torch.tensor(lengths), written, block_table=table)
        read = self._on_device([row for r in requests for row in allocator.get_read_indices(*r)])
        ends = list(accumulate(lengths))
        own = None
        if isinstance(allocator, RingAllocator):
            steps = zip(ends, requests, strict=True)
            own = self._on_device([row for end, (_, _, new) in steps for row in range(end - new, end)])
        return Part(slots, torch.tensor(ends), written, gather=Gather(read, own))

    def _writes(self, allocator: Any, requests: list[Request]) -> tuple[Tensor, Tensor | None]:
        """The slots to write, and the tokens that go there where some go nowhere: a ring's older ones."""
        slots = [slot for r in requests for slot in allocator.get_write_indices(*r)]
        kept = [row for row, slot in enumerate(slots) if slot != allocator.write_trash_index]
        if len(kept) == len(slots):
            return self._on_device(slots), None
        return self._on_device([slots[row] for row in kept]), self._on_device(kept)

    def _table(self, allocator: Any, requests: list[Request]) -> Tensor:
        tables = [allocator.block_table[name] for name, _, _ in requests]
        columns = max(map(len, tables))
        stride = allocator.block_physical_stride // allocator.tokens_per_page
        padded = [[block * stride for block in t] + [0] * (columns - len(t)) for t in tables]
        return torch.tensor(padded, dtype=torch.int32, device=self.device)

    def _on_device(self, rows: list[int]) -> Tensor:
        return torch.tensor(rows, dtype=torch.int64, device=self.device)
