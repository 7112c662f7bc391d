"""Which keys a FlashAttention call leaves visible, as a sparse_mode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from npu_compile.passes.flash_calls.schemas import FlashCall

UNLIMITED = 2147483647


@dataclass(frozen=True)
class Band:
    """Row i of Q, seen from the bottom right, sees keys i - ``before`` to i + ``behind``; None: no limit."""

    before: int | None
    behind: int | None

    @classmethod
    def of(cls, call: FlashCall) -> Band:
        before, behind = call.window_size_left, 0 if call.causal else call.window_size_right
        return cls(before if before >= 0 else None, behind if behind >= 0 else None)

    @property
    def everything(self) -> bool:
        return self.before is None and self.behind is None

    @property
    def causal(self) -> bool:
        """Up to the own key, as far back as there are keys."""
        return self.before is None and self.behind == 0

    @property
    def plain(self) -> dict[str, Any]:
        """The operator's arguments beside the mask; with ``everything`` it takes none."""
        if self.everything:
            return {"sparse_mode": 0}
        if self.causal:
            return {"sparse_mode": 3}
        limits = (UNLIMITED if limit is None else limit for limit in (self.before, self.behind))
        return {"sparse_mode": 4, **dict(zip(("pre_tokens", "next_tokens"), limits, strict=True))}

    @property
    def words(self) -> str:
        if self.everything:
            return "all keys"
        if self.causal:
            return "causal, from the bottom right"
        limits = " to ".join("all" if limit is None else str(limit) for limit in (self.before, self.behind))
        return f"window {limits}, from the bottom right"
