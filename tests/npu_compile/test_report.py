import dataclasses
import json

import pytest

from npu_compile.passes.site import SiteOutcome
from npu_compile.report import GraphReport, Report
from npu_compile.report_table import render

LEFT = "the probabilities are returned too: call the model without output_attentions"


def lowered(layer, **changes):
    values = {
        "name": f"attention_{layer}",
        "form": "sdpa",
        "module_path": f"model.layers.{layer}.self_attn",
        "source": "/a/b/modeling_llama.py:250",
        "mask": "causal, aligned bottom-right",
        "op": "ascend_fia.npu_fused_infer_attention_score",
        "input_layout": "BNSD",
        "sparse_mode": 3,
        "lengths": "kv: cache length + 1",
        "num_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "value_head_dim": 64,
        "query_len": "17",
        "key_len": "1024",
        "cache": "static",
    }
    return SiteOutcome(**{**values, **changes})


def left(layer):
    path = f"model.layers.{layer}.cross_attn"
    return SiteOutcome(f"cross_{layer}", "softmax", path, "/a/b/modeling_llama.py:310", reason=LEFT)


@pytest.fixture
def report():
    prefill = GraphReport(
        "0/0",
        (*(lowered(layer) for layer in range(6)), *(left(layer) for layer in (0, 2, 4))),
        "ascend910b",
        "reference (cpu)",
        {"normalise": 0.25, "lower": 0.5},
        ("a note on the graph",),
    )
    decode = GraphReport("0/1", (lowered(0, query_len="1", notes=("a note on the site",)),))
    return Report((prefill, decode, GraphReport("1/0")))


def test_counts(report):
    assert (len(report.sites), len(report.lowered), len(report.left)) == (10, 7, 3)
    assert [len(graph.lowered) for graph in report.graphs] == [6, 1, 0]
    assert {site.reason for site in report.left} == {LEFT}


def test_to_dict_is_json_and_complete(report):
    data = report.to_dict()
    assert json.loads(json.dumps(data)) == data
    assert (data["sites"], data["lowered"]) == (10, 7)
    first = data["graphs"][0]
    assert first["timings"] == {"normalise": 0.25, "lower": 0.5}
    assert first["notes"] == ["a note on the graph"]
    assert first["sites"][5]["module_path"] == "model.layers.5.self_attn"
    assert first["sites"][5]["source"] == "/a/b/modeling_llama.py:250"
    assert [site["lowered"] for site in first["sites"]] == [True] * 6 + [False] * 3
    assert first["sites"][8]["reason"] == LEFT


@pytest.mark.parametrize("width", [80, 100, 120])
def test_the_table_fits_the_terminal(report, width):
    assert max(map(len, render(report, width).splitlines())) <= width


def test_the_table_says_everything(report):
    text = " ".join(render(report, 120).split())
    for part in (
        "7 of 10 attention computations lowered",
        "graph 0/0 · target ascend910b · reference (cpu) · 6 of 9 lowered · 0.75 s • a note on the graph",
        "6 model.layers.{0-5}.self_attn causal, aligned bottom-right fused_infer_attention_score 8/2 heads",
        "sdpa modeling_llama.py:250 kv: cache length + 1 BNSD, sparse_mode 3 Q 17, K 1024 static cache",
        f"left as it was: model.layers.{{0,2,4}}.cross_attn (softmax modeling_llama.py:310): {LEFT}",
        "model.layers.0.self_attn: a note on the site",
        "graph 1/0 · target cpu · no attention",
    ):
        assert part in text


def test_a_graph_that_was_not_looked_at_is_not_said_to_have_no_attention():
    text = render(Report((GraphReport("0/0", notes=("left differentiable: gradients are needed",)),)), 120)
    assert "left differentiable" in text and "no attention" not in text


def test_str_is_the_table(report):
    assert str(report) == render(report)


def test_layers_with_other_numbers_are_one_row_only_if_nothing_else_differs():
    same = Report((GraphReport("0/0", (lowered(0), lowered(1), lowered(2, sparse_mode=4))),))
    text = render(same, 120)
    assert "model.layers.{0-1}.self_attn" in text
    assert "model.layers.2.self_attn" in text


def test_paths_that_are_no_product_of_ranges_are_not_written_as_one():
    sites = tuple(lowered(0, module_path=f"stage.{a}.block.{b}") for a, b in [(0, 0), (0, 1), (1, 0)])
    text = render(Report((GraphReport("0/0", sites),)), 120)
    assert "stage.0.block.0 and others" in text
    assert "{" not in text


def test_sites_without_a_module_are_named_by_their_nodes():
    names = ("scaled_dot_product_attention", "scaled_dot_product_attention_1")
    sites = tuple(dataclasses.replace(lowered(0, module_path=""), name=name) for name in names)
    assert "and others" in render(Report((GraphReport("0/0", sites),)), 120)


def test_different_dims_of_keys_and_values_are_shown():
    text = render(Report((GraphReport("0/0", (lowered(0, head_dim=192, value_head_dim=128),)),)))
    assert "8/2 heads, dim 192/128" in text


def test_an_empty_report_says_so():
    assert str(Report()) == "ascend_fia: nothing compiled yet"
