"""The option's checks, and which models are refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from npu_compile.errors import AscendFiaError
from npu_compile.options import parse
from npu_compile.parallel import context_parallel
from npu_compile.parallel.layout.interleave import Interleave
from npu_compile.parallel.supported import unsupported
from npu_compile.passes.context_parallel.config import StepInputs

from .ranks import results, run_ranks
from .tiny import prompts_of, tiny


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("prefill", "str is not a mapping"),
        ({"mode": "prefil"}, r"mode 'prefil' is not one of 'prefill', 'decode' \(did you mean 'prefill'\?\)"),
        ({"mode": "decode", "gruop": None}, r"unknown key 'gruop' \(did you mean 'group'\?\)"),
        ({"mode": "decode", "heads": "split"}, "heads 'split' is not one of"),
        ({"mode": "prefill", "heads": "sharded"}, "heads 'sharded' is for mode 'decode'"),
        ({"mode": "prefill"}, "mode 'prefill' needs a StepInputs"),
        ({"mode": "decode", "steps": StepInputs()}, "mode 'decode' has none"),
        ({"mode": "decode"}, "start with torchrun"),
    ],
)
def test_bad_values_are_named(value, named):
    with pytest.raises(AscendFiaError, match=named) as raised:
        parse(None, {"context_parallel": value})
    assert "start with" in named or raised.value.argument == "options['context_parallel']"


def test_it_is_off_by_default():
    assert parse().context_parallel is None


def test_models_that_mix_tokens_otherwise_are_refused():
    layout = Interleave(2)
    assert unsupported(tiny("llama"), 64, layout) is None
    assert "not a Hugging Face model" in unsupported(nn.Linear(2, 2), 64, layout)
    model = tiny("llama")
    model.set_attn_implementation("eager")
    assert "call model.set_attn_implementation('sdpa')" in unsupported(model, 64, layout)
    for change, reason in (
        ({"sliding_window": 33}, "a sliding window of 33 must be a multiple of 2"),
        ({"sliding_window": 32}, "layer 0 has a sliding window by its config and another mask by its code"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "layers of type linear_attention"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope of type 'dynamic'"),
        ({"is_encoder_decoder": True}, "an encoder-decoder"),
    ):
        model = tiny("llama")
        model.config.max_position_embeddings = 48
        for name, value in change.items():
            setattr(model.config, name, value)
        assert reason in unsupported(model, 64, layout)
    model = tiny("llama")
    model.model.norm = nn.Sequential(nn.Conv1d(1, 1, 1))
    assert "model.norm.0 (Conv1d) mixes tokens" in unsupported(model, 64, layout)
    model = tiny("llama")
    model._is_stateful = True
    assert "a state from token to token" in unsupported(model, 64, layout)


def test_an_unknown_option_is_named_before_anything_runs():
    with pytest.raises(AscendFiaError, match=r"options\['mlaa'\].*did you mean 'mla'"):
        context_parallel(tiny("llama"), max_length=64, options={"mlaa": "absorb"})


@pytest.mark.parametrize("max_length", [0, -1, 64.0, True])
def test_a_max_length_is_a_length(max_length):
    with pytest.raises(AscendFiaError, match=f"max_length={max_length}: must be an int"):
        context_parallel(tiny("llama"), max_length=max_length)


def test_a_window_that_never_hides_anything_is_no_reason():
    model = tiny("llama")
    model.config.sliding_window = 64
    assert unsupported(model, 64, Interleave(3)) is None


def _bad_calls(rank):
    parallel = context_parallel(tiny("llama"), max_length=24)
    errors = []
    for call in (
        lambda: parallel.decode(torch.tensor([1])),
        lambda: parallel.prefill([]),
        lambda: parallel.prefill([[1, 2], []]),
        lambda: parallel.prefill([1, 2, 3]),
        lambda: parallel.prefill(torch.tensor([1, 2, 3])),
        lambda: parallel.prefill(["a prompt", "another"]),
        lambda: parallel.prefill([[1.5, 2.5]]),
        lambda: parallel.generate(prompts_of((8, 20)), 6),
        lambda: parallel.generate(prompts_of((8,)), 0),
        lambda: parallel.prefill(prompts_of((25,))),
        lambda: parallel.prefill(prompts_of((8, 24))),
        lambda: parallel.prefill(prompts_of((8,))),
        lambda: parallel.decode(torch.tensor([1])),
        lambda: parallel.decode(torch.tensor([1, 2])),
        lambda: parallel.prefill([[1, 2, 3], [4]]),
    ):
        try:
            call()
            errors.append("")
        except AscendFiaError as error:
            errors.append(str(error))
    return errors, parallel.lengths.tolist()


def test_bad_calls_are_named_and_change_nothing():
    for errors, lengths in results(run_ranks(2, _bad_calls)):
        early, empty, hole, *no_lists, no_room, no_tokens, long = errors[:10]
        good, other_batch, too_few, full, short = errors[10:]
        assert good == ""
        assert "0 sequences that were prefilled" in early and "at least one sequence" in empty
        assert len(no_lists) == 4 and all("a list of token ids" in error for error in no_lists)
        assert "prompts=[13, 25]" in no_room and "max_new_tokens=0: must be at least 1" in no_tokens
        assert "a token in each" in hole and "more than max_length=24" in long
        assert "the batch has 2 sequences" in other_batch and "one token for each of the 2" in too_few
        assert "after [8, 24] tokens that is more than max_length=24" in full
        assert "more than max_length=24" in short
        assert lengths == [8, 24]
