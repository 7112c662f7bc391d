"""With this folder on PYTHONPATH, every Python process has the software NPU before it imports torch."""

import tests.softnpu.softnpu  # noqa: F401
