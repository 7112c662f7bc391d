"""Ways to call a model with MLA, each compared with eager and held against the operators it should become."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from transformers import DynamicCache, StaticCache

from npu_compile.kernels.targets import Target
from npu_compile.pipeline import Compiled, run_passes
from tests.models.tiny import VOCABULARY
from tests.passes.mla.lowering import FIA, FIA_V2, calls

BATCH, PROMPT, CAPACITY = 2, 17, 53
TOLERANCE = 1e-4


@dataclass(eq=False)
class Recorder:
    """A torch.compile backend that keeps what the passes made of each graph.

    Two of them are never equal: dynamo would take the one for the other and compile nothing.
    """

    compiled: list[Compiled] = field(default_factory=list)

    def __call__(self, module: fx.GraphModule, example_inputs: list[Any]) -> Any:
        made = run_passes(module, example_inputs, Target.CPU)
        self.compiled.append(made)
        return made.module.forward

    def drain(self) -> list[Compiled]:
        """The graphs with attention compiled since the last call; Longcat's experts break graphs apart."""
        made, self.compiled = self.compiled, []
        return [one for one in made if one.outcomes]


def prompt(length: int = PROMPT, seed: int = 1) -> Tensor:
    return torch.randint(3, VOCABULARY, (BATCH, length), generator=torch.Generator().manual_seed(seed))


def lowered_calls(made: list[Compiled], packet: Any) -> int:
    """Calls of an operator in graphs in which every site became one: of form "mla", the rope part apart."""
    outcomes = [outcome for one in made for outcome in one.outcomes]
    assert [o.reason for o in outcomes if not o.lowered] == []
    assert {o.form for o in outcomes} == {"mla"}
    found = [node for one in made for node in calls(one.module, packet)]
    assert len(found) == len(outcomes), "another operator was called"
    assert all("query_rope" in node.kwargs and "key_rope" in node.kwargs for node in found)
    return len(found)


def products_over_the_cache(module: fx.GraphModule) -> list[str]:
    """Matrix products with an operand as long as a cache of either kind, or of symbolic length."""
    aten, lengths = torch.ops.aten, {PROMPT + 1, CAPACITY}
    kinds = (aten.linear, aten.matmul, aten.bmm, aten.mm, aten.addmm, aten.baddbmm, aten.einsum)
    found = []
    for node in module.graph.nodes:
        if getattr(node.target, "overloadpacket", None) in kinds:
            sizes = {s for n in node.all_input_nodes for s in n.meta["val"].shape}
            if sizes & lengths or any(isinstance(s, torch.SymInt) for s in sizes):
                found.append(node.name)
    return found


def compiled(model: Any) -> tuple[Any, Recorder]:
    """The model's forward, compiled afresh: what was compiled before counts towards dynamo's limit."""
    torch._dynamo.reset()
    recorder = Recorder()
    return torch.compile(model.forward, backend=recorder), recorder


def close(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=0, atol=TOLERANCE)


def greedy(forward: Any, cache: Any, steps: int) -> tuple[list[Tensor], list[Tensor]]:
    """Logits and tokens of a prompt and the steps after it."""
    token, logits, tokens = prompt(), [], []
    for _ in range(steps + 1):
        logits.append(forward(input_ids=token, cache=cache, use_cache=True).logits.clone())
        token = logits[-1][:, -1:].argmax(-1)
        tokens.append(token)
    return logits, tokens


def decode(model: Any, cache_kind: str, steps: int, sites: int) -> None:
    """A prompt and greedy steps behind it."""

    def cache() -> Any:
        if cache_kind == "static":
            return StaticCache(config=model.config, max_cache_len=CAPACITY)
        return DynamicCache(config=model.config)

    forward, recorder = compiled(model)
    wanted, wanted_tokens = greedy(model.forward, cache(), steps)
    filled = cache()
    prefill = forward(input_ids=prompt(), cache=filled, use_cache=True).logits
    close(prefill, wanted[0])
    assert lowered_calls(recorder.drain(), FIA) == sites
    for logits, token, following in zip(wanted[1:], wanted_tokens[:-1], wanted_tokens[1:], strict=True):
        got = forward(input_ids=token, cache=filled, use_cache=True).logits
        close(got, logits)
        assert torch.equal(got[:, -1:].argmax(-1), following)
    absorbed(recorder.drain(), sites)


def absorbed(decoding: list[Compiled], sites: int) -> None:
    """Decode graphs attend to latents, and multiply nothing that is as long as the cache by a weight."""
    assert lowered_calls(decoding, FIA_V2) in (sites, 2 * sites), "compiled for more than one symbolic length"
    for one in decoding:
        assert products_over_the_cache(one.module) == []


def padded(model: Any, sites: int) -> None:
    """A left-padded batch: a prefill into a static cache, and a step behind it."""
    forward, recorder = compiled(model)
    mask = torch.ones(BATCH, PROMPT + 1, dtype=torch.int64)
    mask[0, :5] = 0
    ours, theirs = (StaticCache(config=model.config, max_cache_len=CAPACITY) for _ in range(2))
    tokens = prompt(PROMPT + 1)
    for first, last in ((0, PROMPT), (PROMPT, PROMPT + 1)):
        arguments = {"input_ids": tokens[:, first:last], "attention_mask": mask[:, :last], "use_cache": True}
        got = forward(**arguments, cache=ours).logits
        wanted = model(**arguments, cache=theirs).logits
        for row in range(BATCH):
            kept = mask[row, first:last].bool()
            close(got[row, kept], wanted[row, kept])
        if first == 0:
            assert lowered_calls(recorder.drain(), FIA) == sites
    absorbed(recorder.drain(), sites)


def chunked(model: Any) -> None:
    """A prompt in uneven chunks; a chunk that is short beside the cache is absorbed."""
    forward, recorder = compiled(model)
    ours, theirs = (StaticCache(config=model.config, max_cache_len=CAPACITY) for _ in range(2))
    for chunk in prompt().split((9, 5, 3), 1):
        got = forward(input_ids=chunk, cache=ours, use_cache=True).logits
        close(got, model(input_ids=chunk, cache=theirs, use_cache=True).logits)
    made = recorder.drain()
    outcomes = [o for one in made for o in one.outcomes]
    assert all(o.lowered and o.form == "mla" for o in outcomes)
    assert sum(len(calls(c.module, p)) for c in made for p in (FIA, FIA_V2)) == len(outcomes)


def generated(model: Any, sites: int) -> None:
    """generate() from a left-padded batch with a static cache: its masks are inputs of the graph."""
    forward, recorder = compiled(model)
    tokens = prompt()
    tokens[0, :5] = 0
    plain, made = model.forward, []
    try:
        for model.forward in (plain, forward):
            made.append(
                model.generate(
                    inputs=tokens,
                    attention_mask=(tokens != 0).long(),
                    cache_implementation="static",
                    max_new_tokens=CAPACITY - PROMPT,
                    do_sample=False,
                    disable_compile=True,
                )
            )
    finally:
        model.forward = plain
    assert torch.equal(*made)
    prefill, decoding = _by_operator(recorder.drain())
    assert lowered_calls(prefill, FIA) == sites
    absorbed(decoding, sites)


def _by_operator(made: list[Compiled]) -> tuple[list[Compiled], list[Compiled]]:
    """Graphs that call FIA, and those that call FIA v2."""
    return [one for one in made if calls(one.module, FIA)], [one for one in made if calls(one.module, FIA_V2)]
