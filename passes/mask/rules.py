"""All rules of the interpreter; importing this module registers them."""

from npu_compile.passes.mask import rules_arithmetic, rules_join, rules_logic, rules_views
from npu_compile.passes.mask.interpret import RULES

__all__ = ["RULES", "rules_arithmetic", "rules_join", "rules_logic", "rules_views"]
