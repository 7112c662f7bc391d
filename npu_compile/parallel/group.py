"""Groups: naming the one to use, and finding out at the start whether all ranks mean the same.

Ranks that disagree on their group would otherwise wait for each other inside a collective until its
timeout, some of them in a group whose members never come.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from npu_compile.errors import AscendFiaError
from npu_compile.passes.context_parallel.collectives import AllGather, Group
from npu_compile.passes.context_parallel.errors import ContextParallelError

GroupLike = ProcessGroup | DeviceMesh | tuple[DeviceMesh, str] | None
"""A process group; a mesh of one dim; a mesh and the name of one of its dims; None: all ranks."""

_agreements = itertools.count()
"""Numbers the agreements of this process: ranks that run the same program count alike."""


def resolve(group: GroupLike) -> ProcessGroup:
    """The process group that ``group`` names, with this rank in it.

    Raises AscendFiaError where there is no such group, and where torch.distributed isn't started.
    """
    if not dist.is_available() or not dist.is_initialized():
        rule = "torch.distributed is not initialised: start with torchrun and call init_process_group"
        raise AscendFiaError("group", group, rule)
    if group is None:
        return dist.group.WORLD  # type: ignore[return-value]
    if isinstance(group, tuple):
        mesh, name = group
        if not isinstance(mesh, DeviceMesh) or name not in (mesh.mesh_dim_names or ()):
            rule = f"not a dim of the mesh, which has {getattr(mesh, 'mesh_dim_names', None)}"
            raise AscendFiaError("group", name, rule)
        return mesh[name].get_group()
    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            names = ", ".join(f"mesh[{name!r}]" for name in group.mesh_dim_names or ())
            raise AscendFiaError("group", group, f"a mesh of {group.ndim} dims; give one of them: {names}")
        return group.get_group()
    if group == dist.GroupMember.NON_GROUP_MEMBER:
        raise AscendFiaError("group", group, f"rank {dist.get_rank()} is not in this group")
    if isinstance(group, ProcessGroup):
        return group
    raise AscendFiaError("group", group, "must be a ProcessGroup, a DeviceMesh or (DeviceMesh, dim name)")


def named(group: ProcessGroup) -> Group:
    """``group`` as the graphs refer to it."""
    return Group(group.group_name, group.size())


def timeout_of(group: ProcessGroup, device: torch.device) -> timedelta:
    """How long ranks wait for each other: the group's timeout or the whole job's, the shorter."""
    both = (group, dist.group.WORLD)
    return min(one._get_backend(device).options._timeout for one in both if one is not None)


def agree(group: ProcessGroup, settings: Mapping[str, Any], device: torch.device) -> None:
    """Check with every rank of the job that the groups are the same to their members, and the settings.

    Every rank of the job must come here, whatever group it is in.

    Raises:
        ContextParallelError: on every rank, within the timeout: a rank that didn't come, a group
            that its members see differently, or members with different settings.
    """
    mine = {"members": dist.get_process_group_ranks(group), "settings": dict(settings)}
    limit = timeout_of(group, device)
    board = _Board(dist.distributed_c10d._get_default_store(), limit)
    board.write("is", json.dumps(mine))
    told = {rank: json.loads(text) for rank, text in board.read("is").items()}
    missing = [rank for rank in range(dist.get_world_size()) if rank not in told]
    if missing:
        raise ContextParallelError(f"ranks {missing} did not come to context parallel within {limit}")
    # The store may be in a rank that leaves with the error: first let everyone read.
    board.write("has read", "")
    board.read("has read")
    problem = disagreement(told)
    if problem:
        raise ContextParallelError(problem)


class _Board:
    """One agreement's notes in the job's store, one a rank and topic."""

    def __init__(self, store: dist.Store, limit: timedelta) -> None:
        self._store = store
        self._prefix = f"npu_compile/context_parallel/{next(_agreements)}"
        self._deadline = time.monotonic() + limit.total_seconds()
        self._mine: dict[str, str] = {}

    def write(self, topic: str, text: str) -> None:
        self._mine[topic] = text
        self._store.set(f"{self._prefix}/{topic}/{dist.get_rank()}", text)

    def read(self, topic: str) -> dict[int, str]:
        """The notes by rank, without those that didn't come in time."""
        # Its own note a rank needs no store for: the rank that holds it may have left at the deadline.
        notes = {dist.get_rank(): self._mine[topic]} if topic in self._mine else {}
        for rank in range(dist.get_world_size()):
            if rank in notes:
                continue
            key = f"{self._prefix}/{topic}/{rank}"
            left = timedelta(seconds=max(self._deadline - time.monotonic(), 1))
            # DistStoreError on a timeout, DistNetworkError where the store's rank is gone.
            with contextlib.suppress(dist.DistError):
                self._store.wait([key], left)
                notes[rank] = self._store.get(key).decode()
        return notes


def agree_on_tokens(group: Group, sequences: Sequence[Tensor], device: torch.device) -> None:
    """Check that all members were given the same prompts; others would give a wrong result.

    Raises ContextParallelError, on every rank that differs from another.
    """
    told = "|".join(",".join(map(str, tokens.tolist())) for tokens in sequences)
    digest = hashlib.sha256(told.encode()).digest()[:16]
    mine = torch.frombuffer(bytearray(digest), dtype=torch.uint8).to(device)
    for rank, theirs in enumerate(group.run(AllGather(mine)).view(group.ranks, -1)):
        if not torch.equal(theirs, mine):
            raise ContextParallelError(f"rank {rank} of the group was given other prompts than this one")


def disagreement(told: Mapping[int, Any]) -> str | None:
    """What the first two ranks that don't fit together disagree on."""
    for rank, mine in told.items():
        for other in mine["members"]:
            if told[other]["members"] != mine["members"]:
                members = f"{mine['members']} and {told[other]['members']}"
                return f"ranks {rank} and {other} mean different groups: {members}"
            differ = _differences(mine["settings"], told[other]["settings"])
            if differ:
                return f"ranks {rank} and {other} of one group have different settings: {', '.join(differ)}"
    return None


def _differences(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    return [f"{name} {mine[name]!r} and {theirs[name]!r}" for name in mine if mine[name] != theirs[name]]
