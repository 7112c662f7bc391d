"""Where in the user's program a node comes from: what reports and errors point at."""

from __future__ import annotations

from torch import fx

ORIGIN = ("nn_module_stack", "stack_trace")
"""The keys of ``node.meta`` that say it."""


def copy_origin(source: fx.Node, *made: fx.Node) -> None:
    """Let ``made``, which stand for ``source``, come from where it came from."""
    for node in made:
        node.meta |= {key: source.meta[key] for key in ORIGIN if key in source.meta}
