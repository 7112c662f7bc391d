"""The comparison notices every change of our tables: each entry is broken in turn, and has to be reported."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from npu_compile.kernels import layouts
from npu_compile.kernels.fakes import FAKES
from npu_compile.kernels.schemas import SCHEMAS

from .compare import output_differences, schema_differences, without_data
from .kinds import Kind, legal
from .test_real_operators import WITHOUT_META, real_schemas

pytestmark = pytest.mark.torch_npu

NO_TENSORS = {"npu_scatter_pa_kv_cache"}


def broken_schemas(schema: str) -> Iterator[str]:
    """A schema with each argument renamed, each default changed, a keyword made positional, a result less."""
    arguments = torch._C.parse_schema(schema).arguments
    for argument in arguments:
        yield re.sub(rf"\b{argument.name}\b(?=[=,)])", f"{argument.name}x", schema)
    for default in re.finditer(r"=([^,)]+)", schema):
        start, end = default.span(1)
        text = default.group(1)
        for other in _other_defaults(text):
            yield schema[:start] + other + schema[end:]
    if "*, " in schema:
        yield schema.replace("*, ", "", 1)
    if schema.endswith("Tensor)"):
        yield schema.removesuffix(")") + ", Tensor)"
    if "(a!)" in schema:
        yield schema.replace("Tensor(a!)", "Tensor")


def _other_defaults(text: str) -> tuple[str, ...]:
    if text in ("True", "False"):
        return ("False" if text == "True" else "True",)
    if text == "None":
        return ()
    if text.startswith('"'):
        return ('"X"',)
    return (f"{text}1" if len(text) < 18 else text[:-1],)


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_changed_schema_is_noticed(name: str, real: dict[str, Any]) -> None:
    judged = real_schemas(real)
    mutants = [schema for schema in broken_schemas(SCHEMAS[name]) if schema != SCHEMAS[name]]
    assert len(mutants) >= 2
    for mutant in mutants:
        assert schema_differences({name: mutant}, judged), mutant
    assert schema_differences({name: SCHEMAS[name]}, judged) == []


@functools.cache
def kinds_of(op: str) -> list[Kind]:
    return [kind for kind in without_data(legal()) if kind.op == op]


def broken_results(fake: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """``fake`` with each result of another shape, and of another dtype."""
    for wrong in (_wider, _retyped):
        for index in range(7):
            yield functools.partial(_with, fake, wrong, index)


def _with(
    fake: Callable[..., Any], wrong: Callable[[Any], Any], index: int, /, *args: Any, **kwargs: Any
) -> Any:
    result = fake(*args, **kwargs)
    results = list(result) if isinstance(result, tuple) else [result]
    if index < len(results):
        results[index] = wrong(results[index])
    return tuple(results) if isinstance(result, tuple) else results[0]


def _wider(result: Any) -> Any:
    if not isinstance(result, torch.Tensor):
        return result
    return result.new_empty([*result.shape[:-1], result.shape[-1] + 1])


def _retyped(result: Any) -> Any:
    return result.to(torch.float64) if isinstance(result, torch.Tensor) else result


def _count(fake: Callable[..., Any], kind: Kind) -> int:
    """How many tensors a call returns."""
    result = fake(**kind.args)
    return sum(isinstance(r, torch.Tensor) for r in (result if isinstance(result, tuple) else [result]))


@pytest.mark.parametrize("op", [op for op in FAKES if op not in WITHOUT_META | NO_TENSORS])
def test_a_changed_result_is_noticed(op: str, real: dict[str, Any]) -> None:
    kinds = kinds_of(op)
    assert kinds, f"no legal call of {op}"
    noticed = 0
    for mutant in broken_results(FAKES[op]):
        noticed += bool(output_differences(kinds, lambda _, mutant=mutant: mutant, real["outputs"]))
    assert noticed == 2 * max(_count(FAKES[op], kind) for kind in kinds)


LAYOUT_MUTANTS = [
    (name, field, other)
    for name, layout in layouts.LAYOUTS.items()
    if name != "NSD"
    for field in ("query", "output")
    for other in ("BSH", "BSND", "BNSD", "TND", "NTD", "NBSD")
    if other != getattr(layout, field) and not (field == "query" and other == "NBSD")
]


@pytest.mark.parametrize("name, field, other", LAYOUT_MUTANTS)
def test_a_changed_layout_is_noticed(
    name: str, field: str, other: str, real: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant = dataclasses.replace(layouts.LAYOUTS[name], **{field: other})
    monkeypatch.setitem(layouts.LAYOUTS, name, mutant)
    for op in ("npu_fused_infer_attention_score", "npu_fused_infer_attention_score_v2"):
        kinds = [kind for kind in kinds_of(op) if kind.args["input_layout"] == name]
        assert output_differences(kinds, FAKES.__getitem__, real["outputs"])
