"""A plan of the first layers is the plan of all of them."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

import npu_compile
from npu_compile.planning.layer_kinds import stack_of
from npu_compile.planning.words import layer_span
from tests.npu_compile.plan.tiny import DEEPSEEK_V3, GEMMA3, LLAMA, OPT, T5, VIT


def everything(plan):
    """Step by step: totals, and every site of the report by where it is."""
    found = []
    for step in plan.steps:
        sites = [dataclasses.replace(site, name="") for site in step.report.sites]
        count = sum(site.count for site in step.sites)
        found.append((step.program, step.cost, count, sorted(sites, key=lambda site: site.module_path)))
    return found


@pytest.mark.parametrize(
    ("config", "planned"),
    [
        pytest.param(LLAMA, [1], id="llama"),
        pytest.param(DEEPSEEK_V3, [2], id="deepseek_v3"),
        pytest.param(VIT, [1], id="vit"),
        pytest.param(GEMMA3, [3], id="gemma3", marks=pytest.mark.nightly),
        pytest.param(T5, [2, 2], id="t5", marks=pytest.mark.nightly),
    ],
)
def test_fewer_layers_give_the_plan_of_all_layers(config, planned):
    sizes = {} if config is VIT else {"prompt": 54}
    short = npu_compile.plan(config, batch=3, **sizes)
    full = npu_compile.plan(config, batch=3, **sizes, every_layer=True)
    assert [stack.planned for stack in short.stacks] == planned
    assert [stack.planned for stack in full.stacks] == [stack.layers for stack in short.stacks]
    assert all(site.count == 1 for site in full.sites)
    assert len(short.sites) < len(full.sites)
    for fewer, every in zip(everything(short), everything(full), strict=True):
        assert fewer[:3] == every[:3]
        assert [described(site) for site in fewer[3]] == [described(site) for site in every[3]]
    assert [step.seconds for step in short.steps] == pytest.approx([step.seconds for step in full.steps])


def test_a_layer_behind_a_graph_break_stands_for_its_kind():
    plan = npu_compile.plan(OPT, batch=2, prompt=17)
    for step in plan.steps:
        (site,) = step.sites
        assert (site.where, site.count) == ("model.decoder.layers.{0-2}.self_attn", 3)
        assert len(step.report.sites) == 3


def described(site):
    """All of a site but the names of the tensors in its words, which number the layers."""
    return dataclasses.replace(site, mask="", lengths="", notes=(), source="")


def test_the_output_says_how_many_layers_were_planned():
    text = str(npu_compile.plan(LLAMA, batch=1, prompt=17))
    assert "model.layers: 4 identical layers, planned once" in text
    assert "model.layers.{0-3}.self_attn" in text


@pytest.mark.nightly
def test_pictures_are_planned_beside_the_text():
    vision = {**VIT, "model_type": "siglip_vision_model", "num_hidden_layers": 5, "vision_use_head": False}
    config = {
        "model_type": "gemma3",
        "architectures": ["Gemma3ForConditionalGeneration"],
        "mm_tokens_per_image": 4,
        "text_config": GEMMA3,
        "vision_config": vision,
    }
    plan = npu_compile.plan(config, batch=2, prompt=54)
    assert [step.name for step in plan.steps] == ["prefill", "decode", "picture"]
    (site,) = plan.steps[2].sites
    assert site.where == "model.vision_tower.encoder.layers.{0-4}.self_attn"
    assert site.program.flops == 2 * 2 * 4 * 16 * 16 * 32
    assert all(stack.met for stack in plan.stacks)


class Layer(nn.Module):
    def __init__(self, index, window=None, width=8):
        super().__init__()
        self.layer_idx = index
        self.window = window
        self.project = nn.Linear(width, 8)


@pytest.mark.parametrize(
    ("layers", "config", "kinds"),
    [
        ([Layer(0), Layer(1), Layer(2)], {}, (0, 0, 0)),
        ([Layer(0, 5), Layer(1), Layer(2, 5)], {}, (0, 1, 0)),
        ([Layer(0), Layer(1, width=4), Layer(2)], {}, (0, 1, 0)),
        ([Layer(0), Layer(0), Layer(0)], {}, (0, 0, 0)),
        ([Layer(0), Layer(0), Layer(1)], {}, (0, 0, 1)),
        ([Layer(0), Layer(1), Layer(2)], {"text": {"layer_types": ["a", "a", "b"]}}, (0, 0, 1)),
        ([Layer(0), Layer(1), Layer(2)], {"moe_layers": [0, 1, 2]}, (0, 0, 0)),
    ],
)
def test_kinds_of_layers(layers, config, kinds):
    assert stack_of("layers", layers, config).kinds == kinds


def test_layers_of_another_dtype_are_of_another_kind():
    stack = stack_of("layers", [Layer(0), Layer(1).to(torch.bfloat16)], {})
    assert stack.kinds == (0, 1)
    assert stack.needed == 2


def test_spans_of_layers():
    assert layer_span([3]) == "3"
    assert layer_span(range(4)) == "{0-3}"
    assert layer_span([0, 2, 4]) == "{0,2,4}"
    assert layer_span([0, 2, 4, 6, 8, 10]) == "{0,2,4,..,10}"
