"""Hugging Face hosts: the attention implementation "ascend_fia" and continuous batching on it.

import npu_compile.hf

npu_compile.hf.register()
model.set_attn_implementation("ascend_fia")
model.generate_batch(prompts)
"""

from __future__ import annotations

from .engine_options import use_int8_cache, use_kv_connector
from .register import ATTENTION, register

__all__ = ["ATTENTION", "register", "use_int8_cache", "use_kv_connector"]
