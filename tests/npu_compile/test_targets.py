"""Which machine a graph is lowered for."""

from __future__ import annotations

import pytest
import torch

from npu_compile.kernels.targets import Target
from npu_compile.options import Options
from npu_compile.pipeline import soc_target, target_of


@pytest.mark.parametrize(
    ("soc", "target"),
    [
        (200, "ascend310p"),
        (220, "ascend910b"),
        (225, "ascend910b"),
        (250, "ascend910_93"),
        (260, "ascend950"),
    ],
)
def test_soc_versions(soc: int, target: str) -> None:
    assert soc_target(soc) is Target(target)


@pytest.mark.parametrize("soc", [123, 206, 249, 261])
def test_unknown_soc_versions_are_named(soc: int) -> None:
    with pytest.raises(RuntimeError, match=str(soc)):
        soc_target(soc)


def test_the_option_wins_over_the_device() -> None:
    inputs = [torch.zeros(1)]
    assert target_of(inputs, Options()) is Target.CPU
    assert target_of(inputs, Options(target=Target.ASCEND950)) is Target.ASCEND950
