"""`npu-compile doctor`: what is installed, what will run where, and what is wrong."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from rich.table import Table
from rich.text import Text

from .console import console
from .versions import Installed, version, violations

PACKAGES = ("npu-compile", "torch", "torch-npu", "transformers", "numpy", "sympy")
AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
CANN_HOME = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
TIMEOUT = 300
"""Seconds that a probe may take: the first compilation on a slow machine takes tens of them."""


@dataclass(frozen=True)
class Probe:
    """What :mod:`npu_compile.probe` found, or the text of the error that kept it from running."""

    found: Mapping[str, Any] | None = None
    error: str = ""


@dataclass(frozen=True)
class Facts:
    """What a diagnosis is made from."""

    packages: Mapping[str, str | None]
    cann: str | None
    registered: bool
    """The entry point of the backend is installed."""
    normal: Probe
    alone: Probe | None = None
    """The probe without torch-npu, run where ``normal`` failed and torch-npu is installed."""


@dataclass(frozen=True)
class Diagnosis:
    """``runs``: by device type, what will run there; ``wrong``: sentences with what to do."""

    runs: Mapping[str, str]
    wrong: tuple[str, ...]


def gather() -> Facts:
    """Look at this machine."""
    packages = {name: version(name) for name in PACKAGES}
    normal = run_probe()
    retry = normal.found is None and packages["torch-npu"] is not None
    return Facts(
        packages,
        next((os.environ[name] for name in CANN_HOME if os.environ.get(name)), None),
        "ascend_fia" in entry_points(group="torch_dynamo_backends").names,
        normal,
        run_probe(autoload=False) if retry else None,
    )


def run_probe(autoload: bool = True) -> Probe:
    """Run the probe in a process of its own, with torch-npu loaded by torch or not."""
    environment = {**os.environ, **({} if autoload else {AUTOLOAD: "0"})}
    command = [sys.executable, "-m", "npu_compile.probe"]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT)
        return Probe(json.loads(done.stdout.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        return Probe(error=f"no answer within {TIMEOUT} s")
    except (IndexError, ValueError):
        return Probe(error=done.stderr.strip() or f"exit code {done.returncode}")


def diagnose(facts: Facts) -> Diagnosis:
    """Judge ``facts``; reads nothing else."""
    probe = facts.normal if facts.alone is None else facts.alone
    found = probe.found or {}
    wrong = [] if facts.registered else ["the backend is not registered: pip install npu-compile again"]
    if facts.normal.found is None:
        wrong.append(_import_failure(facts))
    runs = {"cpu": "nothing: import torch fails", "meta": "nothing: import torch fails"}
    if found:
        runs = {"cpu": "reference kernels", "meta": "shapes only, for checking a lowering without a machine"}
    npu = facts.packages["torch-npu"]
    if npu is None:
        runs["npu"] = "nothing: torch-npu is not installed (pip install 'npu-compile[npu]', and CANN)"
    elif facts.alone is not None or not found:
        runs["npu"] = "nothing: torch-npu can't be loaded"
    elif broken := violations(Installed(found["torch"], npu, found["graph_update"])):
        wrong += broken
        runs["npu"] = "nothing: torch and torch-npu don't go together"
    elif not found["npus"]:
        runs["npu"] = "nothing: torch-npu sees no device"
    else:
        runs["npu"] = f"fused operators on {len(found['npus'])} x {found['npus'][0]}"
    for device, outcome in found.get("attention", {}).items():
        if isinstance(outcome, str):
            wrong.append(f"attention on {device} fails its check: {outcome}")
        else:
            runs[device] += f"; checked: attention lowered, largest error against eager {outcome:.1e}"
    return Diagnosis(runs, tuple(wrong))


def _import_failure(facts: Facts) -> str:
    reason = facts.normal.error.splitlines()[-1]
    if facts.alone is None or facts.alone.found is None:
        return f"import torch fails: {reason}"
    library = re.search(r"(lib\w+\.so[\w.]*): cannot open shared object file", facts.normal.error)
    cause = f"{library[1]} of CANN can't be loaded" if library else reason
    return (
        f"import torch fails, because torch loads torch-npu by itself and torch-npu does not load: {cause}. "
        "Install CANN and run `source set_env.sh` of its folder in this shell; or, to work without an NPU, "
        f"`pip uninstall torch-npu` or set {AUTOLOAD}=0."
    )


def doctor() -> int:
    """Print the diagnosis; 1 where something is wrong, else 0."""
    facts = gather()
    diagnosis = diagnose(facts)
    installed = {
        "python": f"{sys.version.split()[0]} ({sys.executable})",
        **{name: found or "not installed" for name, found in facts.packages.items()},
        "CANN": facts.cann or f"not found ({' and '.join(CANN_HOME)} are not set)",
    }
    out = console()
    for title, rows in (("Installed", installed), ("What runs where", diagnosis.runs)):
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        for row in rows.items():
            table.add_row("", *map(Text, row))
        out.print(f"[bold]{title}[/]")
        out.print(table)
    out.print("[bold]What is wrong[/]")
    for line in diagnosis.wrong or ("nothing",):
        out.print(f"  {line}", style="red" if diagnosis.wrong else "green", markup=False)
    return 1 if diagnosis.wrong else 0
