"""A well-known model family, tiny and random: the compiled model computes what the plain one does.

Every attention computation is lowered. float32 outputs agree to 1e-4 and in their arg-max;
padded positions are left out of the comparison, nothing else is.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import npu_compile
from tests.models.cases import Case, all_cases
from tests.models.tiny import FAMILIES, Family


def runs(attention: str) -> list[Any]:
    """The families and cases with one attention implementation, as pytest parameters."""
    return [
        pytest.param(family, case, id=f"{family.name}-{case.__name__}")
        for family, implementation, case in all_cases(FAMILIES)
        if implementation == attention
    ]


def check(family: Family, attention: str, case: Case) -> None:
    torch._dynamo.reset()
    model = family.build(attention)
    with torch.no_grad():
        expected = case(family, model, model.forward)
        actual = case(family, model, torch.compile(model.forward, backend="ascend_fia"))
    assert len(actual) == len(expected)
    for got, want in zip(actual, expected, strict=True):
        torch.testing.assert_close(got, want, atol=1e-4, rtol=0)
        assert torch.equal(got.argmax(-1), want.argmax(-1))
    report = npu_compile.last_report()
    assert [site.reason for site in report.left] == []
    if case.__name__.startswith("generate"):
        # generate() runs an encoder outside of the compiled forward.
        assert all(len(graph.sites) == family.decoder_sites for graph in report.graphs if graph.sites)
    else:
        assert len(report.sites) % family.sites == 0
    assert report.sites
