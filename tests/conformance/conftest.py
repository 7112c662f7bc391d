"""The real torch_npu's answers, asked for once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.version import Version

from . import stubs, wheel

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def real() -> dict[str, Any]:
    """What tests.conformance.judge printed in a process with the torch-npu that matches torch."""
    version = Version(torch.__version__).base_version
    try:
        site = wheel.unpacked(version)
        libraries = stubs.build(site)
    except wheel.Unavailable as reason:
        pytest.skip(str(reason))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, site))),
        "LD_LIBRARY_PATH": str(libraries),
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",  # judge.py imports torch_npu itself, to see what fails
    }
    command = [sys.executable, "-W", "ignore", "-m", "tests.conformance.judge"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert answer["version"].startswith(version)
    return answer
