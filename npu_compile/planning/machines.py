"""Peak figures of the machines that roofline estimates are made for, each with its source.

They are what is published, not what was measured, and no program reaches them: an estimate made with
them is a lower bound on the time. A machine without a published figure has no estimate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..kernels.targets import Target


@dataclass(frozen=True)
class Machine:
    """``flops``: dense 16-bit matrix FLOP/s; ``bandwidth``: memory bytes/s; of one torch device."""

    name: str
    flops: float
    bandwidth: float
    source: str
    approximate: str
    """What is uncertain about the figures."""


MACHINES: Mapping[Target, Machine] = {
    Target.ASCEND910B: Machine(
        "Ascend 910B (Atlas 800T A2)",
        313e12,
        1.6e12,
        "Huawei's Atlas 800T A2 white paper (313 and 376 TFLOPS FP16 a processor); memory of the "
        "Atlas 800 A2 device profiles in Ascend's msmodeling",
        "processors of this name are sold with 280, 313 and 376 TFLOPS; the middle one is taken",
    ),
    Target.ASCEND910_93: Machine(
        "Ascend 910C, one die (Atlas A3)",
        376e12,
        1.6e12,
        "Serving Large Language Models on Huawei CloudMatrix384, arXiv 2506.12708: 752 TFLOPS BF16 and "
        "3.2 TB/s a package of two dies",
        "half of a package, which is what torch_npu shows as one device; 560 TFLOPS packages exist too",
    ),
    Target.ASCEND310P: Machine(
        "Ascend 310P, one processor of two (Atlas 300I Duo)",
        70e12,
        204e9,
        "Huawei's Atlas 300I Duo specification: 280 TOPS INT8, 140 TFLOPS FP16 and 408 GB/s a card",
        "half of a card; LPDDR4X memory",
    ),
}

NO_ESTIMATE: Mapping[Target, str] = {
    Target.CPU: "target cpu is the reference, no machine",
    Target.ASCEND950: "of the Ascend 950 only FP8 and FP4 peaks are published, no 16-bit one",
}
"""Why a target has no estimate."""
