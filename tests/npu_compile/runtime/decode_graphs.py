"""Hand-built decode steps of a few attention layers over static caches, and what they should compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from npu_compile.kernels.graph_ops import ensure_graph_ops

ensure_graph_ops()

B, N, N_KV, D, CAPACITY = 2, 4, 2, 16, 37
SCALE = 0.3


def lowered(function: Callable[..., Any], args: Sequence[Any]) -> fx.GraphModule:
    """``function`` as a lowered graph; tensors in ``args`` give sizes only."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = [mode.from_tensor(arg) if isinstance(arg, Tensor) else arg for arg in args]
    with mode, torch.no_grad():
        return make_fx(function, pre_dispatch=True, _allow_non_fake_inputs=True)(*fakes)


def host_lengths(lengths: Tensor) -> Tensor:
    return torch.ops.ascend_fia.host_lengths(lengths)


def fia(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor | None) -> Tensor:
    """FIA v1 on (B, N, Q, D) and caches (B, N_KV, CAPACITY, D)."""
    return torch.ops.ascend_fia.npu_fused_infer_attention_score(
        query,
        key,
        value,
        num_heads=N,
        num_key_value_heads=N_KV,
        input_layout="BNSD",
        scale=SCALE,
        actual_seq_lengths_kv=lengths,
    )[0]


def fia_v2(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor | None) -> Tensor:
    return torch.ops.ascend_fia.npu_fused_infer_attention_score_v2(
        query,
        key,
        value,
        num_query_heads=N,
        num_key_value_heads=N_KV,
        input_layout="BNSD",
        softmax_scale=SCALE,
        actual_seq_kvlen=lengths,
    )[0]


def decode(layers: int) -> Callable[..., tuple[Tensor]]:
    """A step: write k and v to each layer's cache at its counter, advance it, attend to what is there.

    Takes q (B, N, 1, D), k and v (B, N_KV, 1, D); per layer weight (D,), key cache, value cache, counter ().
    """

    def step(q: Tensor, k: Tensor, v: Tensor, *state: Tensor) -> tuple[Tensor]:
        lengths = None
        for weight, keys, values, counter in zip(*[iter(state)] * 4, strict=True):
            position = torch.arange(1, device=q.device) + counter
            counter.add_(1)
            keys.index_copy_(2, position, k)
            values.index_copy_(2, position, v * weight)
            if lengths is None:
                lengths = host_lengths((position[-1:] + 1).expand(q.shape[0]))
            q = fia(q, keys, values, lengths)
        return (q,)

    assert layers > 0
    return step


def fresh_state(layers: int, batch: int = B) -> list[Tensor]:
    """Weights, caches that hold NaN where nothing was written, and counters at 0."""
    generator = torch.Generator().manual_seed(layers)
    state: list[Tensor] = []
    for _ in range(layers):
        caches = [torch.full((batch, N_KV, CAPACITY, D), float("nan")) for _ in "kv"]
        weight = torch.nn.Parameter(torch.rand(D, generator=generator), requires_grad=False)
        state += [weight, *caches, torch.tensor(0)]
    return state


def step_inputs(step: int, batch: int = B) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1000 + step)
    return [torch.randn(batch, n, 1, D, generator=generator) for n in (N, N_KV, N_KV)]


def decode_graph(layers: int = 2, batch: int = B) -> fx.GraphModule:
    return lowered(decode(layers), [*step_inputs(0, batch), *fresh_state(layers, batch)])


def expected_decode(layers: int, steps: int, batch: int = B) -> list[Tensor]:
    """The outputs of ``steps`` steps from a fresh state, by float64 loops over requests and heads."""
    weights = [state.double() for state in fresh_state(layers, batch)[::4]]
    written: list[list[list[Tensor]]] = [[[], []] for _ in range(layers)]
    outputs = []
    for step in range(steps):
        q, k, v = (x.double() for x in step_inputs(step, batch))
        for layer, weight in enumerate(weights):
            written[layer][0].append(k[:, :, 0])
            written[layer][1].append(v[:, :, 0] * weight)
            q = _attend(q, *written[layer])
        outputs.append(q)
    return outputs


def _attend(q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    out = torch.empty_like(q)
    for b in range(q.shape[0]):
        for n in range(N):
            kv = n // (N // N_KV)
            scores = torch.stack([(q[b, n, 0] @ k[b, kv]) * SCALE for k in keys])
            probabilities = torch.exp(scores - scores.max())
            probabilities = probabilities / probabilities.sum()
            out[b, n, 0] = sum(p * v[b, kv] for p, v in zip(probabilities, values, strict=True))
    return out
