"""Naming groups, agreeing on them, and what happens when a rank is missing, wrong or dead."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from npu_compile.errors import AscendFiaError
from npu_compile.parallel.group import agree, agree_on_tokens, disagreement, named, resolve

from .ranks import results, run_ranks

CPU = torch.device("cpu")
SETTINGS = {"max_length": 64}


def test_without_torch_distributed_the_message_says_what_to_do():
    with pytest.raises(AscendFiaError, match="start with torchrun"):
        resolve(None)


def test_disagreements_are_named():
    same = {"members": [0, 1], "settings": {"interleave": 1}}
    assert disagreement({0: same, 1: same}) is None
    other = {"members": [1, 2], "settings": {"interleave": 1}}
    assert (
        disagreement({0: same, 1: other, 2: other})
        == "ranks 0 and 1 mean different groups: [0, 1] and [1, 2]"
    )
    changed = {"members": [0, 1], "settings": {"interleave": 4}}
    assert (
        disagreement({0: same, 1: changed})
        == "ranks 0 and 1 of one group have different settings: interleave 1 and 4"
    )


def _resolve_all(rank):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("tp", "cp"))
    group = dist.group.WORLD
    assert resolve(None) is group and resolve(group) is group
    members = [dist.get_process_group_ranks(resolve(one)) for one in (mesh["cp"], (mesh, "cp"), (mesh, "tp"))]
    errors = []
    for wrong in (mesh, (mesh, "dp"), "cp"):
        try:
            resolve(wrong)
        except AscendFiaError as error:
            errors.append(str(error))
    agree(resolve(mesh["cp"]), SETTINGS, CPU)
    return members, named(resolve(mesh["cp"])).ranks, errors


def test_meshes_and_their_dims_are_groups():
    for rank, (members, ranks, errors) in enumerate(results(run_ranks(4, _resolve_all))):
        cp, tp = [rank // 2 * 2, rank // 2 * 2 + 1], [rank % 2, rank % 2 + 2]
        assert members == [cp, cp, tp] and ranks == 2
        assert "a mesh of 2 dims; give one of them: mesh['tp'], mesh['cp']" in errors[0]
        assert "not a dim of the mesh, which has ('tp', 'cp')" in errors[1]
        assert "must be a ProcessGroup" in errors[2]


def _mean_different_groups(rank):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("tp", "cp"))
    agree(resolve((mesh, "tp" if rank == 0 else "cp")), SETTINGS, CPU)


def _have_different_settings(rank):
    agree(resolve(None), {"max_length": 64 + rank // 3}, CPU)


def _one_does_not_come(rank):
    if rank != 1:
        agree(resolve(None), SETTINGS, CPU)


def _is_not_in_the_group(rank):
    group = dist.new_group([0])
    if rank == 1:
        resolve(group)


def test_a_rank_outside_the_group_is_told_so():
    _, outside = run_ranks(2, _is_not_in_the_group)
    assert outside.kind == "AscendFiaError" and "rank 1 is not in this group" in outside.text


def test_a_mismatched_mesh_is_an_error_on_every_rank():
    for outcome in run_ranks(4, _mean_different_groups, timeout=20):
        assert outcome.kind == "ContextParallelError" and outcome.seconds < 20
        assert "mean different groups" in outcome.text


def test_different_settings_are_an_error_on_every_rank():
    for outcome in run_ranks(4, _have_different_settings, timeout=20):
        assert outcome.kind == "ContextParallelError" and "different settings" in outcome.text


def test_a_rank_that_does_not_come_is_named_within_the_timeout():
    outcomes = run_ranks(3, _one_does_not_come, timeout=6)
    assert outcomes[1] is None or not hasattr(outcomes[1], "kind")
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.kind == "ContextParallelError" and outcome.seconds < 30
        assert "ranks [1] did not come to context parallel within 0:00:06" in outcome.text


def _different_prompts(rank):
    agree_on_tokens(named(resolve(None)), [torch.arange(5) + (rank == 1)], CPU)


def test_different_prompts_are_an_error_on_every_rank():
    for outcome in run_ranks(2, _different_prompts):
        assert outcome.kind == "ContextParallelError" and "other prompts" in outcome.text


def _one_dies(rank):
    if rank == 1:
        os._exit(1)
    group = named(resolve(None))
    agree_on_tokens(group, [torch.arange(5)], CPU)


def test_a_dead_rank_is_an_error_on_the_others_and_not_a_hang():
    outcomes = run_ranks(3, _one_dies, timeout=10)
    assert outcomes[1] is None
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.kind == "RuntimeError" and outcome.seconds < 15
