import os
import subprocess
import sys
from dataclasses import replace

import pytest

from npu_compile.doctor import Facts, Probe, diagnose

PACKAGES = {"npu-compile": "0.1.0", "torch": "2.13.0", "torch-npu": None, "transformers": None}
WITH_NPU = {**PACKAGES, "torch-npu": "2.13.0"}
WORKS = {"torch": "2.13.0", "graph_update": None, "npus": [], "attention": {"cpu": 3e-8}}
ON_NPU = {**WORKS, "graph_update": True, "npus": ["Ascend910B3"] * 2, "attention": {"cpu": 0.0, "npu": 1e-3}}
NO_CANN = (
    "Traceback (most recent call last):\n"
    "ImportError: libhccl.so: cannot open shared object file: No such file or directory\n"
    "RuntimeError: Failed to load the backend extension: torch_npu."
)
CPU_ONLY = Facts(PACKAGES, None, True, Probe(WORKS))


def test_a_cpu_machine_is_in_order():
    found = diagnose(CPU_ONLY)
    assert found.wrong == ()
    assert found.runs["cpu"].startswith("reference kernels; checked: attention lowered")
    assert "3.0e-08" in found.runs["cpu"]
    assert found.runs["npu"].startswith("nothing: torch-npu is not installed")


def test_an_npu_machine_is_in_order():
    found = diagnose(Facts(WITH_NPU, "/opt/cann", True, Probe(ON_NPU)))
    assert found.wrong == ()
    assert found.runs["npu"].startswith("fused operators on 2 x Ascend910B3; checked")
    assert "1.0e-03" in found.runs["npu"]


def test_torch_npu_without_cann_is_explained():
    found = diagnose(Facts(WITH_NPU, None, True, Probe(error=NO_CANN), Probe(WORKS)))
    (line,) = found.wrong
    assert "libhccl.so of CANN can't be loaded" in line
    assert "set_env.sh" in line and "pip uninstall torch-npu" in line
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in line
    assert found.runs["cpu"].startswith("reference kernels")
    assert found.runs["npu"] == "nothing: torch-npu can't be loaded"


def test_a_broken_torch_is_not_blamed_on_torch_npu():
    error = Probe(error="ImportError: libtorch_cpu.so: undefined symbol: foo")
    for facts in (Facts(PACKAGES, None, True, error), Facts(WITH_NPU, None, True, error, error)):
        found = diagnose(facts)
        assert found.wrong == ("import torch fails: ImportError: libtorch_cpu.so: undefined symbol: foo",)
        assert found.runs["cpu"] == found.runs["meta"] == "nothing: import torch fails"
        assert found.runs["npu"].startswith("nothing")


@pytest.mark.parametrize(
    ("probe", "version", "wrong", "runs"),
    [
        (ON_NPU, "2.9.0", "torch 2.13.0 with torch-npu 2.9.0: both must", "don't go together"),
        ({**ON_NPU, "graph_update": False}, "2.13.0", "NPUGraph.update is missing", "don't go together"),
        ({**WORKS, "graph_update": True}, "2.13.0", None, "nothing: torch-npu sees no device"),
        (
            {**WORKS, "attention": {"cpu": "ValueError: x"}},
            "2.13.0",
            "on cpu fails its check: ValueError: x",
            "",
        ),
    ],
)
def test_what_is_wrong_with_a_torch_npu_that_loads(probe, version, wrong, runs):
    found = diagnose(Facts({**WITH_NPU, "torch-npu": version}, "/opt/cann", True, Probe(probe)))
    assert (wrong in found.wrong[0]) if wrong else (found.wrong == ())
    assert runs in found.runs["npu"]


def test_a_missing_registration_is_wrong():
    assert diagnose(replace(CPU_ONLY, registered=False)).wrong == (
        "the backend is not registered: pip install npu-compile again",
    )


def run_doctor(**environment):
    return subprocess.run(
        [sys.executable, "-m", "npu_compile.cli", "doctor"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def torch_npu_without_cann(tmp_path):
    """A torch-npu that torch loads by itself and that fails as the real one does without CANN."""
    package, info = tmp_path / "torch_npu", tmp_path / "torch_npu-2.13.0.dist-info"
    package.mkdir()
    info.mkdir()
    message = "libhccl.so: cannot open shared object file: No such file or directory"
    (package / "__init__.py").write_text(f"raise ImportError({message!r})\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-npu\nVersion: 2.13.0\n")
    (info / "entry_points.txt").write_text("[torch.backends]\ntorch_npu = torch_npu:_autoload\n")
    return str(tmp_path)


def test_the_command_survives_a_torch_that_can_not_be_imported(torch_npu_without_cann):
    environment = {"PYTHONPATH": torch_npu_without_cann}
    broken = subprocess.run(
        [sys.executable, "-c", "import torch"], env={**os.environ, **environment}, capture_output=True
    )
    assert broken.returncode != 0, "this test needs an `import torch` that fails"
    done = run_doctor(**environment)
    text = " ".join(done.stdout.split())
    assert done.returncode == 1, done.stderr
    assert "torch-npu 2.13.0" in text
    assert "libhccl.so of CANN can't be loaded" in text
    assert "cpu reference kernels; checked: attention lowered" in text


def test_the_command_on_this_machine():
    done = run_doctor()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "checked: attention lowered" in done.stdout
    assert done.stdout.rstrip().endswith("nothing")
