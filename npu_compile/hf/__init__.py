"""Hugging Face hosts: the attention implementation "ascend_fia" and continuous batching on it.

import npu_compile.hf

npu_compile.hf.register()
model.set_attn_implementation("ascend_fia")
model.generate_batch(prompts)
"""

from __future__ import annotations

from .int8_cache import use_int8_cache
from .register import ATTENTION, register

__all__ = ["ATTENTION", "register", "use_int8_cache"]
