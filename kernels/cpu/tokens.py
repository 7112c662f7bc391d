"""Where the keys or values of a request come from.

Each kind answers ``read`` with (b, N_kv, Lkv, D). Kinds wrap each other, so that a combination of features
(paged, quantised, with a rope part, behind a shared prefix) needs no code of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .requests import Request


class Tokens(Protocol):
    def read(self, request: Request) -> Tensor:
        """The valid tokens of ``request``, (b, N_kv, Lkv, D); broadcastable to it for scales."""


@dataclass(frozen=True, slots=True)
class Dense:
    """A (B, N_kv, S, D) view, or (1, N_kv, T, D) if packed."""

    tensor: Tensor

    def read(self, request: Request) -> Tensor:
        return request.key.of(self.tensor)


@dataclass(frozen=True, slots=True)
class Constant:
    """The same for all requests: a scale that doesn't depend on the token."""

    tensor: Tensor

    def read(self, request: Request) -> Tensor:
        return self.tensor


@dataclass(frozen=True, slots=True)
class Joined:
    """Two parts of the head dim, e.g. the rope part (second) of MLA's keys."""

    first: Tokens
    second: Tokens

    def read(self, request: Request) -> Tensor:
        return join(self.first.read(request), self.second.read(request))


def join(first: Tensor, second: Tensor) -> Tensor:
    """Both along the head dim; in float32 if their dtypes differ, as where one of them is quantised."""
    if first.dtype != second.dtype:
        first, second = first.to(torch.float32), second.to(torch.float32)
    return torch.cat([first, second], -1)


@dataclass(frozen=True, slots=True)
class Prefixed:
    """``prefix`` (1, N_kv, P, D), the tokens that every request shares, before the request's own."""

    prefix: Tensor
    own: Tokens

    def read(self, request: Request) -> Tensor:
        own = self.own.read(request)
        return torch.cat([self.prefix.expand(own.shape[0], -1, -1, -1), own], 2)
