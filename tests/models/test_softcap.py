"""Gemma 2, whose scores are soft-capped: transformers has no SDPA for it, so eager is what its users run."""

from __future__ import annotations

import pytest
import transformers as hf

import npu_compile
from tests.models.cases import Case, all_cases
from tests.models.family_run import check
from tests.models.tiny import LLAMA, Family

GEMMA2 = Family(
    "gemma2",
    hf.Gemma2ForCausalLM,
    # A cap that bends most scores of so small a model.
    lambda: hf.Gemma2Config(
        **LLAMA, head_dim=16, sliding_window=5, query_pre_attn_scalar=16, attn_logit_softcapping=0.2
    ),
    2,
    "decoder",
)
CASES = [case for _, attention, case in all_cases({"gemma2": GEMMA2}) if attention == "eager"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_gemma2(case: Case) -> None:
    check(GEMMA2, "eager", case)
    sites = npu_compile.last_report().sites
    assert {site.op for site in sites} == {"softcap_attention"}
    assert {site.num_key_value_heads for site in sites} == {2}
