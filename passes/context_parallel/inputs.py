"""The nodes a call reads, as the inputs of the function that is traced in its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from npu_compile.passes.mla.emit import emit
from npu_compile.passes.mla.site import MlaSite

from .fia_call import FiaCall
from .keys import LatentKeys

LATENTS = ("latent", "rope", "key_weight", "value_weight")


@dataclass(frozen=True)
class Inputs:
    """A call of graph nodes, and what its keys are expanded from."""

    call: FiaCall
    latents: LatentKeys | None = None

    @property
    def _tensors(self) -> dict[str, fx.Node]:
        """By argument; with latents, the expanded keys are not read."""
        call = {"query": self.call.query}
        if self.latents is None:
            call |= {"key": self.call.key, "value": self.call.value}
        call |= {name: node for name, node in self.call.arguments.items() if isinstance(node, fx.Node)}
        if self.latents is None:
            return call
        call.pop("key_rope", None)
        return call | {f"latents.{name}": getattr(self.latents, name) for name in LATENTS}

    @property
    def nodes(self) -> list[fx.Node]:
        """Each node once: a latent that is both key and value is one input."""
        return list(dict.fromkeys(self._tensors.values()))

    def given(self, values: Sequence[Any]) -> tuple[FiaCall, LatentKeys | None]:
        """The call and latents with ``values`` in place of :attr:`nodes`; there may be more values."""
        value_of = dict(zip(self.nodes, values, strict=False))
        named = {name: value_of[node] for name, node in self._tensors.items()}
        latents = self.latents
        if latents is not None:
            latents = replace(latents, **{name: named.pop(f"latents.{name}") for name in LATENTS})
        plain = {name: value for name, value in self.call.arguments.items() if not isinstance(value, fx.Node)}
        query, key, value = (named.pop(name, None) for name in ("query", "key", "value"))
        return FiaCall(self.call.operator, query, key, value, {**plain, **named}), latents


def latents_of(graph: fx.Graph, node: fx.Node) -> LatentKeys | None:
    """What the keys of the call ``node`` are expanded from, read ahead of it; None where they aren't."""
    mla: MlaSite | None = node.meta.get("expanded_from")
    if mla is None:
        return None
    with graph.inserting_before(node):
        latent, rope = emit(graph, mla.latent), emit(graph, mla.key_rope)
    return LatentKeys(
        latent=latent,
        rope=rope,
        key_weight=mla.key_up.weight,
        value_weight=mla.value_up.weight,
        key_rows=mla.key_up,
        value_rows=mla.value_up,
        heads=mla.attention.scores.heads,
    )
