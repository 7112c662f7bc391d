"""Importing the package defines the operators once torch is there, whatever is imported first."""

from __future__ import annotations

import subprocess
import sys

import pytest

DEFINED = (
    "print(torch.ops.npu.npu_rms_norm, torch.ops.ascend_fia.host_lengths, type(torch.__loader__).__name__)"
)


@pytest.mark.parametrize(
    "first",
    [
        "import npu_compile, torch",
        "import torch, npu_compile",
        "from npu_compile.kernels.contract import check; import torch",
        "import npu_compile.kernels.fakes, torch",
    ],
)
def test_operators_are_defined(first: str) -> None:
    done = subprocess.run([sys.executable, "-c", f"{first}; {DEFINED}"], capture_output=True, text=True)
    assert done.stdout.split() == ["npu.npu_rms_norm", "ascend_fia.host_lengths", "SourceFileLoader"], (
        done.stderr
    )


def test_a_torch_that_fails_to_import_says_so_itself() -> None:
    code = (
        "import sys; from importlib.machinery import PathFinder, ModuleSpec\n"
        "class Broken:\n"
        "    def create_module(self, spec): return None\n"
        "    def exec_module(self, module): raise OSError('libtorch is broken')\n"
        "class Finder:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        return ModuleSpec('torch', Broken()) if name == 'torch' else None\n"
        "sys.meta_path.insert(0, Finder()); import npu_compile\n"
        "for _ in range(2):\n"
        "    try: import torch\n"
        "    except OSError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["libtorch is broken"] * 2, done.stderr
