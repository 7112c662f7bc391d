"""Traces mask-building functions, and runs what the algebra makes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from npu_compile.passes.mask.emit import MaskEmitter
from npu_compile.passes.mask.meaning import MaskAnalyser, MaskMeaning
from npu_compile.passes.mask.plan import MaskPlan, plan_mask
from npu_compile.passes.normalise import normalise
from npu_compile.passes.site import MaskTerm, ScoreShape
from tests.passes.mask.evaluate import Evaluation
from tests.passes.mask.oracle import implied_keep, operator


@dataclass
class Traced:
    """A graph that returns mask nodes, and inputs for it."""

    module: fx.GraphModule
    inputs: tuple[Any, ...]
    masks: tuple[fx.Node, ...]

    @property
    def graph(self) -> fx.Graph:
        return self.module.graph


def trace(function: Callable[..., Any], *inputs: Any, symbolic: bool = False) -> Traced:
    """ATen graph of ``function``, in-place writes kept, with fake values; its outputs are the masks."""
    module = make_fx(function, tracing_mode="symbolic" if symbolic else "fake", pre_dispatch=True)(*inputs)
    output = next(iter(reversed(module.graph.nodes)))
    masks = output.args[0]
    return Traced(module, inputs, tuple(masks) if isinstance(masks, (tuple, list)) else (masks,))


def compiled(function: Callable[..., Any], *inputs: Any, dynamic: bool | None = False) -> Traced:
    """The normalised graph of ``function`` under ``torch.compile``; (B, 1, Q, K) outputs are the masks."""
    found: list[Traced] = []

    def backend(module: fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        graph_module = normalise(module, examples)
        output = next(iter(reversed(graph_module.graph.nodes)))
        masks = [n for n in output.args[0] if isinstance(n, fx.Node) and _is_mask(n.meta["val"])]
        held = tuple(x.node.hint if isinstance(x, torch.SymInt) else x.clone() for x in examples)
        found.append(Traced(graph_module, held, tuple(masks)))
        return module.forward

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(function, backend=backend, dynamic=dynamic, fullgraph=True)(*inputs)
    (traced,) = found
    return traced


def _is_mask(output: Tensor) -> bool:
    return output.ndim == 4 and output.shape[1] == 1


def term(node: fx.Node, kind: str | None = None, fill: float = float("-inf")) -> MaskTerm:
    return MaskTerm(kind or ("keep" if node.meta["val"].dtype == torch.bool else "add"), node, fill)


@dataclass
class Result:
    masks: list[Tensor]
    """What the program's own subgraph computes."""
    meaning: MaskMeaning
    plan: MaskPlan
    keep: Tensor
    """What the predicate says, (B, N, Q, K)."""
    implied: Tensor
    """What the emitted arguments make the operator keep, (B, Q, K)."""
    lengths: list[int] | None
    mask: Tensor | None
    bias: Tensor | None
    mean_rows: Tensor | None
    void_rows: Tensor | None
    traced: Traced

    def attention(self, scores: Tensor, values: Tensor, hand_written: bool = False) -> Tensor:
        """The operator's result; ``scores`` are scaled and unmasked, (B, N, Q, K)."""
        if self.mean_rows is not None:
            scores = scores.masked_fill(self.mean_rows, 0)
        out = operator(scores, self.implied, self.bias, values)
        if self.void_rows is not None and (hand_written or self.plan.patch_void_rows):
            out = out.masked_fill(self.void_rows, float("nan") if hand_written else 0.0)
        return out


def run(
    traced: Traced,
    sizes: Sequence[int],
    terms: Sequence[MaskTerm] | None = None,
    dtype: torch.dtype = torch.float32,
    shape: ScoreShape | None = None,
    inputs: Sequence[Any] | None = None,
) -> Result:
    """Analyse, plan, emit, and run the graph on ``inputs`` (those of the trace by default)."""
    batch, heads, query, key = sizes
    shape = shape or ScoreShape(batch, heads, query, key)
    analyser = MaskAnalyser(traced.graph)
    meaning = analyser.analyse(tuple(terms or map(term, traced.masks)), shape, dtype)
    plan = plan_mask(meaning, shape)
    originals = list(traced.graph.nodes)
    emitter = MaskEmitter(analyser, "cpu")
    emitted = [
        emitter.emit_lengths(plan),
        emitter.emit_mask(plan),
        emitter.emit_bias(plan),
        emitter.emit_empty_rows(plan),
        emitter.emit_void_rows(plan),
    ]
    traced.graph.lint()
    for node in traced.graph.nodes:
        assert node in originals or "val" in node.meta
    output = next(iter(reversed(traced.graph.nodes)))
    output.args = ((*traced.masks, *emitted),)
    traced.module.recompile()
    capture = _Capture(traced.module, garbage_collect_values=False)
    given = [x.clone() if isinstance(x, Tensor) else x for x in (inputs or traced.inputs)]
    outputs = capture.run(*given)
    masks, results = list(outputs[: len(traced.masks)]), outputs[len(traced.masks) :]
    for node, held in zip(emitted, results, strict=True):
        assert node is None or _matches(node.meta["val"], held)
    lengths, mask, bias, mean_rows, void_rows = results
    assert (mask is not None) == (plan.atten_mask == "explicit")
    if lengths is not None:
        assert lengths.dtype == torch.int64 and lengths.shape in ((1,), (batch,))
    if mask is not None:
        assert mask.dtype == torch.bool and mask.shape[1:] == (1, query, key) and len(mask) in (1, batch)
    counts = None if lengths is None else lengths.tolist()
    band = (plan.sparse_mode, plan.pre_tokens, plan.next_tokens)
    implied = implied_keep(*band, mask, counts, batch, query, key)
    keep = Evaluation((batch, heads, query, key), capture.seen, capture.symbols).keep(meaning.keep)
    return Result(masks, meaning, plan, keep, implied, counts, mask, bias, mean_rows, void_rows, traced)


def _matches(fake: Tensor, held: Tensor) -> bool:
    """Whether a fake value foretold dtype and shape; symbolic sizes can be anything."""
    pairs = zip(fake.shape, held.shape, strict=True)
    return fake.dtype == held.dtype and all(isinstance(s, torch.SymInt) or s == r for s, r in pairs)


class _Capture(fx.Interpreter):
    """Runs a graph and keeps each value as it was right after it was computed."""

    def run(self, *args: Any) -> Any:
        self.seen: dict[fx.Node, Any] = {}
        self.symbols: dict[Any, int] = {}
        return super().run(*args)

    def run_node(self, n: fx.Node) -> Any:
        held = super().run_node(n)
        self.seen[n] = held.clone() if isinstance(held, Tensor) else held
        fake = n.meta.get("val")
        if isinstance(fake, Tensor) and isinstance(held, Tensor):
            pairs = zip(fake.shape, held.shape, strict=True)
            self.symbols.update((s.node.expr, r) for s, r in pairs if isinstance(s, torch.SymInt))
        elif isinstance(fake, torch.SymInt):
            self.symbols[fake.node.expr] = held
        return held


def program(scores: Tensor, mask: Tensor, values: Tensor, sdpa: bool = True) -> Tensor:
    """float64 attention as the program computes it: a bool mask fills with -inf, a float mask is added."""
    if mask.dtype == torch.bool:
        masked = scores.masked_fill(~mask, -torch.inf)
    else:
        masked = scores + mask.to(torch.promote_types(scores.dtype, mask.dtype))
    weights = torch.softmax(masked.double(), -1)
    return (weights.nan_to_num(0.0) if sdpa else weights) @ values.double()
