"""The contract asked while tracing: symbolic sizes, lengths without values, and what a check costs."""

from __future__ import annotations

import gc
import time
import weakref
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from npu_compile.kernels.contract import check

from .contract_calls import FIA, causal, dense, lengths, packed, paged
from .contract_calls_sparse import paged_keys, sparse
from .contract_refusals import REFUSALS
from .test_contract_legal import LEGAL


class Tracing:
    """Fake tensors whose every size of 2 or more is a symbol."""

    def __init__(self) -> None:
        self.shapes = ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self.shapes)

    def fake(self, tensor: torch.Tensor, *static: int) -> torch.Tensor:
        """A fake of ``tensor``; the dims in ``static``, and the ``static`` attribute's, keep their size."""
        sizes = [
            DimDynamic.STATIC if d in static or size < 2 else DimDynamic.DYNAMIC
            for d, size in enumerate(tensor.shape)
        ]
        return self.mode.from_tensor(tensor, symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes))

    def call(self, args: dict[str, Any], **static: tuple[int, ...]) -> dict[str, Any]:
        fakes = {}
        for name, value in args.items():
            fakes[name] = (
                self.fake(value, *static.get(name, ())) if isinstance(value, torch.Tensor) else value
            )
        return fakes


# Heads and head dims are numbers in a model; batch and sequence are symbols.
STATIC = {
    "query": (1, 3),
    "key": (1, 3),
    "value": (1, 3),
    "atten_mask": (0, 1),
    "query_rope": (1, 3),
    "key_rope": (1, 3),
}


@pytest.mark.parametrize("target", ["cpu", "ascend910b"])
@pytest.mark.parametrize(
    "args",
    [
        dense(),
        dense(sparse_mode=3, atten_mask=causal(), actual_seq_lengths_kv=torch.tensor([9, 48])),
        dense(q=1, actual_seq_lengths_kv=torch.tensor([9, 48])),
        dense("BNSD_BSND", sparse_mode=2, atten_mask=causal()),
        paged() | {"actual_seq_lengths_kv": lengths(300, 129)},
    ],
    ids=["dense", "causal", "decode", "to BSND", "paged"],
)
def test_symbolic_calls_are_legal_and_add_no_guard(args: dict[str, Any], target: str) -> None:
    trace = Tracing()
    fakes = trace.call(args, **STATIC)
    assert any(isinstance(size, torch.SymInt) for size in fakes["key"].shape)
    assert check(FIA, fakes, target) == []
    assert trace.shapes.guards == []
    assert not trace.shapes.replacements or all(s.is_Symbol for s in trace.shapes.replacements.values())


def test_every_size_may_be_symbolic() -> None:
    for op, args, targets in LEGAL.values():
        if any(isinstance(value, (list, tuple)) for value in args.values()):
            continue
        trace = Tracing()
        fakes = trace.call(args)
        for target in targets:
            check(op, fakes, target)
        assert trace.shapes.guards == [], op


def test_what_is_certain_is_refused_with_symbols_too() -> None:
    trace = Tracing()
    fakes = trace.call(dense(dtype=torch.float32, sparse_mode=2, atten_mask=causal()), **STATIC)
    assert {v.rule_id for v in check(FIA, fakes, "ascend910b")} == {"fia.dtype.query"}
    fakes["atten_mask"] = trace.fake(torch.zeros(1024, 1024, dtype=torch.bool), 0, 1)
    assert {v.rule_id for v in check(FIA, fakes, "cpu")} == {"fia.mask.compressed"}
    fakes |= {
        "query": trace.fake(torch.zeros(2, 5, 8, 128).transpose(1, 2), 1, 3),
        "sparse_mode": 0,
        "atten_mask": None,
    }
    assert "fia.contiguous" not in {v.rule_id for v in check(FIA, fakes, "cpu")}


def test_a_window_at_decode_is_refused_whatever_the_symbols() -> None:
    """The operator would ignore it; that the keys are few enough for that to be harmless isn't known."""
    trace = Tracing()
    args = dense(q=1, sparse_mode=4, pre_tokens=47, next_tokens=0, atten_mask=causal())
    assert check(FIA, args, "cpu") == []
    assert [v.rule_id for v in check(FIA, trace.call(args, **STATIC), "cpu")] == ["fia.decode.ignored"]


def test_a_strided_symbolic_query_is_seen() -> None:
    trace = Tracing()
    args = dense() | {"query": torch.zeros(2, 5, 8, 128, dtype=torch.bfloat16).transpose(1, 2)}
    found = check(FIA, trace.call(args, **STATIC), "ascend910b")
    assert [(v.rule_id, v.value) for v in found] == [("fia.contiguous", "given with query not contiguous")]


def test_rules_on_values_wait_for_the_values() -> None:
    bad = torch.tensor([9, 49])
    assert [v.rule_id for v in check(FIA, dense(actual_seq_lengths_kv=bad), "cpu")] == [
        "fia.lengths.range.kv"
    ]
    with FakeTensorMode() as mode:
        fakes = {k: mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for k, v in dense().items()}
        fakes["actual_seq_lengths_kv"] = mode.from_tensor(bad)
        assert check(FIA, fakes, "cpu") == []
    on_meta = {k: v.to("meta") if isinstance(v, torch.Tensor) else v for k, v in dense().items()}
    assert check(FIA, on_meta | {"actual_seq_lengths_kv": bad.to("meta")}, "cpu") == []


def test_the_form_of_tensor_lengths_is_checked_without_values() -> None:
    fakes = packed([3, 5], [4, 6]) | {"actual_seq_lengths": torch.zeros(3, dtype=torch.int64, device="meta")}
    assert [v.rule_id for v in check(FIA, fakes, "cpu")] == ["fia.lengths.count.kv"]


def test_a_bad_block_id_beyond_the_length_is_nobodys_business() -> None:
    args = paged() | {"actual_seq_lengths_kv": [128, 129]}
    args["block_table"] = torch.tensor([[5, -7, 99], [2, 3, 99]], dtype=torch.int32)
    assert check(FIA, args, "cpu") == []
    args["actual_seq_lengths_kv"] = [129, 129]
    assert [v.value for v in check(FIA, args, "cpu")] == ["-7, with 6 blocks"]


def test_one_length_counts_for_all_rows_of_the_table() -> None:
    args = paged() | {"actual_seq_lengths_kv": [129]}
    args["block_table"] = torch.tensor([[5, 1, 0], [2, 6, 0]], dtype=torch.int32)
    assert [v.value for v in check(FIA, args, "cpu")] == ["6, with 6 blocks"]


def test_sparse_indices_are_read_row_by_row() -> None:
    args = paged_keys(sparse(), "kv")
    for row, said in [
        ([0, 1, 2, -1], None),
        ([3, 1, 1, -1], "a row with one number twice"),
        ([-1, 0, 1, 2], "a row with a value below -1, or with -1 before a valid one"),
        ([0, -2, -2, -2], "a row with a value below -1, or with -1 before a valid one"),
        ([20, 1, 2, -1], "20, with at most 20 keys"),
        ([19, 1, 2, -1], None),
    ]:
        args["sparse_indices"] = lengths(*row).repeat(2, 3, 1, 1)
        assert [v.value for v in check("npu_sparse_flash_attention", args, "cpu")] == (
            [said] if said else []
        ), row


def test_nothing_is_kept_alive() -> None:
    args = paged()
    gone = [weakref.ref(value) for value in args.values() if isinstance(value, torch.Tensor)]
    assert check(FIA, args, "cpu") == []
    del args
    gc.collect()
    assert [ref() for ref in gone] == [None] * len(gone)


def test_a_remembered_verdict_depends_on_everything_but_values() -> None:
    for case in REFUSALS.values():
        first = check(case.op, case.args, case.target)
        assert check(case.op, dict(case.args), case.target) == first != []
    for op, args, targets in LEGAL.values():
        for target in targets:
            assert check(op, args, target) == check(op, args, target) == []


def _cpu_time(function: Any, calls: int = 200) -> float:
    """Seconds of CPU a call takes, the best of some rounds."""
    function()
    rounds = []
    for _ in range(5):
        start = time.process_time()
        for _ in range(calls):
            function()
        rounds.append((time.process_time() - start) / calls)
    return min(rounds)


def test_a_repeated_check_is_cheap() -> None:
    """A generous bound, since other work may share the machine; alone it is some 10 us."""
    args = paged() | {"actual_seq_lengths_kv": [300, 129]}
    assert _cpu_time(lambda: check(FIA, args, "cpu")) < 100e-6
