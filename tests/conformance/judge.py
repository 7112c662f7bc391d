"""Run in a process that has the real torch_npu: prints what it declares, and what its meta functions say.

python -m tests.conformance.judge    one JSON object on the last line of output
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch_npu
from torch_npu.op_plugin.meta import _meta_registrations


def _op(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.npu, packet), overload or "default")


def _state() -> dict[str, Any]:
    """Of every operator in the namespace: its schema, and whether it has Meta and CPU kernels."""

    def has(name: str, key: str) -> bool:
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, key))

    names = [n for n in torch._C._dispatch_get_all_op_names() if n.startswith("npu::")]
    return {
        n.removeprefix("npu::"): [str(_op(n.removeprefix("npu::"))._schema), has(n, "Meta"), has(n, "CPU")]
        for n in names
    }


BEFORE = _state()  # what follows adds to the namespace, since importing ours does

from tests.conformance.kinds import described, doubtful, legal, on_meta  # noqa: E402


def main() -> None:
    # The stand-ins have no version and no chip: take the side of a current CANN on 910B.
    torch_npu.npu.utils._is_gte_cann_version = lambda version, module="CANN": True
    _meta_registrations.get_soc_version = lambda: 220
    answer = {
        "version": torch_npu.__version__,
        "before": BEFORE,
        "after": _state(),
        "equal_on_cpu": _equal_on_cpu(),
        "outputs": {kind.name: _meta(kind.op, kind.args) for kind in legal()},
        "refused": {kind.name: _refusal(kind.op, kind.args) for kind in doubtful()},
    }
    print(json.dumps(answer))


def _meta(op: str, args: dict[str, Any]) -> Any:
    """Outputs of the real meta function, or what it raised."""
    try:
        return described(_op(op)(**on_meta(args)))
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]


def _refusal(op: str, args: dict[str, Any]) -> str | None:
    outputs = _meta(op, args)
    return outputs if isinstance(outputs, str) and ": " in outputs else None


def _equal_on_cpu() -> bool:
    """Whether the graph-level operator and the real one give the same, right, result for CPU tensors."""
    query = torch.ones(1, 2, 3, 16)
    call = {"num_heads": 2, "input_layout": "BNSD"}
    lengths = torch.tensor([2])
    graph, _ = torch.ops.ascend_fia.npu_fused_infer_attention_score(
        query, query, query, actual_seq_lengths_kv=lengths, **call
    )
    real, _ = torch.ops.npu.npu_fused_infer_attention_score(
        query, query, query, actual_seq_lengths_kv=[2], **call
    )
    return bool(torch.equal(graph, real)) and bool((real == 1).all())


if __name__ == "__main__":
    main()
    sys.stdout.flush()
