"""The machines a graph can be lowered for."""

from __future__ import annotations

from enum import Enum


class Target(str, Enum):
    """``cpu`` is the reference: the operators' conventions hold, their size and dtype limits don't."""

    CPU = "cpu"
    ASCEND910B = "ascend910b"
    ASCEND910_93 = "ascend910_93"
    ASCEND950 = "ascend950"
    ASCEND310P = "ascend310p"
