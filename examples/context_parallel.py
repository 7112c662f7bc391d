"""A Hugging Face model over ranks: prompts split for prefill, the KV cache split for decode.

    torchrun --nproc-per-node 2 examples/context_parallel.py

The model is unmodified. Each rank computes its share of the prompt tokens and keeps its share of
the keys; rank 0 prints the tokens, what each rank keeps, and what the backend did.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from transformers import LlamaConfig, LlamaForCausalLM

import npu_compile
from npu_compile.parallel import context_parallel

PROMPTS = [list(range(10, 47)), list(range(60, 79))]
NEW_TOKENS = 8


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")  # "hccl" on NPUs
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("cp",))

    torch.manual_seed(0)  # the same weights on every rank; from_pretrained gives them too
    config = LlamaConfig(vocab_size=128, hidden_size=128, intermediate_size=256, num_hidden_layers=2)
    config.num_attention_heads, config.num_key_value_heads, config.head_dim = 8, 2, 16
    model = LlamaForCausalLM(config).eval()

    parallel = context_parallel(model, mesh["cp"], max_length=128)
    tokens = parallel.generate(PROMPTS, max_new_tokens=NEW_TOKENS)

    if dist.get_rank() == 0:
        for prompt, new in zip(PROMPTS, tokens, strict=True):
            print(f"{len(prompt)} prompt tokens, then {new}")
        print(f"{parallel.cache_bytes():,} bytes of KV cache on each of {mesh.size()} ranks\n")
        print(npu_compile.last_report())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
