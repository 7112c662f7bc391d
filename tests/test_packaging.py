"""`passes` and `kernels` are importable inside npu_compile only: Hugging Face has a package `kernels`.

Checked for the three ways the project is met: installed in editable mode, as a wheel, and with
the repository root as the current directory; each with and without a package `kernels` later on
the path.
"""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from transformers.utils.import_utils import KERNELS_MIN_VERSION

ROOT = Path(__file__).parents[1]
WAYS = ["editable", "wheel", "root"]

REPORT = """
import importlib, json, sys
from transformers.utils.import_utils import is_kernels_available

def home(name):
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError:
        return None
    return getattr(module, "__file__", None) or "namespace"

names = ["npu_compile", "npu_compile.passes.site", "npu_compile.kernels.targets", "kernels", "passes"]
print(json.dumps({**{name: home(name) for name in names}, "available": is_kernels_available()}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a copy of the sources so that nothing is left in the checkout."""
    source, out = tmp_path_factory.mktemp("source") / "project", tmp_path_factory.mktemp("wheel")
    source.mkdir()
    for folder in ("npu_compile", "passes", "kernels"):
        shutil.copytree(ROOT / folder, source / folder, symlinks=True)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        out,
        source,
    ]
    subprocess.run(build, check=True, capture_output=True)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def unpacked(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def hugging_face_kernels(tmp_path_factory):
    """A folder with packages `kernels`, of a version that transformers takes, and `passes`."""
    folder = tmp_path_factory.mktemp("others")
    for name in ("kernels", "passes"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("")
    info = folder / f"kernels-{KERNELS_MIN_VERSION}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: kernels\nVersion: {KERNELS_MIN_VERSION}\n")
    return folder


def look(way, unpacked, cwd, *later):
    """What a fresh interpreter imports where the project is met this ``way``."""
    path = [*([str(unpacked)] if way == "wheel" else []), *map(str, later)]
    done = subprocess.run(
        [sys.executable, "-c", REPORT],
        cwd=ROOT if way == "root" else cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("way", WAYS)
def test_no_kernels_of_ours_is_seen(way, unpacked, tmp_path):
    found = look(way, unpacked, tmp_path)
    home = unpacked if way == "wheel" else ROOT
    assert found["npu_compile"] == str(home / "npu_compile" / "__init__.py")
    for name in ("npu_compile.passes.site", "npu_compile.kernels.targets"):
        assert found[name] == str(home / name.replace(".", "/")) + ".py"
    # With the root as current directory they are namespace portions, which any real package overrides.
    assert found["kernels"] == found["passes"] == ("namespace" if way == "root" else None)
    assert found["available"] is False


@pytest.mark.parametrize("way", WAYS)
def test_the_real_kernels_is_seen(way, unpacked, tmp_path, hugging_face_kernels):
    found = look(way, unpacked, tmp_path, hugging_face_kernels)
    assert found["kernels"] == str(hugging_face_kernels / "kernels" / "__init__.py")
    assert found["passes"] == str(hugging_face_kernels / "passes" / "__init__.py")
    assert found["available"] is True
    home = unpacked if way == "wheel" else ROOT
    assert found["npu_compile.kernels.targets"] == str(home / "npu_compile" / "kernels" / "targets.py")


def test_the_wheel_holds_every_module_and_one_top_level_package(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.split("/")[0].split("-")[0] for name in names} == {"npu_compile"}
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "npu_compile").glob("**/*.py")}
    for folder in ("passes", "kernels"):
        modules |= {f"npu_compile/{path.relative_to(ROOT)}" for path in (ROOT / folder).glob("**/*.py")}
    assert {name for name in names if name.endswith(".py")} == modules
    assert "npu_compile/py.typed" in names


def test_metadata(unpacked):
    (info,) = unpacked.glob("*.dist-info")
    metadata = Parser().parsestr((info / "METADATA").read_text())
    needs = [Requirement(text) for text in metadata.get_all("Requires-Dist")]
    always = {need.name for need in needs if need.marker is None}
    assert always == {"torch", "numpy", "sympy", "packaging", "rich"}
    (npu,) = [need for need in needs if need.name == "torch-npu"]
    assert str(npu.marker) == 'extra == "npu"'
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "ascend_fia = npu_compile.backend:ascend_fia" in (info / "entry_points.txt").read_text()


def test_the_backend_is_found_without_an_import(tmp_path):
    code = (
        "import sys, torch; names = torch._dynamo.list_backends();"
        "print('ascend_fia' in names, 'npu_compile' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.split() == ["True", "False"], done.stderr


def test_importing_the_package_imports_no_torch(tmp_path):
    code = "import sys, npu_compile; print(sorted({'torch', 'transformers', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
