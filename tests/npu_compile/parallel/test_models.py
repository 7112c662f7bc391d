"""Hugging Face models over real ranks against the same model in one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from npu_compile import last_report
from npu_compile.errors import AscendFiaError
from npu_compile.parallel import context_parallel

from .ranks import results, run_ranks
from .tiny import eager_logits, prompts_of, tiny

STEPS = 16


def _generate(rank, name, batches):
    """Prefill and 16 greedy steps of each batch; the largest error of the logits."""
    model = tiny(name)
    parallel = context_parallel(model, max_length=64)
    errors = []
    for lengths in batches:
        sequences = prompts_of(lengths)
        parallel.reset()
        logits = parallel.prefill(sequences)
        assert parallel.fallback is None
        for _ in range(STEPS):
            expected = eager_logits(model, sequences)
            errors.append((logits - expected).abs().max().item())
            tokens = expected.argmax(-1)
            assert torch.equal(logits.argmax(-1), tokens)
            sequences = [torch.cat([old, new[None]]) for old, new in zip(sequences, tokens, strict=True)]
            logits = parallel.decode(tokens)
        errors.append((logits - eager_logits(model, sequences)).abs().max().item())
    return max(errors), str(last_report())


def check(name, ranks, batches):
    for error, report in results(run_ranks(ranks, _generate, name, batches)):
        assert error <= 1e-4
        assert f"context parallel decode over {ranks} ranks" in report


def test_llama_on_two_ranks():
    check("llama", 2, [(17, 9), (31,)])


def test_llama_on_four_ranks():
    check("llama", 4, [(23, 9, 14)])


def test_qwen3_moe_on_two_ranks():
    check("qwen3_moe", 2, [(17, 9, 4)])


def test_deepseek_v3_on_two_ranks():
    check("deepseek_v3", 2, [(17, 9, 4)])


def _generate_in_a_window(rank, batches):
    error, _ = _generate(rank, "gemma3", batches)
    # A layer with a window keeps 16 tokens and a spare row where the other one keeps 64.
    parallel = context_parallel(tiny("gemma3"), max_length=64)
    parallel.prefill(prompts_of((3, 20)))
    layers = [layer.keys.shape[2] for layer in parallel._cache.layers]
    try:
        parallel.prefill(prompts_of((8, 8)))
    except AscendFiaError as refused:
        return error, layers, str(refused)


def test_windows_on_two_ranks():
    """Sequences below and above the window, and ranks that have fewer tokens than it."""
    for error, layers, refused in results(run_ranks(2, _generate_in_a_window, [(31, 9, 5)])):
        assert error <= 1e-4
        assert layers == [9, 33]
        assert "can't continue a batch: layers with a sliding window" in refused


@pytest.mark.nightly
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", ["llama", "qwen3_moe", "deepseek_v3", "mistral", "gemma3"])
def test_every_model_and_batch_size(name, ranks):
    check(name, ranks, [(17,), (17, 9), (23, 9, 14)])


@pytest.mark.nightly
def test_ranks_that_do_not_divide_the_heads_and_many_sequences():
    check("llama", 3, [(23, 6, 14, 31, 7)])


def _low_precision(rank):
    """Errors of bfloat16 logits against float64: over ranks, and of the same model in one process."""
    exact, model = tiny("llama").double(), tiny("llama").bfloat16()
    prompts, errors = prompts_of((31, 9)), []
    parallel = context_parallel(model, max_length=64)
    ours = parallel.prefill(prompts)
    for token in (3, 5, None):
        expected = eager_logits(exact, prompts)
        plain = (eager_logits(model, prompts).double() - expected).abs().max()
        errors.append(((ours.double() - expected).abs().max() / plain).item())
        if token is not None:
            prompts = [torch.cat([old, torch.tensor([token])]) for old in prompts]
            ours = parallel.decode(torch.full((2,), token))
    return max(errors), str(ours.dtype)


@pytest.mark.nightly
def test_low_precision_is_as_good_as_in_one_process():
    for error, dtype in results(run_ranks(2, _low_precision)):
        assert error <= 2 and dtype == "torch.bfloat16"


def _dies_between_steps(rank):
    parallel = context_parallel(tiny("llama"), max_length=64)
    parallel.prefill(prompts_of((17, 9)))
    if rank == 1:
        os._exit(1)
    parallel.decode(torch.tensor([1, 2]))


def test_a_rank_that_dies_between_steps_is_an_error_on_the_other():
    outcomes = run_ranks(2, _dies_between_steps, timeout=60)
    assert outcomes[1] is None
    assert outcomes[0].kind == "RuntimeError" and "by peer" in outcomes[0].text


@pytest.mark.nightly
def test_the_example_runs():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = Path(__file__).parents[3] / "examples" / "context_parallel.py"
    run = subprocess.run([*command, str(script)], capture_output=True, text=True, timeout=300, check=True)
    assert "37 prompt tokens, then [" in run.stdout
    assert "context parallel prefill over 2 ranks: 4 collectives a step" in run.stdout


def _other_paths(rank, ranks):
    """All logits; continuing a batch; a sequence that is too short to split; a run length above 1."""
    model = tiny("llama")
    parallel = context_parallel(model, max_length=64, interleave=4)
    first, more = prompts_of((17, 9)), prompts_of((2 * ranks + 1, 13), seed=1)
    logits = parallel.prefill_logits(first)
    errors = [
        (ours - model(tokens[None]).logits[0]).abs().max() for ours, tokens in zip(logits, first, strict=True)
    ]
    whole = [torch.cat(pair) for pair in zip(first, more, strict=True)]
    errors.append((parallel.prefill(more) - eager_logits(model, whole)).abs().max())
    tokens = torch.tensor([5, 7])
    whole = [torch.cat([old, new[None]]) for old, new in zip(whole, tokens, strict=True)]
    # What rank 0 has counts.
    errors.append(
        (parallel.decode(tokens if rank == 0 else tokens + 1) - eager_logits(model, whole)).abs().max()
    )
    parallel.reset()
    short = prompts_of((12, 2 * ranks - 1, 1))
    errors.append((parallel.prefill(short) - eager_logits(model, short)).abs().max())
    reason = parallel.fallback
    tokens = torch.tensor([1, 2, 3])
    whole = [torch.cat([old, new[None]]) for old, new in zip(short, tokens, strict=True)]
    errors.append((parallel.decode(tokens) - eager_logits(model, whole)).abs().max())
    kept = parallel.cache_bytes()
    tokens = parallel.generate(first, 5)
    ended = parallel.generate(first, 5, eos_token_id=[tokens[0][1], 96])
    return max(error.item() for error in errors), reason, kept, tokens, ended


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.nightly)])
def test_continuing_falling_back_and_generating(ranks):
    model = tiny("llama")
    expected = []
    for tokens in prompts_of((17, 9)):
        out = model.generate(tokens[None], max_new_tokens=5, do_sample=False, pad_token_id=0)
        expected.append(out[0, tokens.numel() :].tolist())
    end = expected[0][1]
    up_to_end = [row[: row.index(end) + 1] if end in row else row for row in expected]
    assert not any(96 in row for row in expected)
    for error, reason, kept, tokens, ended in results(run_ranks(ranks, _other_paths, ranks)):
        assert error <= 1e-4
        assert reason == (
            f"sequence 1 has {2 * ranks - 1} tokens, fewer than the {2 * ranks} blocks of {ranks} ranks: "
            "every rank computes the whole batch"
        )
        whole = 2 * 2 * 3 * 64 * 2 * 16 * 4  # layers, K and V, sequences, tokens, heads, dim, bytes
        assert kept <= whole / ranks * 1.1
        assert tokens == expected and ended == up_to_end
