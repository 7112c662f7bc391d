"""Captured graphs belong to their callables: no tensors in modules, no names of the old graph-task path."""

import importlib
import pkgutil
import re
from pathlib import Path

import pytest
import torch

from npu_compile import runtime
from npu_compile.runtime import capture
from tests.npu_compile.runtime.decode_graphs import decode_graph, fresh_state, step_inputs

SOURCES = sorted(Path(runtime.__file__).parent.glob("*.py"))
REMOVED = (
    r"_npu_paged_attention|_npu_flash_attention|graph_task_group_begin|graph_task_update_begin|^ *global "
)


def holds_tensors(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(holds_tensors, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(holds_tensors, value))
    return isinstance(value, torch.Tensor)


def test_no_module_holds_a_tensor() -> None:
    function, state = capture(decode_graph(1)), fresh_state(1)
    for step in range(3):
        function(*step_inputs(step), *state)
    for info in pkgutil.iter_modules(runtime.__path__, runtime.__name__ + "."):
        module = importlib.import_module(info.name)
        assert not [name for name, value in vars(module).items() if holds_tensors(value)], info.name


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_no_source_uses_the_graph_task_path(source: Path) -> None:
    assert re.findall(REMOVED, source.read_text(), re.MULTILINE) == []


def test_two_callables_share_nothing() -> None:
    first, second = capture(decode_graph(2)), capture(decode_graph(2))
    for function in (first, second):
        state = fresh_state(2)
        for step in range(2):
            function(*step_inputs(step), *state)
    mine, theirs = first.graphs[0], second.graphs[0]
    assert mine.outputs[0].data_ptr() != theirs.outputs[0].data_ptr()
    mine.update([{"actual_seq_lengths_kv": [9, 9]}])
    assert [record.lengths["actual_seq_lengths_kv"] for record in theirs.records] == [[2, 2]] * 2
