"""A model that transformers has sharded, as a plain one that holds this rank's shards.

``from_pretrained`` with a ``tp_plan`` keeps parameters as DTensors, puts its own code around the forward
of modules, and with replicas wraps them for data parallel training. None of that can be traced into
one graph. The plain model is built from the same config, reads the same memory, and does what the plan
asks of its modules with the collectives of :mod:`~npu_compile.parallel.tensor_hooks`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate

from npu_compile.errors import AscendFiaError

from .tensor_hooks import gather_columns, sum_lookups, sum_output, sum_row
from .tp_plan import COLUMN, GATHERED, LOOKED_UP, ROW, pattern_of, plan_of

TENSOR_DIM = "tp"
"""What transformers calls the mesh dim of tensor parallel."""

SUMMED = ("moe_tp_experts", "all_reduce")
CUT_ALONG: Mapping[str, int] = {COLUMN: 0, ROW: 1, LOOKED_UP: 0, **dict.fromkeys(GATHERED, 0)}
"""The dim of a weight that each rule splits."""

LOCAL = ("packed_colwise", "replicated_with_grad_allreduce", "mla_kv_a_proj", "local_params", "replicate")
"""Rules whose modules compute with what they have, without gradients."""


def is_sharded(model: nn.Module) -> bool:
    """Whether parameters of ``model`` are DTensors."""
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def plain_model(model: nn.Module) -> nn.Module:
    """A model of ``model``'s class and config with its shards as ordinary parameters, for inference.

    ``model`` stays as it is; hooks that were added to it are not carried over. Ranks that hold the same
    shard (``dp_replicate`` of transformers' mesh) can be a context parallel group.

    Raises:
        AscendFiaError: a parameter is split in another way than by tensor parallel, a rule of the plan
            is not known here, or the model has other parameters than its config gives it.
    """
    fresh = _unloaded(model)
    if _parameter_names(fresh) != _parameter_names(model):
        rule = "has other parameters than its config gives it (adapters, quantised weights)"
        raise AscendFiaError("model", type(fresh).__name__, rule)
    shards: dict[str, DTensor] = {}
    plain: dict[int, nn.Parameter] = {}  # tied parameters stay tied
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) not in plain:
            plain[id(parameter)] = nn.Parameter(_local(name, parameter), requires_grad=False)
        if _is_split(parameter):
            shards[name] = parameter  # type: ignore[assignment]
        owner, own_name = _owner(fresh, name)
        owner.register_parameter(own_name, plain[id(parameter)])
    for name, buffer in model.named_buffers(remove_duplicate=False):
        owner, own_name = _owner(fresh, name)
        owner._buffers[own_name] = buffer
    _apply_rules(fresh, shards, plan_of(model))
    return fresh.eval()


def _unloaded(model: Any) -> nn.Module:
    """A model of the same class, but not that of data parallel wrappers, on the meta device."""
    kind: Any = next(one for one in type(model).__mro__ if not issubclass(one, FSDPModule))
    with torch.device("meta"):
        fresh: nn.Module = kind(copy.deepcopy(model.config))
    return fresh


def _parameter_names(model: nn.Module) -> set[str]:
    return {name for name, _ in model.named_parameters(remove_duplicate=False)}


def _owner(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, own_name = name.rpartition(".")
    return model.get_submodule(path), own_name


def _local(name: str, parameter: Tensor) -> Tensor:
    """This rank's part, which must be all but for tensor parallel."""
    if not isinstance(parameter, DTensor):
        return parameter.detach()
    for dim, placement in enumerate(parameter.placements):
        ranks = parameter.device_mesh.size(dim)
        if ranks > 1 and not isinstance(placement, Replicate) and dim != _tensor_dim(parameter.device_mesh):
            mesh = parameter.device_mesh.mesh_dim_names
            rule = f"is split over {ranks} ranks along dim {dim} of {mesh}, which is not {TENSOR_DIM!r}"
            raise AscendFiaError("model", name, rule)
    return parameter.to_local().detach()


def _tensor_dim(mesh: DeviceMesh) -> int | None:
    """The mesh dim of tensor parallel; a mesh of one dim without a name is nothing else."""
    if mesh.mesh_dim_names is None:
        return 0 if mesh.ndim == 1 else None
    return mesh.mesh_dim_names.index(TENSOR_DIM) if TENSOR_DIM in mesh.mesh_dim_names else None


def _is_split(parameter: Tensor) -> bool:
    if not isinstance(parameter, DTensor):
        return False
    dim = _tensor_dim(parameter.device_mesh)
    return dim is not None and not isinstance(parameter.placements[dim], Replicate)


def _apply_rules(model: nn.Module, shards: Mapping[str, DTensor], plan: Mapping[str, str]) -> None:
    """Give ``model``, whose parameters ``shards`` are cut, the collectives that ``plan`` asks for."""
    for name in shards:
        module = name.rpartition(".")[0]
        if pattern_of(module) not in plan:
            raise AscendFiaError("model", name, f"is sharded, and tp_plan has no rule for {module}")
    if not shards:
        return
    group = _group(next(iter(shards.values())))
    for name, module in list(model.named_modules()):
        rule, shard = plan.get(pattern_of(name)), shards.get(f"{name}.weight")
        if rule is None or rule in LOCAL:
            continue
        if rule in SUMMED:
            sum_output(module, group)
        elif rule in CUT_ALONG:
            if shard is not None:
                _refuse_other_cuts(name, rule, shard)
                _apply(rule, module, shard, group)
        else:
            raise AscendFiaError("model", name, f"tp_plan's rule {rule!r} is not known here")


def _group(shard: DTensor) -> ProcessGroup:
    return shard.device_mesh.get_group(_tensor_dim(shard.device_mesh))


def _refuse_other_cuts(name: str, rule: str, shard: DTensor) -> None:
    placement = shard.placements[_tensor_dim(shard.device_mesh) or 0]
    if not placement.is_shard(CUT_ALONG[rule]):
        raise AscendFiaError("model", f"{name}.weight", f"is {placement}, not as the rule {rule!r} cuts it")


def _apply(rule: str, module: Any, shard: DTensor, group: ProcessGroup) -> None:
    if rule == ROW:
        sum_row(module, group)
    elif rule == LOOKED_UP:
        sum_lookups(module, shard.shape[0], group)
    elif rule in GATHERED:
        gather_columns(module, shard.shape[0], group)
