"""Do something as soon as torch is imported, without importing it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


def after_torch(action: Callable[[], None], needs: str) -> None:
    """Run ``action`` now where torch is imported, otherwise right after ``import torch`` succeeds.

    ``needs`` is the package that ``action`` imports. Its modules import torch, so that the first of them
    to be imported would start ``action`` while it is half done: importing ``needs`` imports torch first.
    """
    if "torch" in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _Finder(action, needs))


class _Finder(MetaPathFinder):
    def __init__(self, action: Callable[[], None], needs: str) -> None:
        self.action = action
        self.needs = needs

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == self.needs:
            import_module("torch")
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = find_spec("torch")
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.action)
        return spec


class _Loader(Loader):
    """torch's own loader, and then ``action``. A failed import is torch's error, unchanged."""

    def __init__(self, own: Loader, action: Callable[[], None]) -> None:
        self.own = own
        self.action = action

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self.own
        module.__loader__ = self.own
        self.own.exec_module(module)
        self.action()
