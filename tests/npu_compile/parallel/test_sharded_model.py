"""Models that transformers has sharded by their tp_plan, under context parallel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from transformers import (
    AutoModelForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
)

from npu_compile.errors import AscendFiaError
from npu_compile.parallel import context_parallel
from npu_compile.parallel.fingerprint import fingerprint
from npu_compile.parallel.sharded_model import is_sharded, plain_model

from .ranks import results, run_ranks
from .tiny import COMMON, GQA, eager_logits, prompts_of, tiny

distributed = pytest.importorskip("transformers.distributed", reason="transformers shards otherwise")
tensor_parallelism = pytest.importorskip("transformers.distributed.tensor_parallel")


def loaded(folder, rank, world, **sizes):
    """The model of ``folder`` as ``from_pretrained`` shards it under torchrun."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    config = distributed.DistributedConfig(**sizes)
    return AutoModelForCausalLM.from_pretrained(folder, distributed_config=config).eval()


def _both(rank, folder, name):
    """Prefill and four greedy steps with half the weights and half the tokens on each of four ranks."""
    model = loaded(folder, rank, 4, tp_plan="auto", dp_replicate_size=2)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("cp", "tp"))
    whole, sequences = tiny(name), prompts_of((17, 9))
    parallel = context_parallel(model, mesh["cp"], max_length=64)
    logits, errors = parallel.prefill(sequences), []
    for _ in range(4):
        expected = eager_logits(whole, sequences)
        errors.append((logits - expected).abs().max().item())
        tokens = expected.argmax(-1)
        assert torch.equal(logits.argmax(-1), tokens)
        sequences = [torch.cat([old, new[None]]) for old, new in zip(sequences, tokens, strict=True)]
        logits = parallel.decode(tokens)
    errors.append((logits - eager_logits(whole, sequences)).abs().max().item())
    try:
        context_parallel(model, mesh["tp"], max_length=64)
        refused = ""
    except RuntimeError as error:
        refused = str(error)
    return max(errors), parallel.cache_bytes(), refused


@pytest.mark.parametrize(
    "name",
    ["llama", *(pytest.param(x, marks=pytest.mark.nightly) for x in ("qwen3_moe", "deepseek_v3"))],
)
def test_tp_plan_auto_and_context_parallel_share_a_mesh(name, tmp_path):
    tiny(name).save_pretrained(tmp_path)
    for error, cached, refused in results(run_ranks(4, _both, str(tmp_path), name)):
        assert error <= 1e-4
        if name != "deepseek_v3":
            # Half the heads of half the tokens: 2 layers, K and V, 2 sequences, 33 rows, 1 head, 16, float32.
            assert cached == 2 * 2 * 2 * 33 * 16 * 4
        # Ranks with other shards are no context parallel group.
        assert "of one group have different settings" in refused and "weights" in refused


def eager_models():
    """Biases, tied and scaled embeddings, experts, latents; all vocabularies are odd."""
    biased = LlamaConfig(**COMMON, **GQA, attention_bias=True, mlp_bias=True, tie_word_embeddings=True)
    scaled = Gemma3TextConfig(**COMMON, **GQA, tie_word_embeddings=True, pad_token_id=96)
    models = {
        "biased": LlamaForCausalLM(biased).eval(),
        "scaled": Gemma3ForCausalLM(scaled).eval(),
        "experts": tiny("qwen3_moe"),
        "latents": tiny("deepseek_v3"),
    }
    for model in models.values():
        for parameter in model.parameters():  # biases are 0 at first
            torch.nn.init.normal_(parameter, std=0.1)
    return models


@torch.no_grad()
def _plain(rank, folder):
    found, prompts = {}, prompts_of((17,))
    for path in Path(folder).iterdir():
        whole = AutoModelForCausalLM.from_pretrained(path).eval()
        model = loaded(path, rank, 2, tp_plan="auto")
        plain = plain_model(model)
        assert is_sharded(model) and not is_sharded(plain)
        expected, embedding = eager_logits(whole, prompts), plain.get_input_embeddings().weight
        sizes = [sum(parameter.numel() for parameter in one.parameters()) for one in (plain, whole)]
        found[path.name] = (
            ((eager_logits(plain, prompts) - expected).abs().max() / expected.abs().max()).item(),
            ((eager_logits(model, prompts) - expected).abs().max() / expected.abs().max()).item(),
            sizes[0] / sizes[1],
            embedding is plain.get_output_embeddings().weight,
            tuple(embedding.shape),
            embedding.data_ptr() == model.get_input_embeddings().weight.to_local().data_ptr(),
        )
    return found


def test_shards_compute_what_the_whole_computes(tmp_path):
    for name, model in eager_models().items():
        model.save_pretrained(tmp_path / name)
    for rank, found in enumerate(results(run_ranks(2, _plain, str(tmp_path)))):
        assert set(found) == {"biased", "scaled", "experts", "latents"}
        for name, (error, of_transformers, share, tied, embedding, shared) in found.items():
            assert error <= 1e-5, (name, error, of_transformers)
            assert share < 0.75 and tied == (name in ("biased", "scaled")), name
            assert embedding == (49 - rank, 64) and shared, name


def sharded(model, mesh):
    """``model``, which every rank holds whole, sharded in place by its plan as transformers does it."""
    config = distributed.DistributedConfig(tp_size=mesh.size(), tp_plan="auto")
    plan, _, _ = model._resolve_parallel_plans(config)
    return tensor_parallelism.apply_tensor_parallelism(model, mesh, plan)


def _refused(rank, folder):
    messages = []
    mesh = init_device_mesh("cpu", (2,))
    changed, unruled, unknown, adapted = (sharded(tiny("llama"), mesh) for _ in range(4))
    changed.tp_plan["model.layers.*.self_attn.o_proj"] = "colwise"
    del unruled.tp_plan["model.layers.*.self_attn.q_proj"]
    unknown.tp_plan["model.layers.*.self_attn.o_proj"] = "rowwise_split_input"
    adapted.model.extra = torch.nn.Linear(2, 2)
    split = loaded(folder, rank, 2, fsdp_size=2)
    for model in (changed, unruled, unknown, adapted, split):
        try:
            plain_model(model)
        except AscendFiaError as error:
            messages.append(str(error))
    return messages


def test_what_is_not_understood_is_refused(tmp_path):
    tiny("llama").save_pretrained(tmp_path)
    for messages in results(run_ranks(2, _refused, str(tmp_path))):
        changed, unruled, unknown, adapted, split = messages
        assert "o_proj.weight" in changed and "not as the rule 'colwise' cuts it" in changed
        assert "q_proj.weight" in unruled and "has no rule for model.layers.0.self_attn.q_proj" in unruled
        assert "rule 'rowwise_split_input' is not known" in unknown
        assert "other parameters than its config gives it" in adapted
        assert "is split over 2 ranks along dim" in split and "not 'tp'" in split


def test_a_fingerprint_tells_weights_apart():
    model, same = tiny("llama"), tiny("llama")
    assert fingerprint(model) == fingerprint(same)
    with torch.no_grad():
        same.lm_head.weight += 1e-3
    assert fingerprint(model) != fingerprint(same)
    assert fingerprint(model) != fingerprint(model.bfloat16())
    assert fingerprint(torch.nn.ParameterList([torch.empty(0)])), "of no elements too"


def _other_weights(rank):
    model = tiny("llama")
    if dist.get_rank() == 1:
        torch.manual_seed(7)
        model = LlamaForCausalLM(model.config).eval()
    context_parallel(model, max_length=64)


def test_ranks_with_other_weights_are_an_error():
    for outcome in run_ranks(2, _other_weights, timeout=30):
        assert outcome.kind == "ContextParallelError" and "have different settings" in outcome.text
