"""A torch.compile backend for Ascend fused attention."""
