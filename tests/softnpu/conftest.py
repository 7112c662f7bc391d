"""These tests run on the software NPU only: `make test-npu` loads it before torch, as a pytest plugin."""

import sys

if "tests.softnpu.softnpu" not in sys.modules:
    collect_ignore_glob = ["test_*.py"]
