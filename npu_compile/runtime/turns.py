"""One thread at a time: a captured graph's buffers can serve only one call."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from .errors import BusyError


class Turns:
    """A lock that refuses re-entry, and, where asked to, refuses instead of waiting."""

    def __init__(self, refuse: bool) -> None:
        self._refuse = refuse
        self._lock = threading.Lock()
        self._owner: int | None = None

    @contextmanager
    def turn(self, what: str) -> Iterator[None]:
        """Hold the lock. Raises :class:`BusyError` on re-entry, or where the lock is held and refusing."""
        if self._owner == threading.get_ident():
            raise BusyError(
                f"{what} was called while the same callable is running or capturing in this thread"
            )
        if not self._lock.acquire(blocking=not self._refuse):
            raise BusyError(f"{what}: another thread is running this callable; serialise the calls")
        self._owner = threading.get_ident()
        try:
            yield
        finally:
            self._owner = None
            self._lock.release()
