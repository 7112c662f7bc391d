"""Unmodified Hugging Face models through captured graphs, against the same models run eagerly."""

import pytest
import torch

from tests.npu_compile.runtime.capturing import CapturingBackend, decode, prompt_of, tiny_model

STEPS = 64
EVERY_BATCH = [
    pytest.param(family, batch, marks=[] if (family, batch) in quick else [pytest.mark.nightly])
    for quick in [{("llama", 1), ("llama", 3), ("qwen2", 2), ("gemma3", 4)}]
    for family in ("llama", "qwen2", "gemma3")
    for batch in (1, 2, 3, 4)
]


@pytest.mark.parametrize(("family", "batch"), EVERY_BATCH)
def test_decoding(family: str, batch: int) -> None:
    torch.compiler.reset()
    model, backend = tiny_model(family), CapturingBackend()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    expected = decode(model, model, prompt_of(batch), STEPS)
    got = decode(model, compiled, prompt_of(batch), STEPS)
    torch.testing.assert_close(got.logits, expected.logits, atol=1e-5, rtol=0)
    assert torch.equal(got.tokens, expected.tokens)
    for function in backend.functions:  # dynamo makes several graphs of gemma3: window filling up, and full
        assert function.stats.captures == 1, "one shape, one capture, however the lengths grow"
        assert function.stats.recaptures == 0
        assert not function.stats.fallbacks
        assert function.stats.updates == function.stats.replays
    assert sum(f.stats.replays + f.stats.warmups for f in backend.functions) == STEPS
    assert sum(f.stats.host_reads for f in backend.functions) <= len(backend.functions)


def test_two_generations_on_one_cache() -> None:
    """A cache that was reset is where it was: nothing is captured again, and its counters are read again."""
    from transformers import StaticCache

    from tests.npu_compile.runtime.capturing import CAPACITY

    torch.compiler.reset()
    model, backend = tiny_model("llama"), CapturingBackend()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    cache = StaticCache(config=model.config, max_cache_len=CAPACITY)
    for length in (5, 9):
        cache.reset()
        expected = decode(model, model, prompt_of(2, length), 10)
        got = decode(model, compiled, prompt_of(2, length), 10, cache=cache)
        torch.testing.assert_close(got.logits, expected.logits, atol=1e-5, rtol=0)
    (function,) = backend.functions
    assert function.stats.captures == 1
    assert function.stats.host_reads <= 2
