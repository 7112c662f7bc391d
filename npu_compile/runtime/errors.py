"""What capturing and replaying a graph can raise."""

from __future__ import annotations


class CaptureError(RuntimeError):
    """A graph can't be captured; ``node`` names the node that forbids it, where one does."""

    def __init__(self, reason: str, node: str = "") -> None:
        super().__init__(f"node {node}: {reason}" if node else reason)
        self.reason = reason
        self.node = node


class UpdateError(ValueError):
    """An update doesn't fit the records of the captured graph; nothing has been changed."""


class ReplayError(RuntimeError):
    """A replay that would block for ever, or of a graph that was reset."""


WOULD_BLOCK = (
    "this replay would block for ever: every recorded call waits for an update, and none was made since the "
    "last replay"
)


class MovedInputError(RuntimeError):
    """A tensor that the captured graph reads at a fixed address is now somewhere else."""


class BusyError(RuntimeError):
    """Another thread is running or capturing the same callable, and the options say to refuse."""
