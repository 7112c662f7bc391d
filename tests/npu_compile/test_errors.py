import pickle

import torch

from npu_compile.errors import AscendFiaError


def test_names_argument_value_and_rule():
    error = AscendFiaError("scale", float("nan"), "must be finite")
    assert isinstance(error, ValueError)
    assert str(error) == "scale=nan: must be finite"
    assert (error.argument, error.rule) == ("scale", "must be finite")


def test_a_tensor_is_described_and_not_printed():
    error = AscendFiaError("atten_mask", torch.zeros(3, 5, dtype=torch.bfloat16), "must be bool")
    assert str(error) == "atten_mask=Tensor(bfloat16, (3, 5), cpu): must be bool"


def test_a_long_value_is_shortened():
    assert len(str(AscendFiaError("sizes", list(range(10_000)), "too many"))) < 100


def test_survives_pickling():
    error = pickle.loads(pickle.dumps(AscendFiaError("mode", "fast", "unknown mode")))
    assert str(error) == "mode='fast': unknown mode"
