"""npu_rms_norm, npu_add_rms_norm, npu_rotary_mul, npu_interleave_rope."""

from __future__ import annotations

import torch

from npu_compile.kernels.register import ensure_npu_ops
from tests.kernels.oracle.around import deinterleaved, half_pairs, neighbours, rms_norm, rotate
from tests.kernels.oracle.compare import assert_close
from tests.kernels.oracle.draws import Draw, calls
from tests.kernels.oracle.properties import EXAMPLES, for_all

ensure_npu_ops()
npu = torch.ops.npu


def norm_call(draw: Draw) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]:
    dtype = draw.dtype()
    dims = draw.size(1, 2)
    last = [draw.one_of(1, 5, 17, 54) for _ in range(dims)]
    lead = [draw.size(0, 4) for _ in range(draw.size(1, 2))]
    shape = [*lead, *last]
    x, other = (draw.normal(*shape, dtype=dtype) * 3 for _ in range(2))
    if draw.maybe():
        x = x.transpose(0, -1).contiguous().transpose(0, -1)
    return x, other, draw.normal(*last, dtype=dtype), draw.one_of(1e-6, 1e-5, 0.1)


def plain_norm(x: torch.Tensor, gamma: torch.Tensor, epsilon: float) -> torch.Tensor:
    dims = tuple(range(-gamma.dim(), 0))
    return x * torch.rsqrt(x.pow(2).mean(dims, keepdim=True) + epsilon) * gamma


@EXAMPLES
def test_rms_norm_divides_by_the_root_of_the_mean_square(examples: int) -> None:
    def check(call: tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]) -> None:
        x, _, gamma, epsilon = call
        want, inverse = rms_norm(x, gamma, epsilon)
        out, rstd = npu.npu_rms_norm(x, gamma, epsilon)
        assert out.dtype == x.dtype and rstd.dtype == torch.float32
        assert_close(out, want, plain_norm(x, gamma, epsilon))
        assert rstd.shape == x.shape[: x.dim() - gamma.dim()] + (1,) * gamma.dim()
        assert_close(rstd.flatten(), inverse)

    for_all(calls(norm_call), examples, check)


@EXAMPLES
def test_add_rms_norm_norms_the_sum(examples: int) -> None:
    def check(call: tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]) -> None:
        x, other, gamma, epsilon = call
        total = x.double() + other.double()
        want, inverse = rms_norm(total, gamma, epsilon)
        out, rstd, added = npu.npu_add_rms_norm(x, other, gamma, epsilon)
        assert_close(out, want, plain_norm(x + other, gamma, epsilon))
        assert_close(added, total, x + other)
        assert_close(rstd.flatten(), inverse)

    for_all(calls(norm_call), examples, check)


def rope_call(draw: Draw) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, str, torch.Tensor | None]:
    dtype = draw.dtype()
    batch, heads, tokens, dim = draw.size(1, 3), draw.size(1, 3), draw.size(1, 5), draw.one_of(2, 18, 64)
    broadcast = (draw.one_of(1, batch), draw.one_of(1, heads), tokens, dim)
    x, cos, sin = (
        draw.normal(*shape, dtype=dtype) for shape in ((batch, heads, tokens, dim), broadcast, broadcast)
    )
    matrix = draw.normal(dim, dim, dtype=dtype) if draw.size(0, 3) == 0 else None
    return x, cos, sin, draw.one_of("half", "interleave"), matrix


@EXAMPLES
def test_rotary_mul_rotates_pairs_in_place(examples: int) -> None:
    def check(call: tuple[torch.Tensor, torch.Tensor, torch.Tensor, str, torch.Tensor | None]) -> None:
        x, cos, sin, mode, matrix = call
        out = npu.npu_rotary_mul(x, cos, sin, mode, matrix)
        assert out.dtype == x.dtype
        if matrix is not None:
            turned = torch.einsum("bnsd,de->bnse", x.double(), matrix.double())
            want = x.double() * cos.double() + turned * sin.double()
            plain = x * cos + (x @ matrix) * sin
        else:
            pairs = half_pairs(x.shape[-1]) if mode == "half" else neighbours(x.shape[-1])
            want = rotate(x, cos, sin, pairs, pairs)
            if mode == "half":
                turned = torch.cat([-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]], -1)
            else:
                turned = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
            plain = x * cos + turned * sin
        assert_close(out, want, plain)

    for_all(calls(rope_call), examples, check)


@EXAMPLES
def test_interleave_rope_writes_pairs_half_split(examples: int) -> None:
    def check(call: tuple[torch.Tensor, torch.Tensor, torch.Tensor, str, torch.Tensor | None]) -> None:
        x, cos, sin, _, _ = call
        cos, sin = cos[:, :1], sin[:, :1]
        halves = torch.cat([x[..., ::2], x[..., 1::2]], -1)
        half = x.shape[-1] // 2
        plain = halves * cos + torch.cat([-halves[..., half:], halves[..., :half]], -1) * sin
        assert_close(npu.npu_interleave_rope(x, cos, sin), deinterleaved(x, cos, sin), plain)

    for_all(calls(rope_call), examples, check)


def test_interleave_rope_on_a_known_vector() -> None:
    x = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 1, 1, 4)
    quarter = torch.zeros(1, 1, 1, 4), torch.ones(1, 1, 1, 4)  # 90 degrees: (a, b) to (-b, a)
    assert npu.npu_interleave_rope(x, *quarter).flatten().tolist() == [-2.0, -4.0, 1.0, 3.0]
