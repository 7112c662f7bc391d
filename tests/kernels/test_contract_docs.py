"""docs/ops.md: its examples run, and its table has every rule and every test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from npu_compile.kernels.contract import SPECS
from npu_compile.kernels.contract.__main__ import table
from npu_compile.kernels.schemas import SCHEMAS

from . import test_contract_refusals
from .contract_refusals import REFUSALS

PAGE = (Path(__file__).parents[2] / "docs" / "ops.md").read_text()
CONVENTIONS = PAGE.partition("## Conventions")[2].partition("\n## ")[0]
SHARED, *SECTIONS = re.split(r"^### ", CONVENTIONS, flags=re.M)
BLOCK = re.compile(r"```python\n(.*?)```", re.S)


def code(section: str) -> str:
    (block,) = BLOCK.findall(section)
    return str(block)


EXAMPLES = {section.partition("\n")[0]: code(section) for section in SECTIONS}


@pytest.mark.parametrize("heading", EXAMPLES)
def test_example(heading: str) -> None:
    torch.manual_seed(0)
    names: dict[str, object] = {}
    exec(code(SHARED), names)
    assert "assert " in EXAMPLES[heading]
    exec(EXAMPLES[heading], names)


def test_every_convention_has_an_example() -> None:
    assert len(EXAMPLES) == len(SECTIONS) >= 20


def test_the_table_is_up_to_date() -> None:
    assert PAGE.partition("<!-- rules -->\n")[2].splitlines() == list(table())


def test_every_rule_is_listed_with_a_test_that_exists() -> None:
    listed = dict(re.findall(r"^\| `([a-z0-9_.]+)` .* \| `(test_\w+(?:\[[^]]+\])?)` \|$", PAGE, flags=re.M))
    assert listed.keys() >= {rule.id for spec in SPECS.values() for rule in spec.rules()}
    for rule_id, test in listed.items():
        name, _, parameter = test.partition("[")
        assert hasattr(test_contract_refusals, name)
        assert parameter in ("", f"{rule_id}]") and (not parameter or rule_id in REFUSALS)


def test_every_operator_is_introduced() -> None:
    for name in SCHEMAS:
        plain = name.partition(".")[0].removesuffix("_functional").removesuffix("_")
        assert plain in PAGE or plain.startswith("_npu_fused"), name
