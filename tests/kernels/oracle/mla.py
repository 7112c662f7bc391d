"""MLA's projections before attention, token by token and head by head."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .around import deinterleaved, rms_norm


@dataclass
class Prolog:
    """Tokens (T, He) and weights as real numbers, float64; cos and sin (T, Dr)."""

    x: Tensor
    weight_dq: Tensor
    weight_uq_qr: Tensor
    weight_uk: Tensor
    weight_dkv_kr: Tensor
    gamma_cq: Tensor
    gamma_ckv: Tensor
    cos: Tensor
    sin: Tensor
    epsilon_cq: float
    epsilon_ckv: float
    qc_qr_scale: float
    kc_scale: float

    def latent_query(self) -> Tensor:
        """(T, Hcq)."""
        return self.qc_qr_scale * rms_norm(self.x @ self.weight_dq, self.gamma_cq, self.epsilon_cq)[0]

    def queries(self, latent_query: Tensor) -> tuple[Tensor, Tensor]:
        """The absorbed queries (T, N, Hckv) and their rope part (T, N, Dr)."""
        heads, dim, latent = self.weight_uk.shape
        rope = self.cos.shape[-1]
        query = torch.zeros(len(self.x), heads, latent, dtype=torch.float64)
        query_rope = torch.zeros(len(self.x), heads, rope, dtype=torch.float64)
        for t, c_q in enumerate(latent_query):
            for n in range(heads):
                columns = slice(n * (dim + rope), (n + 1) * (dim + rope))
                both = c_q @ self.weight_uq_qr[:, columns]
                query[t, n] = both[:dim] @ self.weight_uk[n]
                query_rope[t, n] = deinterleaved(both[dim:], self.cos[t], self.sin[t])
        return query, query_rope

    def keys(self) -> tuple[Tensor, Tensor]:
        """The latent keys (T, Hckv) and their rope part (T, Dr)."""
        latent = self.weight_uk.shape[2]
        both = self.x @ self.weight_dkv_kr
        normed = rms_norm(both[:, :latent], self.gamma_ckv, self.epsilon_ckv)[0]
        return self.kc_scale * normed, deinterleaved(both[:, latent:], self.cos, self.sin)
