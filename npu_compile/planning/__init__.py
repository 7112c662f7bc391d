"""Plans without weights or a device: `npu_compile.plan` and `npu-compile plan`."""
