import gc
import re
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

import npu_compile
from npu_compile import AscendFiaError, explain

HERE = Path(__file__).name


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(64, 128)

    def forward(self, x):
        q, k = self.project(x).unflatten(-1, (8, 16)).transpose(1, 2).split([6, 2], dim=1)
        return nn.functional.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True)


class Model(nn.Module):
    def __init__(self, breaks=False):
        super().__init__()
        self.layers = nn.ModuleList([Attention(), Attention()])
        self.breaks = breaks

    def forward(self, x):
        first = self.layers[0](x)
        if self.breaks:
            torch._dynamo.graph_break()
        return first, self.layers[1](x)


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    with torch.no_grad():
        yield


@pytest.fixture
def x():
    return torch.randn(2, 17, 64)


def test_says_what_became_of_each_attention(x):
    report = explain(Model(), x, quiet=True)
    assert len(report.graphs) == 1
    assert report.graphs[0].execution == "reference (cpu)"
    assert [site.module_path for site in report.sites] == ["layers.0", "layers.1"]
    for site in report.sites:
        assert site.lowered and site.op.endswith("npu_fused_infer_attention_score")
        assert (site.form, site.num_heads, site.num_key_value_heads) == ("sdpa", 6, 2)
        assert (site.head_dim, site.value_head_dim) == (16, 16)
        assert (site.query_len, site.key_len) == ("17", "17")
        assert "causal" in site.mask
        assert re.fullmatch(rf".*{HERE}:\d+", site.source)
        line = Path(__file__).read_text().splitlines()[int(site.source.rpartition(":")[2]) - 1]
        assert "scaled_dot_product_attention(q, k, k" in line


def test_prints_the_table_unless_quiet(x, capsys):
    explain(Model(), x, quiet=True)
    assert capsys.readouterr().out == ""
    report = explain(Model(), x)
    assert "2 of 2 attention computations lowered" in capsys.readouterr().out
    assert "layers.{0-1}" in str(report)


def test_what_is_not_lowered_is_listed_with_a_reason(x):
    def dropped_out(x):
        return nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5)

    report = explain(dropped_out, x.unsqueeze(1), quiet=True)
    (site,) = report.left
    assert "dropout" in site.reason


def test_the_users_compiled_model_stays_as_it_was(x):
    model = Model()
    compiled = torch.compile(model, backend="ascend_fia", dynamic=False)
    compiled(x)
    compiled(torch.randn(1, 5, 64))
    before = npu_compile.last_report()
    assert len(before.graphs) == 2
    explain(model, x, quiet=True)
    compiled(x)
    compiled(torch.randn(1, 5, 64))
    assert npu_compile.last_report() == before


@pytest.mark.parametrize("breaks", [False, True])
@torch._dynamo.config.patch(recompile_limit=2)
def test_can_be_asked_more_often_than_dynamo_recompiles(x, breaks):
    model = Model(breaks)
    for _ in range(4):
        report = explain(model, x, quiet=True)
        assert (len(report.graphs), len(report.lowered)) == (1 + breaks, 2)


def test_a_model_that_is_compiled_already_can_be_explained(x):
    model = Model()
    model.forward = torch.compile(model.forward, backend="ascend_fia")
    model(x)
    assert len(explain(model, x, quiet=True).lowered) == 2
    assert len(explain(torch.compile(Model()), x, quiet=True).lowered) == 2


def test_training_is_left_differentiable_and_said(x):
    model = Model()
    with torch.enable_grad():
        report = explain(model, x, quiet=True)
        assert not report.lowered
        assert "differentiable" in str(report)
        out, _ = torch.compile(model, backend="ascend_fia")(x)
        out.sum().backward()
    assert model.layers[0].project.weight.grad.abs().sum() > 0
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with torch.enable_grad():
        assert len(explain(model, x, quiet=True).lowered) == 2


def test_nothing_is_kept_alive(x):
    model = Model()
    dead = [weakref.ref(model), weakref.ref(model.layers[0].project.weight)]
    report = explain(model, x, quiet=True)
    del model
    gc.collect()
    assert [reference() for reference in dead] == [None, None]
    assert len(report.lowered) == 2


def test_options_are_those_of_torch_compile(x):
    report = explain(Model(), x, options={"target": "ascend910b"}, quiet=True)
    assert report.graphs[0].target == "ascend910b"
    with pytest.raises(AscendFiaError, match="did you mean 'target'"):
        explain(Model(), x, options={"targte": "cpu"})


def test_a_causal_language_model_with_a_static_cache():
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = LlamaForCausalLM(config).eval()
    cache = StaticCache(config=config, max_cache_len=54)
    tokens = torch.randint(0, 64, (2, 18))
    model(input_ids=tokens[:, :17], cache=cache)
    report = explain(model, input_ids=tokens[:, 17:], cache=cache, quiet=True)
    paths = [site.module_path for site in report.lowered]
    assert paths == [f"model.layers.{layer}.self_attn" for layer in range(3)]
    assert {site.cache for site in report.lowered} == {"static"}
    assert {(site.query_len, site.key_len) for site in report.lowered} == {("1", "54")}
    assert cache.get_seq_length() == 18
