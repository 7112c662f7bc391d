"""torch_npu's own torch.compile backends on the software NPU, beside ours, as docs/capture.md tells it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_npu
from torch import Tensor
from torch._dynamo.utils import counters

from tests.npu_compile.runtime.capturing import CapturingBackend, Decoded, decode, prompt_of, tiny_model
from tests.softnpu import softnpu

STEPS = 12
FIA, FIA_OUT = "npu::npu_fused_infer_attention_score", "npu::npu_fused_infer_attention_score.out"


def fia_by_hand(q: Tensor, kv: Tensor, lengths: list[int]) -> Tensor:
    output = torch_npu.npu_fused_infer_attention_score(
        q * 1,
        kv,
        kv,
        num_heads=4,
        num_key_value_heads=2,
        input_layout="BNSD",
        actual_seq_lengths_kv=lengths,
    )[0]
    return output * 2


@torch.no_grad()
def steps_by_hand(backend: str, dynamic: bool | None) -> list[bool]:
    """Whether each of some steps with growing lengths is right."""
    torch.compiler.reset()
    counters.clear()
    q, kv = (torch.randn(2, n, s, 16).bfloat16().npu() for n, s in ((4, 1), (2, 32)))
    compiled = torch.compile(fia_by_hand, backend=backend, dynamic=dynamic, fullgraph=True)
    all_lengths = [[3 + step, 5 + step] for step in range(STEPS)]
    return [torch.equal(compiled(q, kv, n).cpu(), fia_by_hand(q, kv, list(n)).cpu()) for n in all_lengths]


def test_npugraph_ex_updates_calls_written_by_hand() -> None:
    with softnpu.launches() as names:
        assert all(steps_by_hand("npugraph_ex", None))
    assert counters["stats"]["unique_graphs"] == 2
    assert names.count(FIA_OUT) == STEPS + 1, "one capture, one update a step"


@torch.no_grad()
def test_results_of_calls_by_hand_are_overwritten_too() -> None:
    torch.compiler.reset()
    q, kv = (torch.randn(2, n, s, 16).bfloat16().npu() for n, s in ((4, 1), (2, 32)))
    compiled = torch.compile(fia_by_hand, backend="npugraph_ex", fullgraph=True)
    kept = [compiled(q, kv, [3 + step, 5 + step]) for step in range(STEPS)]
    expected = [fia_by_hand(q, kv, [3 + step, 5 + step]) for step in range(STEPS)]
    assert not all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(kept, expected, strict=True))


def test_npugraph_ex_with_constant_lengths_compiles_every_step() -> None:
    with pytest.raises(Exception, match="fullgraph"):
        steps_by_hand("npugraph_ex", False)
    assert counters["stats"]["unique_graphs"] == 8, "dynamo's limit"


def test_npugraphs_does_not_take_fia() -> None:
    with pytest.raises(RuntimeError, match="missing ACLGraph update plan"):
        steps_by_hand("npugraphs", None)


class Kept:
    """A step whose results are copied before the next one, or not."""

    def __init__(self, compiled: Callable[..., Any], copy: bool) -> None:
        self.compiled, self.copy = compiled, copy
        self.logits: Tensor

    def __call__(self, **inputs: Any) -> "Kept":
        result = Kept(self.compiled, self.copy)
        result.logits = self.compiled(**inputs).logits
        if self.copy:
            result.logits = result.logits.clone()
        return result


def llama(backend: Any, copy: bool) -> tuple[Decoded, Decoded, list[str]]:
    """Decoding of an unmodified llama: eager, compiled, and the kernels that the compiled steps launched."""
    torch.compiler.reset()
    model = tiny_model("llama").to("npu", torch.bfloat16)
    eager = decode(model, model, prompt_of(2), STEPS)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    with softnpu.launches() as names:
        got = decode(model, Kept(compiled, copy), prompt_of(2), STEPS, forced=eager.tokens)
    return eager, got, list(names)


def test_npugraph_ex_finds_no_attention() -> None:
    eager, got, names = llama("npugraph_ex", copy=True)
    assert torch.equal(got.logits, eager.logits)
    assert not any("fused_infer_attention" in name for name in names)


def test_results_of_npugraph_ex_are_overwritten_by_the_next_step() -> None:
    eager, got, _ = llama("npugraph_ex", copy=False)
    assert not torch.equal(got.tokens, eager.tokens)


def test_ours_lowers_updates_and_copies_out() -> None:
    backend = CapturingBackend()
    eager, got, names = llama(backend, copy=False)
    assert torch.equal(got.tokens, eager.tokens)
    (function,) = backend.functions
    assert names.count(FIA_OUT) == 2 * (1 + STEPS - 1), "two layers: one capture, one update a step"
    assert (function.stats.captures, function.stats.updates) == (1, STEPS - 1)
    assert function.stats.host_reads == 1
