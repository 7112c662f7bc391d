import dataclasses
from pathlib import Path

import pytest
import torch
from transformers import CompileConfig

from npu_compile.errors import AscendFiaError
from npu_compile.kernels.targets import Target
from npu_compile.options import Options, markdown_table, parse

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("mode", "capture"),
    [
        (None, False),
        ("default", False),
        ("reduce-overhead", True),
        ("max-autotune", True),
        ("max-autotune-no-cudagraphs", False),
    ],
)
def test_every_mode_of_torch_compile_is_taken(mode, capture):
    assert parse(mode).capture is capture


def test_torch_has_no_other_mode():
    modes = set(torch._inductor.list_mode_options()) - {"lite"}
    assert modes == {"default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"}


def test_what_transformers_passes_by_default_is_taken():
    config = CompileConfig()
    assert parse(config.mode, config.options) == Options(capture=True)


def test_options_win_over_the_mode():
    assert parse("reduce-overhead", {"capture": False}).capture is False


def test_values_are_typed():
    assert parse(options={"target": "ascend910b"}).target is Target.ASCEND910B
    assert parse(options={"target": Target.ASCEND950}).target is Target.ASCEND950
    assert parse(options={"inner_backend": "inductor"}).inner_backend == "inductor"
    assert parse(options={"capture_sizes": [8, 2, 2]}).capture_sizes == (2, 8)


@pytest.mark.parametrize(
    ("mode", "options", "parts"),
    [
        ("fast", None, ["mode='fast'", "unknown mode", "'reduce-overhead'"]),
        ("max-autotun", None, ["mode='max-autotun'", "did you mean 'max-autotune'?"]),
        (["default"], None, ["mode=['default']", "unknown mode"]),
        (None, {"captrue": True}, ["options['captrue']=True", "did you mean 'capture'?", "inner_backend"]),
        (None, {3: 4}, ["options[3]=4", "unknown option"]),
        (None, [("capture", True)], ["options=[('capture', True)]", "mapping"]),
        (None, {"capture": 1}, ["options['capture']=1", "int is not a bool", "True or False"]),
        (None, {"strict": "yes"}, ["options['strict']='yes'", "str is not a bool"]),
        (None, {"strict": None}, ["options['strict']=None", "NoneType is not a bool"]),
        (None, {"capture_sizes": []}, ["options['capture_sizes']=[]", "with something in it"]),
        (
            None,
            {"capture_sizes": [1, 0]},
            ["options['capture_sizes']=[1, 0]", "0 is not an int"],
        ),
        (None, {"capture_sizes": [True]}, ["True is not an int of at least 1"]),
        (None, {"capture_sizes": [2.0]}, ["2.0 is not an int of at least 1"]),
        (None, {"capture_sizes": 8}, ["options['capture_sizes']=8", "int is not a sequence"]),
        (None, {"capture_overflow": "raise"}, ["options['capture_overflow']='raise'", "'error'"]),
        (None, {"target": "910b"}, ["options['target']='910b'", "'ascend910b'", "None"]),
        (None, {"target": 220}, ["options['target']=220", "'ascend310p'"]),
        (None, {"target": ["cpu"]}, ["options['target']=['cpu']"]),
        (None, {"inner_backend": "inducter"}, ["options['inner_backend']='inducter'", "'inductor'?"]),
        (None, {"inner_backend": "ascend_fia"}, ["options['inner_backend']='ascend_fia'", "except"]),
        (None, {"inner_backend": print}, ["options['inner_backend']=", "not a str"]),
    ],
)
def test_a_bad_value_is_named_with_what_is_allowed(mode, options, parts):
    with pytest.raises(AscendFiaError) as caught:
        parse(mode, options)
    missing = [part for part in parts if part not in str(caught.value)]
    assert not missing, str(caught.value)


def test_options_made_directly_are_checked_too():
    with pytest.raises(AscendFiaError, match=r"options\['capture'\]='no'"):
        Options(capture="no")


def test_options_are_frozen_and_compare_by_value():
    with pytest.raises(dataclasses.FrozenInstanceError):
        parse().strict = True
    assert parse("default") == parse() != parse(options={"strict": True})


def test_a_signature_compares_by_value_and_holds_no_objects():
    import torch.distributed as dist

    assert parse().signature() == parse("default").signature() != parse("reduce-overhead").signature()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        asked = {"context_parallel": {"mode": "decode"}}
        first, second = parse(options=asked), parse(options=asked)
        assert first.signature() == second.signature() != parse().signature()
        assert first.context_parallel not in first.signature()
    finally:
        dist.destroy_process_group()


def test_every_option_is_documented():
    assert markdown_table() in (DOCS / "options.md").read_text(), "run `npu-compile options`"


def test_a_captured_graph_takes_no_inner_backend() -> None:
    with pytest.raises(AscendFiaError, match=r"inner_backend.*aot_eager.*capture"):
        parse("reduce-overhead", {"inner_backend": "aot_eager"})
    assert not parse("reduce-overhead", {"inner_backend": "aot_eager", "capture": False}).capture
