"""What works here, found out in a process of its own: ``python -m npu_compile.probe`` prints JSON.

``import torch`` may fail, or a device may hang; the caller (`npu-compile doctor`) must survive
both. For every kind of device this compiles one attention with the backend and compares it
with eager.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def probe() -> dict[str, Any]:
    """``torch``: its version; ``graph_update``: torch.npu.NPUGraph.update exists, None without
    torch-npu; ``npus``: device names; ``attention``: by device type, the largest error against
    eager, or a sentence where the check failed."""
    import torch

    npu = getattr(torch, "npu", None) if "torch_npu" in sys.modules else None
    npus = [npu.get_device_name(index) for index in range(npu.device_count())] if npu else []
    devices = {"cpu": torch.float32, **({"npu": torch.float16} if npus else {})}
    return {
        "torch": torch.__version__,
        "graph_update": callable(getattr(npu.NPUGraph, "update", None)) if npu else None,
        "npus": npus,
        "attention": {device: check_attention(device, dtype) for device, dtype in devices.items()},
    }


def check_attention(device: str, dtype: Any) -> float | str:
    """Compile one causal attention, (1, 4, 17, 64) with 2 key heads, and compare it with eager."""
    import torch

    def attend(q: Any, k: Any, v: Any) -> Any:
        attention = torch.nn.functional.scaled_dot_product_attention
        return attention(q, k, v, is_causal=True, enable_gqa=True)

    try:
        from .backend import ascend_fia
        from .report_log import last_report

        torch.manual_seed(0)
        q, k, v = (torch.randn(1, heads, 17, 64, dtype=dtype).to(device) for heads in (4, 2, 2))
        with torch.no_grad():
            found = torch.compile(attend, backend=ascend_fia)(q, k, v)
            error = float((found - attend(q, k, v)).abs().max())
        if left := last_report().left:
            return f"not lowered: {left[0].reason}"
    except Exception as failure:
        cause = getattr(failure, "inner_exception", failure)
        return f"{type(cause).__name__}: {cause}".partition("\n")[0]
    return error


if __name__ == "__main__":
    print(json.dumps(probe()))
