"""After a prefill: new K/V rows from where they were computed to where they are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from npu_compile.passes.context_parallel.collectives import Group

from .cache import ShardedLayer
from .layout.interleave import Interleave
from .layout.zigzag import Zigzag


@dataclass(frozen=True)
class Exchange:
    """One rank's part of the all-to-all; all indices int64.

    Args:
        send: local rows in order of the rank they go to.
        send_sizes: how many go to each rank.
        receive_sizes: how many come from each rank.
        sequences: the sequence of each received row.
        rows: the cache row of each received row.
    """

    send: Tensor
    send_sizes: list[int]
    receive_sizes: list[int]
    sequences: Tensor
    rows: Tensor


def plan_exchange(lengths: Sequence[int], prefix: Sequence[int], rank: int, cache: Interleave) -> Exchange:
    """From the zigzag of ``lengths`` tokens after ``prefix`` cached ones to the interleaved cache."""
    layout = Zigzag(tuple(lengths), cache.ranks)
    sequences, places = _packed(lengths)
    before = torch.tensor(list(prefix))
    positions = places + before[sequences]
    kept = cache.kept(positions, (before + torch.tensor(list(lengths)))[sequences])
    keeper = torch.where(kept, cache.owner(positions), cache.ranks)  # R: nobody
    computed = [layout.token_index(sender) for sender in range(cache.ranks)]
    received = torch.cat([tokens[keeper[tokens] == rank] for tokens in computed])
    to = keeper[computed[rank]]
    return Exchange(
        send=torch.argsort(to, stable=True)[: int((to < cache.ranks).sum())],
        send_sizes=torch.bincount(to, minlength=cache.ranks)[: cache.ranks].tolist(),
        receive_sizes=[int((keeper[tokens] == rank).sum()) for tokens in computed],
        sequences=sequences[received],
        rows=cache.local_index(positions[received]),
    )


@dataclass(frozen=True)
class Own:
    """Tokens that a rank keeps, of tokens that lie in a batch: (M,) int64 each."""

    sequences: Tensor
    positions: Tensor
    rows: Tensor


def keep_own(lengths: Sequence[int], rank: int, cache: Interleave) -> Own:
    """The tokens of sequences of ``lengths`` that ``rank`` keeps, sequence after sequence."""
    sequences, positions = _packed(lengths)
    mine = (cache.owner(positions) == rank) & cache.kept(positions, torch.tensor(list(lengths))[sequences])
    return Own(sequences[mine], positions[mine], cache.local_index(positions[mine]))


def exchange_fresh(layer: ShardedLayer, plan: Exchange, group: Group) -> None:
    """Send a layer's new K/V, (1, N, T, D), to their keepers and store what comes."""
    keys, values = (states[0].transpose(0, 1) for states in layer.take_fresh())
    rows = torch.cat([keys.flatten(1), values.flatten(1)], 1)
    received = torch.ops._c10d_functional.all_to_all_single.default(
        rows.index_select(0, plan.send.to(rows.device)), plan.receive_sizes, plan.send_sizes, group.name
    )
    received = torch.ops._c10d_functional.wait_tensor.default(received)
    new_keys, new_values = received.split([keys[0].numel(), values[0].numel()], 1)
    layer.store(
        new_keys.unflatten(1, keys.shape[1:]),
        new_values.unflatten(1, values.shape[1:]),
        plan.sequences.to(rows.device),
        plan.rows.to(rows.device),
    )


def store_own(layer: ShardedLayer, own: Own) -> None:
    """Store this rank's rows of a layer's new K/V, (B, N, L, D), that every rank has."""
    fresh = layer.take_fresh()
    sequences, positions, rows = (x.to(fresh[0].device) for x in (own.sequences, own.positions, own.rows))
    keys, values = (states[sequences, :, positions] for states in fresh)
    layer.store(keys, values, sequences, rows)


def _packed(lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Sequence, and place in it, of each token of a packed batch."""
    sequences = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(list(lengths)))
    return sequences, torch.cat([torch.arange(length) for length in lengths])
