"""What the recogniser says about the attention of a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from npu_compile.passes.mla.recognise import recognise_mla
from npu_compile.passes.mla.site import MlaSite, NotAbsorbable
from npu_compile.passes.recognise import recognise
from npu_compile.passes.recognise.assemble import Surroundings
from tests.passes.graphs import aten_graph


def found_in(module: fx.GraphModule) -> list[MlaSite | NotAbsorbable | None]:
    around = Surroundings(module.graph)
    return [recognise_mla(site, around) for site in recognise(module.graph).sites]


def only(function: Callable[..., Any], *tensors: Any) -> MlaSite | NotAbsorbable | None:
    (found,) = found_in(aten_graph(function, *tensors))
    return found
