"""The demonstration holds its claims: real weights through the backend, and generation."""

import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[1] / "examples" / "demo.py"


def test_every_claim_of_the_demonstration_holds():
    done = subprocess.run([sys.executable, DEMO], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    claims = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert [line.partition("]")[0] for line in claims] == ["[ok"] * 5
    assert "[ok] attention computations lowered: 6 of 6" in claims
    assert "[ok] attention computations lowered: 8 of 8" in claims
    assert "[ok] tokens equal to eager's: 128 of 128" in claims
