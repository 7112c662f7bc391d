"""torch-npu's wheels, kept apart from the environment that runs the tests.

With torch-npu installed beside it ``import torch`` fails where CANN is missing, so it is never installed
there: wheels are downloaded to ``build/torch-npu`` and unpacked in folders of their own.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "build" / "torch-npu"
TIMEOUT = 300


class Unavailable(Exception):
    """Why a wheel, or what it takes to load it, can't be had here."""


def download(version: str) -> Path:
    """The wheel of torch-npu ``version`` for this Python. Raises Unavailable."""
    with one_at_a_time():
        found = _wheel(version)
        if found is None:
            command = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--only-binary",
                ":all:",
            ]
            command += ["--dest", str(FOLDER), f"torch-npu=={version}"]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
            except subprocess.TimeoutExpired:
                raise Unavailable(f"no torch-npu {version} within {TIMEOUT} s") from None
            found = _wheel(version)
            if found is None:
                raise Unavailable(f"no torch-npu {version}: {done.stderr.strip().splitlines()[-1:]}")
        return found


def unpacked(version: str) -> Path:
    """A folder to put on PYTHONPATH that has torch-npu ``version`` and nothing else. Raises Unavailable."""
    wheel = download(version)
    folder = FOLDER / version
    with one_at_a_time():
        if not (folder / "complete").exists():
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder)
            (folder / "complete").touch()
    return folder


def member(version: str, name: str) -> bytes:
    """One file of a wheel. Raises Unavailable."""
    with zipfile.ZipFile(download(version)) as archive:
        return archive.read(name)


def _wheel(version: str) -> Path | None:
    return next(FOLDER.glob(f"torch_npu-{version}-*.whl"), None)


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Tests run in several processes, which share the folder."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with open(FOLDER / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
