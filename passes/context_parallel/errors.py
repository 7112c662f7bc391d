"""What is raised where ranks or attention calls don't fit together."""

from __future__ import annotations


class ContextParallelError(RuntimeError):
    """Ranks that disagree, or an attention that can't take part in context parallel: which and why."""
