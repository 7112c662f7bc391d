"""Multi-head latent attention in every Hugging Face family that has it: same tokens, right operators.

By default one layer of tiny dims a family; nightly two layers, the head dims of DeepSeek-V3, 32 steps and
hand-written attention too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, fx
from transformers import DynamicCache, StaticCache

from npu_compile.kernels.targets import Target
from npu_compile.pipeline import Compiled, run_passes
from tests.models.mla_families import MLA_FAMILIES, REAL, TINY, Dims
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


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def prompt(length: int = PROMPT, seed: int = 1) -> Tensor:
    return torch.randint(3, VOCABULARY, (BATCH, length), generator=torch.Generator().manual_seed(seed))


def lowered_calls(made: list[Compiled], packet: Any) -> int:
    """Calls of an operator in graphs in which every site became one, all of them of form "mla"."""
    outcomes = [outcome for one in made for outcome in one.outcomes]
    assert [o.reason for o in outcomes if not o.lowered] == []
    assert {o.form for o in outcomes} == {"mla"}
    found = sum(len(calls(one.module, packet)) for one in made)
    assert found == len(outcomes), "another operator was called"
    return found


def products_over_the_cache(module: fx.GraphModule) -> list[str]:
    """Matrix products with an operand as long as the cache, or of symbolic length."""
    aten = torch.ops.aten
    kinds = (aten.linear, aten.matmul, aten.bmm, aten.mm, aten.addmm, aten.baddbmm, aten.einsum)
    found = []
    for node in module.graph.nodes:
        if getattr(node.target, "overloadpacket", None) in kinds:
            sizes = {s for n in node.all_input_nodes for s in n.meta["val"].shape}
            if CAPACITY in sizes or any(isinstance(s, torch.SymInt) for s in sizes):
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
    decoding = recorder.drain()
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
        made = recorder.drain()
        assert lowered_calls(made, FIA if first == 0 else FIA_V2) == sites
    for one in made:
        assert products_over_the_cache(one.module) == []


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


def expanded_for_a_bias(model: Any) -> None:
    """Behind a graph break the additive mask of hand-written attention is an input: it could be any bias.

    Longcat's experts break the graph.
    """
    forward, recorder = compiled(model)
    ours, theirs = (StaticCache(config=model.config, max_cache_len=CAPACITY) for _ in range(2))
    for tokens in (prompt(), prompt(1)):
        got = forward(input_ids=tokens, cache=ours, use_cache=True).logits
        close(got, model(input_ids=tokens, cache=theirs, use_cache=True).logits)
    outcomes = [outcome for one in recorder.drain() for outcome in one.outcomes]
    assert len(outcomes) == 4 and all(o.lowered and o.form == "mla" for o in outcomes)
    assert any("no bias on the scores" in note for o in outcomes for note in o.notes)


@pytest.mark.parametrize("name", MLA_FAMILIES)
def test_one_layer_with_a_static_cache(name: str) -> None:
    family = MLA_FAMILIES[name]
    decode(family.build(layers=1), "static", 4, family.sites(1))


def test_a_growing_cache() -> None:
    decode(MLA_FAMILIES["deepseek_v3"].build(layers=1), "dynamic", 3, 1)


def test_a_hybrid_of_linear_attention_and_mla() -> None:
    family = MLA_FAMILIES["kimi_linear"]
    decode(family.build(layers=2), "static", 2, family.sites(2))


def test_a_left_padded_batch_and_chunks() -> None:
    model = MLA_FAMILIES["deepseek_v3"].build(layers=1)
    padded(model, 1)
    chunked(model)


def test_keys_wider_than_values_are_not_mla_by_themselves() -> None:
    """MiMo-V2 has head dims of its own for keys and values, and no latent."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = hf.MiMoV2FlashConfig(
        **sizes,
        vocab_size=VOCABULARY,
        num_key_value_heads=4,
        head_dim=24,
        v_head_dim=16,
        mlp_layer_types=["dense"],
    )
    torch.manual_seed(0)
    model = hf.MiMoV2FlashForCausalLM._from_config(config, attn_implementation="eager").eval()
    recorder = Recorder()
    got = torch.compile(model.forward, backend=recorder)(input_ids=prompt()).logits
    close(got, model(input_ids=prompt()).logits)
    assert [outcome.form for one in recorder.drain() for outcome in one.outcomes] == ["softmax"]


def test_real_head_dims() -> None:
    """Three heads: a count that the device takes padded only."""
    decode(MLA_FAMILIES["deepseek_v3"].build(REAL, layers=1, heads=3), "static", 2, 1)


@pytest.mark.nightly
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("dims", [TINY, REAL], ids=["tiny", "real"])
@pytest.mark.parametrize("name", MLA_FAMILIES)
def test_every_way_to_call_every_family(name: str, dims: Dims, attention: str) -> None:
    family = MLA_FAMILIES[name]
    model = family.build(dims, attention, heads=4 if dims is TINY else 3)
    if (name, attention) == ("longcat_flash", "eager"):
        expanded_for_a_bias(model)
        return
    decode(model, "static", 32, family.sites(2))
    decode(model, "dynamic", 8, family.sites(2))
    padded(model, family.sites(2))
    chunked(model)
