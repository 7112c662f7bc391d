"""Where the keys and values of a request come from. Each kind answers ``read`` with (b, N_kv, Lkv, D) and
(b, N_kv, Lkv, Dv); kinds wrap each other, so that any combination of them needs no code of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from npu_compile.kernels.cpu.requests import Request


class KeyValues(Protocol):
    def read(self, request: Request) -> tuple[Tensor, Tensor]:
        """Keys and values of ``request``, only the valid tokens."""


@dataclass(frozen=True, slots=True)
class Dense:
    """``key`` and ``value`` as (B, N_kv, S, D) views, or (1, N_kv, T, D) if packed."""

    key: Tensor
    value: Tensor

    def read(self, request: Request) -> tuple[Tensor, Tensor]:
        return request.key.of(self.key), request.key.of(self.value)
