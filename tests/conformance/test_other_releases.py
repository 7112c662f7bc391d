"""Our version table against the schemas that other releases of torch-npu carry.

A wheel is read, not loaded: torch_npu's library has its schemas in it as text.
"""

from __future__ import annotations

import re

import pytest
import torch
from packaging.version import Version

from npu_compile.kernels.schemas import SCHEMAS
from npu_compile.kernels.schemas.versions import ARGUMENT_SINCE, NONE_SINCE, OPERATOR_SINCE, schema_at

from . import wheel

pytestmark = [pytest.mark.torch_npu, pytest.mark.nightly]

RELEASES = ("2.8.0.post2", "2.9.0", "2.10.0", "2.11.0", "2.12.0", "2.13.0", "2.14.0")
SCHEMA = re.compile(rb"\0(_?npu_[a-z0-9_]+(?:\.[a-z_]+)?\([^\0]*\) -> [^\0]+)(?=\0)")


def schemas_in(library: bytes) -> dict[str, str]:
    """Schemas in the text of a library, by operator with overload, as torch prints them."""
    found = {}
    for match in SCHEMA.finditer(library):
        text = match.group(1).decode()
        name = text[: text.index("(")]
        if name in SCHEMAS:
            found[name] = str(torch._C.parse_schema(text))
    return found


@pytest.mark.parametrize("version", RELEASES)
def test_schemas_of(version: str) -> None:
    try:
        library = wheel.member(version, "torch_npu/lib/libtorch_npu.so")
    except wheel.Unavailable as reason:
        pytest.skip(str(reason))
    ours = {op: schema for op in SCHEMAS if (schema := schema_at(op, version)) is not None}
    assert schemas_in(library) == ours


def test_the_releases_read_are_those_the_table_names() -> None:
    named = {v for table in (ARGUMENT_SINCE, NONE_SINCE) for later in table.values() for v in later.values()}
    assert (named | set(OPERATOR_SINCE.values())) <= set(RELEASES)
    assert list(RELEASES) == sorted(RELEASES, key=Version)
