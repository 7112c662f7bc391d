"""Imports point one way, npu_compile -> passes -> kernels -> torch, and no module holds a tensor."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
LAYERS = ("kernels", "passes", "npu_compile")
"""Lowest first."""


def layer_of(module: str) -> str | None:
    """The layer that a module belongs to by its imported name; None for what isn't ours."""
    first, _, rest = module.partition(".")
    if first != "npu_compile":
        return None
    second = rest.partition(".")[0]
    return second if second in LAYERS[:2] else "npu_compile"


def imported_modules(source: str, module: str, is_package: bool) -> Iterator[str]:
    """Absolute names of all that ``module`` imports, inside functions too."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = [*base, *(node.module.split(".") if node.module else [])]
            yield from (".".join([*stem, alias.name]) for alias in node.names)


def modules_of(layer: str) -> Iterator[tuple[str, Path]]:
    """(imported name, file) of each of a layer's modules."""
    for path in sorted((ROOT / layer).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        inside = parts if layer == "npu_compile" else ("npu_compile", *parts)
        if layer == "npu_compile" and parts[1] in LAYERS:
            continue  # the editable install shows the other layers in here
        yield ".".join(inside).removesuffix(".__init__"), path


def upward(source: str, module: str, is_package: bool) -> list[str]:
    own = layer_of(module)
    assert own is not None
    found = ((name, layer_of(name)) for name in imported_modules(source, module, is_package))
    return [name for name, layer in found if layer and LAYERS.index(layer) > LAYERS.index(own)]


@pytest.mark.parametrize("layer", LAYERS)
def test_no_module_imports_from_a_layer_above_its_own(layer: str) -> None:
    modules = list(modules_of(layer))
    assert len(modules) > 20
    found = {
        module: names
        for module, path in modules
        if (names := upward(path.read_text(), module, path.stem == "__init__"))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("npu_compile.kernels.cpu.fia", "from npu_compile.passes.site import Views"),
        ("npu_compile.kernels.cpu.fia", "from ...passes import site"),
        ("npu_compile.kernels.layouts", "def f():\n    import npu_compile.options"),
        ("npu_compile.passes.site", "from .. import errors"),
        ("npu_compile.passes.mask.plan", "from npu_compile import report"),
    ],
)
def test_an_import_from_above_is_found(module: str, source: str) -> None:
    assert len(upward(source, module, is_package=False)) == 1


def test_an_import_from_below_is_none_from_above() -> None:
    source = "import torch\nfrom ..kernels.targets import Target\nfrom npu_compile.passes import site"
    assert upward(source, "npu_compile.runtime.split", is_package=False) == []
    assert upward("from ..kernels import layouts", "npu_compile.passes.site", is_package=False) == []


def tensors_in(value: object, depth: int = 2) -> bool:
    """Whether ``value`` is a tensor or a collection with one."""
    if isinstance(value, torch.Tensor):
        return True
    if depth and isinstance(value, dict):
        return any(tensors_in(held, depth - 1) for held in value.values())
    return (
        bool(depth) and isinstance(value, (list, tuple, set)) and any(tensors_in(v, depth - 1) for v in value)
    )


def test_no_module_holds_a_tensor() -> None:
    """Of all modules that this process has loaded, after whatever it ran."""
    import npu_compile.backend  # noqa: F401

    ours = {name: module for name, module in sys.modules.items() if layer_of(name)}
    assert len(ours) > 100
    found = [
        f"{name}.{attribute}"
        for name, module in ours.items()
        for attribute, value in vars(module).items()
        if tensors_in(value)
    ]
    assert found == []
    assert tensors_in({"mask": [torch.zeros(1)]})
