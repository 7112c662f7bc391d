"""Stand-ins for the CANN libraries, so that torch_npu can be loaded on a machine without CANN.

torch_npu links against a handful of libraries that only come with CANN. They are built here as empty
libraries; one of them defines every function that torch_npu's libraries need and nobody else has, and all
of these return 0. That is enough to import torch_npu, and to ask it for schemas and meta functions.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import torch

from .wheel import Unavailable, one_at_a_time

NEEDED = re.compile(r"\(NEEDED\).*\[(.+)\]")
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


def build(site: Path) -> Path:
    """The folder with the stand-ins for the torch_npu in ``site``. Raises Unavailable without gcc."""
    for tool in ("gcc", "nm", "readelf"):
        if shutil.which(tool) is None:
            raise Unavailable(f"{tool} is needed to build stand-ins for CANN, and isn't here")
    folder = site / "stubs"
    with one_at_a_time():
        if not (folder / "complete").exists():
            folder.mkdir(exist_ok=True)
            _build(site, folder)
            (folder / "complete").touch()
    return folder


def _build(site: Path, folder: Path) -> None:
    libraries = [*site.glob("torch_npu/_C*.so"), *site.glob("torch_npu/lib/*.so")]
    torch_libraries = [*Path(torch.__file__).parent.glob("lib/*.so*")]
    first, *others = missing_libraries(libraries, torch_libraries)
    source = folder / "stubs.c"
    functions = missing_functions(libraries, torch_libraries)
    source.write_text("".join(f"long {name}(void) {{ return 0; }}\n" for name in functions))
    _library(folder / first, source)
    empty = folder / "empty.c"
    empty.write_text("")
    for name in others:
        _library(folder / name, empty, "-Wl,--no-as-needed", str(folder / first))


def missing_libraries(libraries: Iterable[Path], torch_libraries: Iterable[Path]) -> list[str]:
    """Names of shared libraries that ``libraries`` are linked against and the machine doesn't have."""
    needed = {name for path in libraries for name in NEEDED.findall(_run("readelf", "-d", str(path)))}
    have = {path.name for path in (*libraries, *torch_libraries)}
    return sorted(name for name in needed - have if not _loads(name))


def missing_functions(libraries: Iterable[Path], torch_libraries: Iterable[Path]) -> list[str]:
    """C functions that ``libraries`` need and that neither they, nor torch, nor the system define.

    Only C names: what is missing in C++ would be a mistake of ours, and then loading fails.
    """
    undefined = {name for path in libraries for name in _symbols(path, "--undefined-only", "U")}
    system = [Path(path) for path in _system_libraries(libraries)]
    defined = {
        n
        for p in (*libraries, *torch_libraries, *system)
        for n in _symbols(p, "--defined-only", "TtWwVuiBDR")
    }
    return sorted(
        n for n in undefined - defined if IDENTIFIER.fullmatch(n) and not n.startswith(("_Z", "Py", "_Py"))
    )


def _symbols(path: Path, which: str, kinds: str) -> Iterable[str]:
    for line in _run("nm", "-D", which, str(path)).splitlines():
        *_, kind, name = line.split()
        if kind in kinds:
            yield name.partition("@")[0]


def _system_libraries(libraries: Iterable[Path]) -> set[str]:
    """Paths of what the dynamic linker finds for ``libraries``."""
    found = set()
    for path in libraries:
        found |= set(re.findall(r"(/\S+) \(0x", _run("ldd", str(path))))
    return found


def _loads(name: str) -> bool:
    return (
        "/" in _run("sh", "-c", f"ldconfig -p | grep -F '{name} ' || true") or Path("/lib64", name).exists()
    )


def _library(path: Path, *sources: str | Path) -> None:
    first, *rest = map(str, sources)
    flags = ["-shared", "-fPIC", "-w", f"-Wl,-soname,{path.name}"]
    subprocess.run(["gcc", *flags, "-o", str(path), first, *rest], check=True, capture_output=True)


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
