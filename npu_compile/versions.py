"""Which torch and torch-npu work together: the rules as data, and the check made before a graph runs.

torch-npu is asked for only where tensors live on an NPU. Everywhere else the reference
kernels run; a torch-npu that is installed but can't be used is then reported, not hidden.
Nothing here imports torch, so that `npu-compile doctor` works where ``import torch`` fails.

Sources: torch_npu's documentation pairs every torch-npu with the torch of the same
major.minor; dlinfer's FIA backend asks for the same minimum and for ``NPUGraph.update``.
"""

from __future__ import annotations

import importlib.metadata
import sys
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

MINIMUM = {"torch": Version("2.8.0"), "torch-npu": Version("2.8.0.post1")}


@dataclass(frozen=True)
class Installed:
    """What is installed, as version strings; ``torch_npu`` is None where torch-npu isn't."""

    torch: str
    torch_npu: str | None
    graph_update: bool | None = None
    """``torch.npu.NPUGraph.update`` exists; None where torch-npu isn't loaded."""

    @property
    def pair(self) -> str:
        return f"torch {self.torch} with torch-npu {self.torch_npu or '(not installed)'}"


def violations(installed: Installed) -> list[str]:
    """The rules that ``installed`` breaks, as sentences that name both versions; [] if none."""
    if installed.torch_npu is None:
        return [f"{installed.pair}: an NPU needs torch-npu: pip install 'npu-compile[npu]'"]
    versions = {}
    for package, text in (("torch", installed.torch), ("torch-npu", installed.torch_npu)):
        try:
            versions[package] = Version(text)
        except InvalidVersion:
            return [f"{installed.pair}: cannot parse {package} version {text!r}"]
    torch, npu = versions["torch"], versions["torch-npu"]
    broken = [f"{name} >= {low} is needed" for name, low in MINIMUM.items() if versions[name] < low]
    if torch.release[:2] != npu.release[:2]:
        broken.append("both must have the same major.minor version")
    if npu.is_prerelease and not torch.is_prerelease:
        broken.append("a pre-release of torch-npu does not match a released torch")
    if installed.graph_update is False:
        broken.append("torch.npu.NPUGraph.update is missing")
    return [f"{installed.pair}: {rule}" for rule in broken]


def installed() -> Installed:
    """What is installed for this Python, read from package metadata and the modules loaded."""
    torch, npu = version("torch") or "(not installed)", version("torch-npu")
    if "torch_npu" not in sys.modules:
        return Installed(torch, npu)
    graph = getattr(sys.modules["torch"].npu, "NPUGraph", None)
    return Installed(torch, npu, callable(getattr(graph, "update", None)))


def version(package: str) -> str | None:
    """The installed version of ``package``, None where it isn't installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@dataclass(frozen=True)
class Execution:
    """Where a graph runs, and what a user should know about it."""

    where: str
    notes: tuple[str, ...] = ()


def execution(device: str, found: Installed | None = None) -> Execution:
    """Where a graph with tensors on ``device`` (a device type) runs.

    Raises RuntimeError, with both versions, for ``"npu"`` where a rule is broken.
    """
    found = found or installed()
    broken = violations(found)
    if device == "npu":
        if broken:
            raise RuntimeError("; ".join(broken))
        return Execution("fused operators (npu)")
    where = "shapes only (meta)" if device == "meta" else f"reference ({device})"
    return Execution(where, tuple(broken) if found.torch_npu else ())
