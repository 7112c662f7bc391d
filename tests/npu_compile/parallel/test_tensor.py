"""Tensor parallel on one mesh dim, context parallel on the other."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

from npu_compile.errors import AscendFiaError
from npu_compile.parallel import context_parallel
from npu_compile.parallel.tensor import tensor_parallel

from .ranks import results, run_ranks
from .tiny import eager_logits, prompts_of, tiny


def _both(rank):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("cp", "tp"))
    whole, model = tiny("llama"), tiny("llama")
    applied = tensor_parallel(model, mesh["tp"])
    projections = {name.rpartition(".")[2]: tuple(model.get_submodule(name).weight.shape) for name in applied}
    parallel = context_parallel(model, mesh["cp"], max_length=64)
    sequences, tokens = prompts_of((17, 9)), torch.tensor([3, 4])
    errors = [(parallel.prefill(sequences) - eager_logits(whole, sequences)).abs().max().item()]
    longer = [torch.cat([old, new[None]]) for old, new in zip(sequences, tokens, strict=True)]
    errors.append((parallel.decode(tokens) - eager_logits(whole, longer)).abs().max().item())
    return errors, projections, parallel.cache_bytes()


@pytest.mark.nightly
def test_tensor_and_context_parallel_share_a_mesh():
    for errors, projections, cached in results(run_ranks(4, _both)):
        assert max(errors) <= 1e-4
        assert projections["q_proj"] == (32, 64) and projections["o_proj"] == (64, 32)
        assert projections["down_proj"] == (64, 48) and projections["k_proj"] == (16, 64)
        # Half the heads of half the tokens: 2 layers, K and V, 2 sequences, 33 rows, 1 head, 16, float32.
        assert cached == 2 * 2 * 2 * 33 * 16 * 4


def _dense(rank):
    whole, model = tiny("llama"), tiny("llama")
    tensor_parallel(model, None)
    prompts = prompts_of((17,))
    return (eager_logits(model, prompts) - eager_logits(whole, prompts)).abs().max().item()


def test_shards_compute_what_the_whole_computes():
    assert max(results(run_ranks(2, _dense))) <= 1e-5


def _experts(rank):
    model = tiny("qwen3_moe")
    whole = eager_logits(model, prompts_of((9,)))
    applied = tensor_parallel(model, None)
    fused = "moe_tp_experts" in model.tp_plan.values()
    return (eager_logits(model, prompts_of((9,))) - whole).abs().max().item(), sorted(applied), fused


def test_blocks_with_other_rules_stay_whole():
    for error, applied, fused in results(run_ranks(2, _experts)):
        assert error <= 1e-5
        attention = [f"model.layers.0.self_attn.{x}_proj" for x in "koqv"]
        assert [name for name in applied if "layers.0.self_attn" in name] == attention
        if fused:  # other releases have a Linear for each expert, with rules of their own
            assert not any(".mlp." in name for name in applied)


def _bad(rank):
    errors = []
    for model in (torch.nn.Linear(2, 2), tiny("llama")):
        try:
            tensor_parallel(model, None)
        except AscendFiaError as error:
            errors.append(str(error))
    return errors


def test_bad_models_are_named():
    for no_plan, odd in results(run_ranks(3, _bad)):
        assert "model='Linear': has no tp_plan" in no_plan
        assert "is not a multiple of 3 ranks" in odd


@pytest.mark.parametrize("pattern", ["model.layers.*.mlp.experts.down_proj", "model.layers.*.mlp.gate_proj"])
def test_rules_of_a_block_go_together(pattern):
    from npu_compile.parallel.tensor import _block

    assert _block(pattern) == "model.layers.*.mlp" and _block("lm_head") == "lm_head"
