"""Random legal FIA calls, as what they mean rather than as arguments."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import torch
from hypothesis import strategies as st

BATCHED = ("BSH", "BSND", "BNSD", "BNSD_BSND", "BSH_NBSD", "BSND_NBSD", "BNSD_NBSD", "BSH_BNSD", "BSND_BNSD")
PACKED = ("TND", "NTD", "TND_NTD", "NTD_TND")
UNLIMITED = 2**31 - 1


@dataclass(frozen=True)
class Scenario:
    """``capacity`` is the S of batched queries and dense keys. ``mask`` is none, triangle, whole or tree."""

    version: int
    layout: str
    dtype: torch.dtype
    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    capacity: tuple[int, int]
    heads: int
    kv_heads: int
    dim: int
    value_dim: int
    rope_dim: int
    scale: float
    mode: int
    mask: str
    pre: int
    following: int
    paged: str
    block_size: int
    bias: bool
    sink: bool
    padding: tuple[int, int] | None
    prefix: int
    quant: int | None
    quant_offset: bool
    out_quant: str
    lse: bool
    seed: int

    @property
    def packed(self) -> bool:
        return self.layout in PACKED

    @property
    def query_order(self) -> str:
        return self.layout.split("_")[0]

    @property
    def output_order(self) -> str:
        return self.layout.split("_")[-1]

    @property
    def one_token(self) -> bool:
        return not self.packed and self.capacity[0] == 1

    @property
    def mode_in_force(self) -> int:
        """One query token and no rope: the operator ignores the mode, a whole mask aside."""
        if self.mask == "none" or (self.one_token and not self.rope_dim):
            return 1
        return 1 if self.mode == 0 and self.padding is not None else self.mode


def scenarios(version: int) -> st.SearchStrategy[Scenario]:
    """Legal calls of FIA v1 or v2, all features about equally often."""
    return st.randoms(use_true_random=True).map(lambda rng: _scenario(rng, version))


def _scenario(rng: Random, version: int) -> Scenario:
    packed = rng.random() < 0.4
    layout = rng.choice(PACKED if packed else BATCHED)
    kinds = ["plain", "paged", "mla"]
    if not packed:
        kinds += ["quant", "quant", "padded", "prefix"] if version == 1 else ["quant", "quant"]
    kind = rng.choice(kinds)
    q_lens, kv_lens, capacity = _lengths(rng, packed)
    kv_heads = 1 if kind == "mla" else rng.choice([1, 2, 3])
    rope_dim = {"mla": 64, "prefix": 0}.get(kind, rng.choice([0, 0, 16]))
    dim = 512 if kind == "mla" else rng.choice([32, 64] if kind == "quant" else [17, 32, 54, 64])
    quant = rng.choice([0, 0, 1, 2, 3, 4, 5]) if kind == "quant" else None
    padding = None
    if kind == "padded":
        padding = (rng.randint(0, 2), rng.randint(0, 2))
        capacity = (capacity[0] + padding[0], capacity[1] + padding[1])
    paged, block_size = "none", 0
    if kind in ("paged", "mla") or quant in (4, 5) or (kind == "quant" and rng.random() < 0.5):
        forms = ["BnBsH"] if layout.startswith("BS") else ["BnBsH", "BnNBsD"]
        paged = rng.choice([*forms, "NZ"] if quant in (None, 0, 1) else forms)
        block_size = 32 if quant is not None else rng.choice([16, 32])
    if paged == "NZ" and kind == "paged":
        dim = 32
    free = quant is None and paged != "NZ" and kind != "mla"
    mask, mode, pre, following = _mask(rng, packed, q_lens, kv_lens, capacity, rope_dim, kind)
    special = packed or rope_dim or kind in ("prefix", "quant", "paged")
    return Scenario(
        version=version,
        layout=layout,
        dtype=rng.choice([torch.float32, torch.float32, torch.bfloat16, torch.float16, torch.float64]),
        q_lens=q_lens,
        kv_lens=kv_lens,
        capacity=capacity,
        heads=kv_heads * rng.choice([1, 2, 4]),
        kv_heads=kv_heads,
        dim=dim,
        value_dim=rng.choice([dim, dim, 24]) if free else dim,
        rope_dim=rope_dim,
        scale=rng.choice([dim**-0.5, 0.3, 1.0 / 7]),
        mode=mode,
        mask=mask,
        pre=pre,
        following=following,
        paged=paged,
        block_size=block_size,
        bias=not special and rng.random() < 0.5,
        sink=version == 2 and layout in ("TND", "NTD_TND") and rng.random() < 0.5,
        padding=padding,
        prefix=rng.randint(1, 20) if kind == "prefix" else 0,
        quant=quant,
        quant_offset=quant is not None and paged != "NZ" and rng.random() < 0.5,
        out_quant=rng.choice(["", "", "tensor", "channel"]) if kind == "plain" and not packed else "",
        lse=rng.random() < 0.5,
        seed=rng.randint(0, 2**31),
    )


def _lengths(rng: Random, packed: bool) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, int]]:
    """Lengths of queries and keys per request, and the S of batched tensors."""
    batch = rng.randint(1, 3)
    longest_q, longest_kv = rng.choice([1, 1, 2, 7, 17]), rng.choice([1, 7, 17, 54, 97])
    q_lens = [rng.randint(0 if packed else 1, longest_q) for _ in range(batch)]
    kv_lens = [rng.randint(0, longest_kv) for _ in range(batch)]
    if rng.random() < 0.4:
        q_lens, kv_lens = [longest_q] * batch, [longest_kv] * batch
    spare_q, spare_kv = rng.choice([(0, 0), (0, 5), (3, 0), (2, 9)])
    if not packed and longest_q == 1:
        spare_q = 0  # one query token per request is a case of its own
    return tuple(q_lens), tuple(kv_lens), (max(q_lens) + spare_q, max(*kv_lens, 1) + spare_kv)


def _mask(
    rng: Random,
    packed: bool,
    q_lens: tuple[int, ...],
    kv_lens: tuple[int, ...],
    capacity: tuple[int, int],
    rope_dim: int,
    kind: str,
) -> tuple[str, int, int, int]:
    """Kind of mask, sparse mode, pre_tokens and next_tokens."""
    long_enough = all(kv >= q for q, kv in zip(q_lens, kv_lens, strict=True))
    one_token = not packed and capacity[0] == 1
    choices = [("none", 0)]
    if long_enough or not packed:
        choices.append(("triangle", 3))
    if not one_token:
        choices.append(("triangle", 4))
    if not packed and kind not in ("mla", "prefix"):
        choices += [("whole", 0), ("whole", 1)]
    if not packed and kind != "mla" and not one_token:
        choices.append(("triangle", 2))
    if rope_dim and long_enough and kind in ("plain", "mla", "paged"):
        choices.append(("tree", 9))
    mask, mode = rng.choice(choices)
    if (mask, mode) not in (("whole", 0), ("triangle", 4)) or one_token:
        return mask, mode, UNLIMITED, UNLIMITED
    return mask, mode, rng.choice([UNLIMITED, 0, 3, 8, 30]), rng.choice([UNLIMITED, 0, 2, 11])
