"""Do something as soon as torch is imported, without importing it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


def after_torch(action: Callable[[], None]) -> None:
    """Run ``action`` now where torch is imported, otherwise right after ``import torch`` succeeds."""
    if "torch" in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _Finder(action))


class _Finder(MetaPathFinder):
    def __init__(self, action: Callable[[], None]) -> None:
        self.action = action

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
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
