"""The graph-level operators: schemas, fakes, the real call, host reads, gradients."""

from __future__ import annotations

import gc
import time
import weakref
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.library import Library

import npu_compile  # noqa: F401  defines torch.ops.ascend_fia
from npu_compile.kernels.causal_mask import causal_mask
from npu_compile.kernels.contract import ContractError
from npu_compile.kernels.graph_ops import OPERATORS, length_arguments
from npu_compile.kernels.lengths import HOST_READS, HostReads

FIA, FIA_V2 = (getattr(torch.ops.ascend_fia, name).default for name in OPERATORS)
REAL = torch.ops.npu.npu_fused_infer_attention_score.default
HEADS = {"num_heads": 4, "num_key_value_heads": 2, "input_layout": "BNSD", "scale": 0.25}
HEADS_V2 = {"num_query_heads": 4, "num_key_value_heads": 2, "input_layout": "BNSD", "softmax_scale": 0.25}


def qkv(q: int = 1, s: int = 17, d: int = 16, b: int = 3) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    return tuple(torch.randn(b, n, x, d, generator=g) for n, x in ((4, q), (2, s), (2, s)))  # type: ignore[return-value]


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: list[int], scale: float
) -> torch.Tensor:
    """float64, one request and head after the other; keys beyond the length don't exist."""
    out = torch.zeros(*q.shape[:3], v.shape[3], dtype=torch.float64)
    group = q.shape[1] // k.shape[1]
    for b in range(q.shape[0]):
        for n in range(q.shape[1]):
            keys, values = (t[b, n // group, : lengths[b]].double() for t in (k, v))
            if lengths[b]:
                out[b, n] = torch.softmax(scale * q[b, n].double() @ keys.T, -1) @ values
    return out


@pytest.mark.parametrize("name", OPERATORS)
def test_the_schema_is_torch_npus_with_tensors_for_length_lists(name: str) -> None:
    ours = getattr(torch.ops.ascend_fia, name).default._schema
    real = getattr(torch.ops.npu, name).default._schema
    assert [a.name for a in ours.arguments] == [a.name for a in real.arguments]
    changed = set()
    for mine, theirs in zip(ours.arguments, real.arguments, strict=True):
        assert mine.kwarg_only == theirs.kwarg_only and mine.default_value == theirs.default_value
        if str(mine.type) != str(theirs.type):
            assert (str(mine.type), str(theirs.type)) == ("Optional[Tensor]", "Optional[List[int]]")
            changed.add(mine.name)
    assert changed == set(length_arguments(name))
    expected = {
        OPERATORS[0]: {"actual_seq_lengths", "actual_seq_lengths_kv", "actual_shared_prefix_len"},
        OPERATORS[1]: {"actual_seq_qlen", "actual_seq_kvlen"},
    }
    assert changed == expected[name]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.int8, torch.uint8])
def test_lengths_reach_the_operator(dtype: torch.dtype) -> None:
    q, k, v = qkv()
    lengths = [17, 0, 5]
    tensor = torch.tensor(lengths, dtype=dtype)
    out, lse = FIA(q, k, v, actual_seq_lengths_kv=tensor, softmax_lse_flag=True, **HEADS)
    torch.testing.assert_close(out.double(), attention(q, k, v, lengths, 0.25), atol=1e-6, rtol=1e-5)
    out2, lse2 = FIA_V2(q, k, v, actual_seq_kvlen=tensor, return_softmax_lse=True, **HEADS_V2)
    assert torch.equal(out, out2) and torch.equal(lse, lse2)
    strided = torch.tensor([[x, 9] for x in lengths], dtype=dtype)[:, 0]
    assert torch.equal(FIA(q, k, v, actual_seq_lengths_kv=strided, **HEADS)[0], out)


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_the_real_call_has_lengths_as_keywords_and_integers() -> None:
    q, k, v = qkv(q=3)
    seen: list[tuple[int, dict[str, Any]]] = []

    def recorder(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append((len(args), kwargs))
        return torch.zeros_like(q), torch.zeros(0)

    library = Library("npu", "IMPL")
    try:
        library.impl(OPERATORS[0], recorder, "CPU", allow_override=True)
        lengths = torch.tensor([3, 2, 3]), torch.tensor([17, 9, 5], dtype=torch.int32)
        FIA(q, k, v, actual_seq_lengths=lengths[0], actual_seq_lengths_kv=lengths[1], **HEADS)
        FIA(q, k, v, **HEADS)
    finally:
        library._destroy()
    given = {"actual_seq_lengths": [3, 2, 3], "actual_seq_lengths_kv": [17, 9, 5], **HEADS}
    assert seen == [(3, given), (3, HEADS)]
    assert all(
        type(x) is int for name in ("actual_seq_lengths", "actual_seq_lengths_kv") for x in given[name]
    )
    torch.testing.assert_close(
        FIA(q, k, v, **HEADS)[0].double(), attention(q, k, v, [17] * 3, 0.25), atol=1e-6, rtol=1e-5
    )


@pytest.mark.parametrize(
    "bad, error",
    [
        (
            torch.tensor([1.0, 2.0, 3.0]),
            "actual_seq_lengths_kv has dtype torch.float32; sequence lengths are integers",
        ),
        (torch.tensor([True, False, True]), "actual_seq_lengths_kv has dtype torch.bool"),
        (
            torch.tensor([[1], [2], [3]]),
            r"actual_seq_lengths_kv has shape \(3, 1\); sequence lengths are 1-D",
        ),
        (torch.tensor(3), r"actual_seq_lengths_kv has shape \(\)"),
        (torch.tensor([18, 1, 1]), r"actual_seq_lengths_kv is \[18, 1, 1\], with at most 17"),
        (torch.tensor([3, -1, 1]), r"actual_seq_lengths_kv is \[3, -1, 1\]"),
        (torch.tensor([3, 4]), "actual_seq_lengths_kv is 2 lengths for 3 requests"),
    ],
)
def test_bad_lengths_are_refused(bad: torch.Tensor, error: str) -> None:
    q, k, v = qkv()
    with pytest.raises(ValueError, match=error):
        FIA(q, k, v, actual_seq_lengths_kv=bad, **HEADS)


def test_fakes_never_look_at_lengths() -> None:
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        q, k, v = (mode.from_tensor(t) for t in qkv(q=5))
        lengths = mode.from_tensor(torch.tensor([1, 2, 3]))
        layout = {**HEADS, "input_layout": "BNSD_BSND"}
        out, lse = FIA(q, k, v, actual_seq_lengths_kv=lengths, softmax_lse_flag=True, **layout)
        assert out.shape == (3, 5, 4, 16) and lse.shape == (3, 4, 5, 1) and lse.dtype == torch.float32
        assert FIA(q, k, v, **HEADS)[1].shape == (0,)
        assert FIA_V2(q, k, v, actual_seq_kvlen=lengths, **HEADS_V2)[0].shape == q.shape


def test_meta_tensors_and_host_lengths() -> None:
    q, k, v = (t.to("meta") for t in qkv())
    out, _ = FIA(q, k, v, actual_seq_lengths_kv=torch.tensor([1, 2, 3]), **HEADS)
    assert out.device.type == "meta" and out.shape == q.shape


def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    host = torch.ops.ascend_fia.host_lengths(lengths)
    out = q
    for _ in range(4):
        out, _ = FIA(out, k, v, actual_seq_lengths_kv=host, **HEADS)
    return out


def test_one_conversion_per_step_and_no_recompile() -> None:
    torch._dynamo.reset()
    graphs = []

    def backend(gm: Any, inputs: Any) -> Any:
        graphs.append(gm)
        return gm.forward

    compiled = torch.compile(step, backend=backend, fullgraph=True)
    q, k, v = qkv()
    for lengths in ([17, 3, 5], [1, 2, 0], [4, 4, 4]):
        before = (HOST_READS.conversions, HOST_READS.device_syncs)
        got = compiled(q, k, v, torch.tensor(lengths, dtype=torch.int32))
        assert (HOST_READS.conversions, HOST_READS.device_syncs) == (before[0] + 1, before[1])
        assert torch.equal(got, step(q, k, v, torch.tensor(lengths)))
    assert len(graphs) == 1


def test_dynamic_shapes_trace_once() -> None:
    torch._dynamo.reset()
    graphs = []

    def backend(gm: Any, inputs: Any) -> Any:
        graphs.append(gm)
        return gm.forward

    compiled = torch.compile(step, backend=backend, fullgraph=True, dynamic=True)
    for b, s in ((3, 17), (2, 54), (5, 97)):
        q, k, v = qkv(b=b, s=s)
        lengths = torch.tensor([s - i for i in range(b)])
        assert torch.equal(compiled(q, k, v, lengths), step(q, k, v, lengths))
    assert len(graphs) == 1


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_host_lengths_copies(dtype: torch.dtype) -> None:
    given = torch.tensor([3, 1, 4], dtype=dtype)
    host = torch.ops.ascend_fia.host_lengths(given)
    assert host.dtype == torch.int64 and host.device.type == "cpu" and host.tolist() == [3, 1, 4]
    given.zero_()
    assert host.tolist() == [3, 1, 4]
    host.fill_(7)
    assert given.tolist() == [0, 0, 0]
    assert torch.ops.ascend_fia.host_lengths(torch.zeros(0, dtype=dtype)).shape == (0,)


@pytest.mark.parametrize(
    "bad", [torch.ones(3), torch.ones(3, dtype=torch.bool), torch.ones(1, 3).int(), torch.tensor(3)]
)
def test_host_lengths_refuses(bad: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="lengths has"):
        torch.ops.ascend_fia.host_lengths(bad)
    with FakeTensorMode() as mode, pytest.raises(ValueError, match="lengths has"):
        torch.ops.ascend_fia.host_lengths(mode.from_tensor(bad))


def test_the_operators_pass_torchs_own_checks() -> None:
    torch.library.opcheck(torch.ops.ascend_fia.host_lengths.default, (torch.tensor([3, 1]),))
    lengths = torch.tensor([17, 9, 5])
    torch.library.opcheck(
        FIA, qkv(q=3), {"actual_seq_lengths_kv": lengths, "softmax_lse_flag": True, **HEADS}
    )
    torch.library.opcheck(FIA_V2, qkv(), {"actual_seq_kvlen": lengths, **HEADS_V2})


def test_host_reads_count() -> None:
    reads = HostReads()
    reads.to_host(torch.tensor([1, 2]))
    assert reads.to_list("x", torch.tensor([1, 2])) == [1, 2]
    assert (reads.conversions, reads.device_syncs) == (1, 0)


def test_there_is_no_backward_and_it_says_so() -> None:
    q, k, v = qkv()
    trained = k.requires_grad_()
    with pytest.raises(RuntimeError, match="npu_fused_infer_attention_score has no backward"):
        FIA(q, trained, v, **HEADS)
    with torch.no_grad():
        out, _ = FIA(q, trained, v, **HEADS)
    assert not out.requires_grad
    with torch.inference_mode():
        assert torch.equal(FIA(q, trained, v, **HEADS)[0], out)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiling_for_training_is_refused_too(backend: str) -> None:
    torch._dynamo.reset()
    q, k, v = qkv()
    with pytest.raises(Exception, match="has no backward"):
        torch.compile(lambda a: FIA(a * 2, k, v, **HEADS)[0].sum(), backend=backend)(q.requires_grad_())


def test_a_refusal_of_the_operator_reaches_the_caller() -> None:
    q, k, v = qkv()
    with pytest.raises(ContractError, match="num_heads"):
        FIA(q, k, v, **{**HEADS, "num_key_value_heads": 3})


def test_the_causal_mask_is_one_per_device_while_held() -> None:
    mask = causal_mask("cpu")
    assert mask.dtype == torch.bool and mask.shape == (2048, 2048)
    for i, j in ((0, 0), (0, 1), (1, 0), (2047, 2046), (2046, 2047), (0, 2047), (2047, 0)):
        assert mask[i, j].item() == (j > i)
    assert int(mask.sum()) == 2048 * 2047 // 2
    assert causal_mask(torch.device("cpu")) is mask
    module = torch.nn.Module()
    module.register_buffer("mask", mask, persistent=False)
    gone = weakref.ref(mask)
    del mask
    gc.collect()
    assert causal_mask("cpu") is module.mask
    del module
    gc.collect()
    assert gone() is None


def test_the_causal_mask_is_real_inside_a_trace() -> None:
    with FakeTensorMode(), torch.inference_mode():
        mask = causal_mask("cpu")
    assert type(mask) is torch.Tensor and not mask.is_inference() and mask[0, 1].item()


def test_the_graph_operator_adds_little() -> None:
    """A generous bound, since other work may share the machine."""
    q, k, v = qkv()
    lengths = torch.tensor([17, 9, 5])

    def cost(function: Any) -> float:
        rounds = []
        for _ in range(5):
            start = time.process_time()
            for _ in range(100):
                function()
            rounds.append((time.process_time() - start) / 100)
        return min(rounds)

    with torch.no_grad():
        real = cost(lambda: REAL(q, k, v, actual_seq_lengths_kv=[17, 9, 5], **HEADS))
        graph = cost(lambda: FIA(q, k, v, actual_seq_lengths_kv=lengths, **HEADS))
    assert graph - real < 100e-6
