"""The pass on graphs: what it inserts, what it keeps, what it refuses."""

from __future__ import annotations

import pytest
import torch

from npu_compile.kernels.targets import Target
from npu_compile.parallel.layout.interleave import Interleave
from npu_compile.parallel.metadata import prefill_metadata
from npu_compile.passes.context_parallel.collectives import Group
from npu_compile.passes.context_parallel.config import ContextParallel, StepInputs
from npu_compile.passes.context_parallel.errors import ContextParallelError
from npu_compile.passes.context_parallel.fia_call import FiaCall
from npu_compile.passes.context_parallel.legality import decode_reason
from npu_compile.passes.context_parallel.rewrite import Rewritten, rewrite
from npu_compile.passes.site import SiteOutcome
from npu_compile.passes.verify import verify

from .lowered import causal_inputs, causal_program, decode_inputs, decode_program, targets, traced

GROUP = Group("a group", 2)
FIA = "npu_fused_infer_attention_score"


NAMES = (
    "total_q_prev_tokens", "rows_per_rank", "q_lengths_prev", "kv_lengths_prev", "kv_rows_prev",
    "q_lengths_next", "kv_lengths_next", "kv_rows_next",
)  # fmt: skip


def prefill(block_size=0):
    steps = StepInputs(block_size)
    steps.load(prefill_metadata([10, 6], 0, Interleave(2)))
    return ContextParallel("prefill", GROUP, steps=steps)


def fia_calls(module):
    return [node for node in module.graph.nodes if getattr(node.target, "_opname", "") == FIA]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("sparse_mode", "kept"), [(2, 3), (3, 3), (4, 4)])
def test_a_causal_call_becomes_two_packed_calls_on_gathered_keys(dynamic, sparse_mode, kept):
    arguments = {"pre_tokens": 5, "next_tokens": 0} if sparse_mode == 4 else {}
    module = traced(causal_program(sparse_mode, **arguments), *causal_inputs(), dynamic=dynamic)
    inputs = rewrite(module, prefill()).inputs
    names = targets(module)
    assert [n for n in names if n.startswith(("all_", "wait", "npu"))] == [
        *["all_gather_into_tensor"] * 2, *["wait_tensor"] * 2, FIA, FIA,
    ]  # fmt: skip
    verify(module.graph)
    assert [node.target for node in inputs] == ["context_parallel_" + name for name in NAMES]
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    assert tuple(placeholders[-len(inputs) :]) == inputs and len(placeholders) == 4 + len(inputs)
    named = dict(zip(NAMES, inputs, strict=True))
    for call, half in zip(fia_calls(module), ("prev", "next"), strict=True):
        assert call.kwargs["input_layout"] == "TND" and call.kwargs["sparse_mode"] == kept
        assert call.kwargs["actual_seq_lengths"].args[0] is named[f"q_lengths_{half}"]
        assert call.kwargs["actual_seq_lengths_kv"].args[0] is named[f"kv_lengths_{half}"]
        assert call.kwargs["atten_mask"] is placeholders[3] and call.kwargs["scale"] == 0.25
        assert call.kwargs.get("pre_tokens") == arguments.get("pre_tokens")
    (output,) = module.graph.find_nodes(op="output")
    assert tuple(output.args[0].meta["val"].shape)[:2] == (1, 4)


def test_paged_keys_are_restored_once_and_shared():
    module = traced(causal_program(), *causal_inputs(), dynamic=True)
    inputs = rewrite(module, prefill(block_size=16)).inputs
    verify(module.graph)
    named = {node.target.removeprefix("context_parallel_"): node for node in inputs}
    assert [*named] == [*NAMES[:-1], "block_table"]
    first, second = fia_calls(module)
    assert first.args[1:] == second.args[1:]
    for call in (first, second):
        assert call.kwargs["block_table"] is named["block_table"] and call.kwargs["block_size"] == 16
        assert tuple(call.args[1].meta["val"].shape[1:]) == (16, 2 * 16)


def test_the_split_is_an_input_and_not_a_constant():
    module = traced(causal_program(), *causal_inputs())
    inputs = rewrite(module, prefill()).inputs
    (split,) = [n for n in module.graph.nodes if getattr(n.target, "_opname", "") == "split_with_sizes"]
    assert split.args[1][0] is inputs[0]


def test_layers_share_the_step():
    two = lambda q, k, v, m: causal_program()(causal_program()(q, k, v, m), k, v, m)  # noqa: E731
    module = traced(two, *causal_inputs())
    assert len(rewrite(module, prefill()).inputs) == len(NAMES)
    assert len(fia_calls(module)) == 4


def test_a_latent_that_is_key_and_value_is_gathered_once():
    def program(q, c, rope_q, rope_k, mask):
        return torch.ops.ascend_fia.npu_fused_infer_attention_score_v2.default(
            q, c, c, query_rope=rope_q, key_rope=rope_k, atten_mask=mask, num_query_heads=4,
            num_key_value_heads=1, softmax_scale=0.2, input_layout="BNSD", sparse_mode=3,
        )[0]  # fmt: skip

    shapes = ((1, 4, 8, 32), (1, 1, 8, 32), (1, 4, 8, 8), (1, 1, 8, 8))
    module = traced(program, *(torch.randn(shape) for shape in shapes), causal_inputs()[3])
    rewrite(module, prefill())
    gathers = [n for n in module.graph.nodes if getattr(n.target, "_opname", "") == "all_gather_into_tensor"]
    assert [tuple(node.args[0].meta["val"].shape)[1:] for node in gathers] == [(1, 32), (1, 8)]
    for call in (n for n in module.graph.nodes if getattr(n.target, "_opname", "").startswith("npu_fused")):
        assert call.args[1] is call.args[2]


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_decode_call_becomes_local_attention_exchange_and_merge(dynamic):
    module = traced(decode_program(), *decode_inputs(), dynamic=dynamic)
    assert rewrite(module, ContextParallel("decode", GROUP)).inputs == ()
    assert [n for n in targets(module) if n.startswith(("all_", "wait", "npu"))] == [
        FIA, "all_to_all_single", "wait_tensor", "npu_attention_update",
        "all_gather_into_tensor", "wait_tensor",
    ]  # fmt: skip
    (call,) = fia_calls(module)
    assert call.kwargs["softmax_lse_flag"] is True and call.args[0].target == "q_1"
    (exchange,) = [n for n in module.graph.nodes if getattr(n.target, "_opname", "") == "all_to_all_single"]
    if not dynamic:
        assert exchange.args[0].meta["val"].shape == (4, 17, 3) and exchange.args[1] == [2, 2]
    (update,) = [n for n in module.graph.nodes if getattr(n.target, "_opname", "") == "npu_attention_update"]
    assert len(update.args[0]) == len(update.args[1]) == 2 and update.args[2] == 1


def test_sharded_heads_gather_the_queries_and_keep_their_own_output():
    module = traced(decode_program(heads=2), *decode_inputs(heads=2))
    rewrite(module, ContextParallel("decode", GROUP, heads_sharded=True))
    assert [n for n in targets(module) if n.startswith(("all_", "npu"))] == [
        "all_gather_into_tensor", FIA, "all_to_all_single", "npu_attention_update",
    ]  # fmt: skip
    (call,) = fia_calls(module)
    assert call.kwargs["num_heads"] == 4 and call.args[0].meta["val"].shape == (3, 4, 1, 16)
    (output,) = module.graph.find_nodes(op="output")
    assert output.args[0].meta["val"].shape == (3, 2, 1, 16)


def test_new_nodes_point_into_the_users_program():
    module = traced(decode_program(), *decode_inputs())
    for node in module.graph.nodes:
        node.meta["stack_trace"] = f"line of {node.name}"
    rewrite(module, ContextParallel("decode", GROUP))
    (exchange,) = [n for n in module.graph.nodes if getattr(n.target, "_opname", "") == "all_to_all_single"]
    assert exchange.meta["stack_trace"] == f"line of {FIA}"


def test_a_graph_without_attention_stays_as_it_is():
    module = traced(lambda x: x + 1, torch.randn(3))
    before = str(module.graph)
    assert rewrite(module, prefill()) == Rewritten() and str(module.graph) == before


@pytest.mark.parametrize(
    ("program", "inputs", "config", "reason"),
    [
        (causal_program(0), causal_inputs(), "prefill", "sparse_mode 0 is not causal"),
        (causal_program(1), causal_inputs(), "prefill", "sparse_mode 1 is not causal"),
        (causal_program(2), causal_inputs(keys=9), "prefill", "aligned top-left with more keys than queries"),
        (causal_program(4, next_tokens=3), causal_inputs(), "prefill", "a band with next_tokens 3"),
        (causal_program(inner_precise=1, block_size=16), causal_inputs(), "prefill", "argument block_size"),
        (decode_program(sparse_mode=3), decode_inputs(), "decode", r"a mask \(sparse_mode 3\)"),
        (
            decode_program(),
            (torch.randn(3, 4, 2, 16), *decode_inputs()[1:]),
            "decode",
            "several query tokens",
        ),
    ],
)
def test_what_depends_on_other_ranks_tokens_is_refused(program, inputs, config, reason):
    module = traced(program, *inputs)
    with pytest.raises(ContextParallelError, match=reason):
        rewrite(module, prefill() if config == "prefill" else ContextParallel("decode", GROUP))


def test_sinks_are_refused_in_decode():
    """Each rank would add them to its own part of the softmax."""
    q, k, v, _ = decode_inputs()
    operator = torch.ops.ascend_fia.npu_fused_infer_attention_score_v2.default
    arguments = {"num_query_heads": 4, "num_key_value_heads": 2, "input_layout": "BNSD"}
    call = FiaCall(operator, q, k, v, {**arguments, "learnable_sink": torch.zeros(4)})
    assert decode_reason(call, 2, False) == "argument learnable_sink has no known meaning over ranks"


def test_rows_that_the_program_fills_are_refused():
    """A float mask's rows without keys: the fill is for rows without keys on *this* rank."""

    def filled_after(q, k, v, lengths):
        return decode_program()(q, k, v, lengths).masked_fill(torch.ones(3, 1, 1, 1) > 0, float("nan"))

    def filled_before(q, k, v, lengths):
        return decode_program()(q.masked_fill(torch.ones(3, 1, 1, 1) > 0, 0.0), k, v, lengths)

    for program in (filled_before, filled_after):
        module = traced(program, *decode_inputs())
        if program is filled_after:  # without the doubling in between
            (double,) = [node for node in module.graph.nodes if node.target is torch.ops.aten.mul.Tensor]
            double.replace_all_uses_with(double.args[0])
        with pytest.raises(ContextParallelError, match="rows without keys are filled"):
            rewrite(module, ContextParallel("decode", GROUP))


@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_a_log_sum_exp_that_is_read_is_refused(mode):
    def with_sink(q, k, v, sink):
        arguments = {"num_heads": 4, "num_key_value_heads": 2, "scale": 0.25, "input_layout": "BNSD"}
        if mode == "prefill":
            arguments |= {"sparse_mode": 3, "atten_mask": torch.ones_like(k[0, 0], dtype=torch.bool)}
        out, lse = torch.ops.ascend_fia.npu_fused_infer_attention_score.default(
            q, k, v, softmax_lse_flag=True, **arguments
        )
        return out * torch.sigmoid(lse - sink)

    q, k, v, _ = causal_inputs() if mode == "prefill" else decode_inputs(batch=1)
    module = traced(with_sink, q, k, v, torch.randn(1, 4, 1, 1))
    before = module.code
    with pytest.raises(ContextParallelError, match="its log-sum-exp is read"):
        rewrite(module, prefill() if mode == "prefill" else ContextParallel("decode", GROUP))
    assert module.code == before


def test_devices_get_head_dims_that_packed_calls_take():
    """D 64 with shared K/V heads is padded to 128; 128 is not; 256 can't be packed."""
    for dim, padded in ((64, 128), (80, 128), (128, 128)):
        q, k, v, mask = causal_inputs()
        q, k, v = (torch.randn(*x.shape[:-1], dim, dtype=torch.bfloat16) for x in (q, k, v))
        module = traced(causal_program(layout="BNSD_BSND"), q, k, v, mask)
        rewrite(module, prefill(), target=Target.ASCEND910B)
        for call in fia_calls(module):
            assert {call.args[i].meta["val"].shape[-1] for i in range(3)} == {padded}
        (output,) = module.graph.find_nodes(op="output")
        assert output.args[0].meta["val"].shape[-1] == dim
    q, k, v = (torch.randn(*x.shape[:-1], 256, dtype=torch.bfloat16) for x in (q, k, v))
    module = traced(causal_program(layout="BNSD_BSND"), q, k, v, mask)
    with pytest.raises(ContextParallelError, match=r"packed layouts \(T\) take D 64 or 128"):
        rewrite(module, prefill(), target=Target.ASCEND910B)


def test_notes_say_what_the_collectives_cost():
    q, k, v, mask = causal_inputs()
    module = traced(causal_program(), q, k, v, mask, dynamic=True)
    notes = rewrite(module, prefill()).notes
    # Per layer K and V: 8 rows of 2 heads of 16 float32 from one other rank.
    assert (
        notes[0] == "context parallel prefill over 2 ranks: 2 collectives a step bring 2,048 bytes to a rank"
    )
    assert notes[1] == "2 all_gather: 2,048 bytes, 0 of them beside computation"
    assert notes[2] == "tokens on a rank: 8 to 8, max/min 1.00"
    module = traced(decode_program(), *decode_inputs(), dynamic=True)
    notes = rewrite(module, ContextParallel("decode", GROUP)).notes
    # Half of 4 heads of (16 + 1) float32 for 3 sequences, then half of 4 heads of 16.
    assert notes[1:] == (
        f"1 all_gather: {2 * 16 * 3 * 4} bytes, 0 of them beside computation",
        f"1 all_to_all: {2 * 17 * 3 * 4} bytes, 0 of them beside computation",
    )


def test_two_sequences_in_a_batch_are_refused_in_prefill():
    q, k, v, mask = causal_inputs()
    module = traced(causal_program(), *(x.expand(2, -1, -1, -1) for x in (q, k, v)), mask)
    with pytest.raises(ContextParallelError, match="batch 2: the sequences of a step are packed"):
        rewrite(module, prefill())


def test_an_attention_that_was_not_lowered_is_an_error():
    module = traced(decode_program(), *decode_inputs())
    left = SiteOutcome("sdpa", "sdpa", "layers.3.self_attn", "model.py:7", reason="dropout is active")
    with pytest.raises(
        ContextParallelError, match=r"layers.3.self_attn is not a fused call: dropout is active"
    ):
        rewrite(module, ContextParallel("decode", GROUP), [left])


def test_a_decomposition_is_not_split():
    module = traced(decode_program(), *decode_inputs())
    site = SiteOutcome("softmax", "softmax", "layers.3.self_attn", "model.py:7", op="softcap_attention")
    with pytest.raises(ContextParallelError, match=r"layers.3.self_attn is softcap_attention, which is not"):
        rewrite(module, ContextParallel("decode", GROUP), [site])


def test_metadata_must_be_loaded_before_the_graph_is_compiled():
    module = traced(causal_program(), *causal_inputs())
    with pytest.raises(RuntimeError, match="before its metadata was loaded"):
        rewrite(module, ContextParallel("prefill", GROUP))
