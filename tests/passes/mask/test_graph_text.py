"""What emission adds to a graph, before and after."""

from __future__ import annotations

import torch
from torch import Tensor

from npu_compile.passes.mask.emit import MaskEmitter
from npu_compile.passes.mask.meaning import MaskAnalyser
from npu_compile.passes.mask.plan import plan_mask
from npu_compile.passes.site import ScoreShape
from tests.passes.graphs import text
from tests.passes.mask.tracing import Traced, term, trace

B, N, Q, K = 2, 4, 3, 9


def emitted(traced: Traced, scores: ScoreShape) -> list[str]:
    """The lines that emission adds, in graph order."""
    before = text(traced.module)
    analyser = MaskAnalyser(traced.graph)
    emitter = MaskEmitter(analyser, "cpu")
    plan = plan_mask(analyser.analyse([term(traced.masks[0])], scores), scores)
    for emit in (emitter.emit_lengths, emitter.emit_mask, emitter.emit_bias, emitter.emit_empty_rows):
        emit(plan)
    traced.graph.lint()
    after = text(traced.module)
    assert [line for line in after if line in before] == before, "nothing that was there moved or changed"
    return [line for line in after if line not in before]


def test_static_cache() -> None:
    def mask(counter: Tensor, cache: Tensor, new: Tensor) -> Tensor:
        positions = torch.arange(Q) + counter
        keep = (torch.arange(K)[None] <= positions[:, None])[None, None]
        counter.add_(Q)
        cache.index_copy_(2, positions, new)
        return keep

    traced = trace(mask, torch.tensor(2), torch.zeros(B, N, K, 8), torch.zeros(B, N, Q, 8))
    assert text(traced.module) == [
        "arange = arange.default(3, device=cpu, pin_memory=False)",
        "add = add.Tensor(arange, counter_1)",
        "arange_1 = arange.default(9, device=cpu, pin_memory=False)",
        "unsqueeze = unsqueeze.default(arange_1, 0)",
        "unsqueeze_1 = unsqueeze.default(add, 1)",
        "le = le.Tensor(unsqueeze, unsqueeze_1)",
        "unsqueeze_2 = unsqueeze.default(le, 0)",
        "unsqueeze_3 = unsqueeze.default(unsqueeze_2, 1)",
        "add_ = add_.Tensor(counter_1, 3)",
        "index_copy_ = index_copy_.default(cache_1, 2, add, new_1)",
    ]
    assert emitted(traced, ScoreShape(B, N, Q, K)) == [
        "add_tensor = add.Tensor(counter_1, 3)",
        "reshape_default = reshape.default(add_tensor, [-1])",
    ]
    names = [n.name for n in traced.graph.nodes]
    assert names.index("add_tensor") < names.index("add_"), "read before the counter grows"


def test_padding_mask() -> None:
    traced = trace(lambda p: p[:, None, None, :].expand(B, 1, Q, K), torch.ones(B, K, dtype=torch.bool))
    added = emitted(traced, ScoreShape(B, N, Q, K))
    assert added == [
        "arange_start = arange.start(1, 10, device=cpu)",
        "slice_tensor = slice.Tensor(expand, -2, 0, 1)",
        "logical_not_default = logical_not.default(slice_tensor)",
        "expand_default = expand.default(logical_not_default, [-1, 1, 3, 9])",
        "masked_fill_scalar = masked_fill.Scalar(arange_start, logical_not_default, 0)",
        "amax_default = amax.default(masked_fill_scalar, [-1])",
        "reshape_default = reshape.default(amax_default, [-1])",
        "all_dim = all.dim(logical_not_default, -1, True)",
    ], "one row of the mask is enough: all query rows see the same keys"


def test_layers_share_what_is_emitted() -> None:
    """64 layers with one mask cost one mask."""
    traced = trace(lambda m: m.clone(), torch.ones(B, 1, Q, K, dtype=torch.bool))
    analyser = MaskAnalyser(traced.graph)
    emitter = MaskEmitter(analyser, "cpu")
    scores = ScoreShape(B, N, Q, K)
    found = set()
    counts = []
    for _ in range(64):
        plan = plan_mask(analyser.analyse([term(traced.masks[0])], scores), scores)
        found.add((emitter.emit_lengths(plan), emitter.emit_mask(plan), emitter.emit_void_rows(plan)))
        counts.append(len(list(traced.graph.nodes)))
    assert len(found) == 1 and counts[0] == counts[-1]


def test_causal_modes_emit_nothing() -> None:
    traced = trace(lambda: (torch.arange(Q)[None] <= torch.arange(Q)[:, None])[None, None].expand(B, 1, Q, Q))
    assert emitted(traced, ScoreShape(B, N, Q, Q)) == []
