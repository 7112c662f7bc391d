"""A torch.compile backend for Ascend fused attention."""

from npu_compile.kernels.graph_ops import ensure_graph_ops

ensure_graph_ops()
