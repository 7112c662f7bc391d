"""The software NPU itself: a device that torch takes for an NPU, with what a real one refuses."""

import pytest
import torch
from torch import Tensor

from npu_compile.kernels.contract.rule import ContractError
from tests.softnpu import softnpu


def test_the_device_is_there() -> None:
    assert torch.npu.is_available()
    assert torch.npu.get_device_name() == "Ascend910B1"


def test_tensors_go_there_and_back() -> None:
    x = torch.randn(17, 5)
    y = x.npu()
    assert y.device.type == "npu"
    assert torch.equal(y.cpu(), x)
    assert torch.equal(y.t()[1:].contiguous().cpu(), x.t()[1:])
    torch.testing.assert_close((y @ y.T).cpu(), x @ x.T)


def test_fresh_memory_is_garbage() -> None:
    assert torch.empty(1 << 22, device="npu")[-1].isnan().item()


def test_streams_and_events() -> None:
    side, event = torch.npu.Stream(), torch.npu.Event()
    x = torch.ones(5, device="npu")
    with torch.npu.stream(side):
        y = x * 3
        event.record()
    event.wait()
    assert (y + 1).tolist() == [4.0] * 5


@pytest.mark.parametrize("seed", range(1, 6))
def test_lazy_schedules_show_a_missing_wait(seed: int) -> None:
    x = torch.zeros(5, device="npu")
    side = torch.npu.Stream()

    def race(waits: bool) -> Tensor:
        x.zero_()
        torch.npu.synchronize()
        with softnpu.lazy(seed):
            with torch.npu.stream(side):
                x.add_(1)
            if waits:
                torch.npu.current_stream().wait_stream(side)
            result = x * 10
            return result.cpu()

    assert race(waits=True).tolist() == [10.0] * 5
    assert race(waits=False).tolist() == [0.0] * 5


def attend(q: Tensor, k: Tensor, **arguments: object) -> Tensor:
    heads = {"num_heads": q.shape[1], "num_key_value_heads": k.shape[1], "input_layout": "BNSD"}
    return torch.ops.npu.npu_fused_infer_attention_score(q, k, k, **heads, **arguments)[0]


def test_attention_is_this_projects_kernel() -> None:
    q, k = (torch.randn(2, n, s, 16, dtype=torch.bfloat16) for n, s in ((4, 1), (2, 9)))
    on_npu = q.npu(), k.npu()
    with softnpu.launches() as names:
        got = attend(*on_npu, actual_seq_lengths_kv=[3, 9], scale=0.25)
    assert names == ["npu::npu_fused_infer_attention_score"]
    torch.testing.assert_close(got.cpu(), attend(q, k, actual_seq_lengths_kv=[3, 9], scale=0.25))


def test_the_machine_refuses_what_an_ascend910b_refuses() -> None:
    q, k = torch.randn(2, 4, 1, 16, device="npu"), torch.randn(2, 2, 9, 16, device="npu")
    with pytest.raises(ContractError, match=r"ascend910b: query is torch.float32"):
        attend(q, k)


def test_an_operator_without_a_kernel_says_so() -> None:
    with pytest.raises(RuntimeError, match="libopapi"):
        torch.ops.npu.npu_geglu(torch.randn(4, 4, device="npu"))
