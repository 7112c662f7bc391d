import subprocess
import sys
import types

import pytest

from npu_compile.versions import Execution, Installed, execution, installed, violations


@pytest.mark.parametrize(
    ("torch", "npu", "update", "rules"),
    [
        ("2.8.0", "2.8.0.post1", True, []),
        ("2.9.0+cpu", "2.9.0", True, []),
        ("2.13.0+cpu", "2.13.0", None, []),
        ("2.9.1", "2.9.0", True, []),
        ("2.14.0.dev20260101", "2.14.0.dev1", True, []),
        ("2.8.0", "2.8.0", True, ["torch-npu >= 2.8.0.post1 is needed"]),
        ("2.9.0", "2.8.0.post2", True, ["both must have the same major.minor version"]),
        ("2.7.1", "2.7.1", True, ["torch >= 2.8.0 is needed", "torch-npu >= 2.8.0.post1 is needed"]),
        ("2.13.0", "2.13.0.dev1", True, ["a pre-release of torch-npu does not match a released torch"]),
        ("2.13.0", "2.13.0rc1", True, ["a pre-release of torch-npu does not match a released torch"]),
        ("2.13.0", "abc", True, ["cannot parse torch-npu version 'abc'"]),
        ("git-1234", "2.13.0", True, ["cannot parse torch version 'git-1234'"]),
        ("2.13.0", "2.13.0", False, ["torch.npu.NPUGraph.update is missing"]),
        ("2.13.0", None, None, ["an NPU needs torch-npu: pip install 'npu-compile[npu]'"]),
    ],
)
def test_rules(torch, npu, update, rules):
    pair = f"torch {torch} with torch-npu {npu or '(not installed)'}"
    assert violations(Installed(torch, npu, update)) == [f"{pair}: {rule}" for rule in rules]


def test_an_npu_needs_a_good_pair():
    assert execution("npu", Installed("2.13.0", "2.13.0", True)) == Execution("fused operators (npu)")
    with pytest.raises(RuntimeError, match=r"torch 2\.9\.0 with torch-npu 2\.8\.0\.post2: both must"):
        execution("npu", Installed("2.9.0", "2.8.0.post2", True))
    with pytest.raises(RuntimeError, match=r"torch 2\.9\.0 with torch-npu \(not installed\)"):
        execution("npu", Installed("2.9.0", None))


def test_a_cpu_needs_none_and_says_that_it_is_the_reference():
    assert execution("cpu", Installed("2.13.0", None)) == Execution("reference (cpu)")
    assert execution("meta", Installed("2.13.0", None)).where == "shapes only (meta)"


def test_a_bad_torch_npu_is_not_hidden_on_a_cpu():
    notes = execution("cpu", Installed("2.13.0", "2.9.0")).notes
    assert notes == ("torch 2.13.0 with torch-npu 2.9.0: both must have the same major.minor version",)


@pytest.mark.parametrize(("members", "found"), [({"update": print}, True), ({}, False)])
def test_the_graph_update_is_looked_for_where_torch_npu_is_loaded(monkeypatch, members, found):
    import torch

    npu = types.SimpleNamespace(NPUGraph=type("NPUGraph", (), members))
    monkeypatch.setitem(sys.modules, "torch_npu", types.ModuleType("torch_npu"))
    monkeypatch.setattr(torch, "npu", npu, raising=False)
    assert installed().graph_update is found


def test_versions_are_looked_up_without_importing_torch():

    code = (
        "import sys; from npu_compile.versions import installed; installed(); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
