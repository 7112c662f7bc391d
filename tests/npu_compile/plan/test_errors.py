"""What is wrong with an argument is said with the argument, its value and the rule."""

from __future__ import annotations

import json

import pytest

import npu_compile
from npu_compile import AscendFiaError
from npu_compile.cli import main
from tests.npu_compile.plan.tiny import LLAMA, VIT

GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_layer": 2, "n_head": 4,
        "n_positions": 64, "vocab_size": 97}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "arguments", "argument", "rule"),
    [
        ("nowhere/config.json", {}, "config", "no such file or folder"),
        (3, {}, "config", "must be a path, a mapping"),
        ({"hidden_size": 3}, {}, "config", "has a 'model_type'"),
        ({"model_type": "lama"}, {}, "config['model_type']", "did you mean 'llama'"),
        ({**LLAMA, "num_attention_heads": 5}, {}, "config", "64"),
        (LLAMA, {"target": "ascend910"}, "target", "'ascend910b'"),
        (LLAMA, {"dtype": "int8"}, "dtype", "'bfloat16'"),
        (LLAMA, {"batch": 0}, "batch", "0"),
        (LLAMA, {"prompt": "many"}, "prompt", "int"),
        (LLAMA, {"prompt": 17, "cache": 17}, "cache", "must hold the prompt of 17 tokens and one more"),
        (GPT2, {"prompt": 65}, "prompt", "64 positions"),
        (GPT2, {"prompt": 17, "cache": 65}, "cache", "64 positions"),
    ],
)
def test_bad_arguments_are_named(config, arguments, argument, rule):
    with pytest.raises(AscendFiaError) as raised:
        npu_compile.plan(config, **arguments)
    assert raised.value.argument == argument
    assert rule in raised.value.rule


@pytest.mark.parametrize(
    ("content", "rule"),
    [("[1, 2]", "a JSON object"), ("{", "not a JSON file"), (json.dumps({"a": 1}), "has a 'model_type'")],
)
def test_files_that_are_no_config(content, rule, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(AscendFiaError, match=rule) as raised:
        npu_compile.plan(path)
    assert raised.value.value == str(path)


def test_a_folder_without_a_config(tmp_path):
    with pytest.raises(AscendFiaError, match="the folder has no config"):
        npu_compile.plan(tmp_path)


@pytest.mark.parametrize(
    ("files", "argument", "rule"),
    [
        (("--json", "p.json", "--html", "nowhere/p.html"), "html", "its folder doesn't exist"),
        (("--json", "."), "json", "not a folder"),
        (("--json", "p", "--html", "./p"), "html", "another file than that of --json"),
    ],
)
def test_files_are_checked_before_anything_is_planned(files, argument, rule, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "--config", "nowhere.json", *files]) == 2
    told = capsys.readouterr().err
    assert argument in told and rule in told
    assert list(tmp_path.iterdir()) == []


def test_unknown_architectures_are_told():
    made = npu_compile.plan({**LLAMA, "architectures": ["FooForCausalLM"]}, target="cpu", prompt=17)
    assert made.model == "LlamaForCausalLM"
    assert any("no FooForCausalLM" in note for note in made.notes)


def test_the_command_prints_the_error_and_exits_with_2(capsys, tmp_path):
    assert main(["plan", "--config", str(tmp_path / "none.json")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("npu-compile: config=") and "no such file" in error


def test_what_has_no_meaning_is_said():
    plan = npu_compile.plan(VIT, prompt=17, cache=54)
    assert plan.prompt is None and plan.cache is None
    assert [note.partition(":")[0] for note in plan.notes] == [
        "prompt has no meaning for this model",
        "cache has no meaning for this model",
    ]


@pytest.mark.parametrize(("target", "dtype"), [("cpu", "bfloat16"), ("ascend950", "bfloat16")])
def test_without_published_figures_there_is_no_estimate(target, dtype):
    plan = npu_compile.plan(VIT, target=target, dtype=dtype)
    assert plan.machine is None and plan.no_estimate
    assert all(site.estimate is None for site in plan.sites)
    assert plan.steps[0].seconds is None
    assert plan.no_estimate in str(plan) and plan.no_estimate in plan.html()


def test_attention_that_the_operator_refuses_keeps_its_cost_and_its_rule():
    plan = npu_compile.plan(VIT, dtype="float32")
    (site,) = plan.sites
    assert not site.site.lowered and "float32" in site.site.reason
    assert site.cost == site.program and site.cost.flops == 2 * 4 * 17 * 17 * 32
