"""What the operators accept, as rules that can be asked before an operator is called.

``check(op, args, target)`` lists what a call breaks, ``require`` raises. The CPU kernels ask for target
``cpu``, where dtypes and sizes are free and conventions are not; the lowering asks for the machine that a
graph is for.
"""

from __future__ import annotations

from .check import check, require
from .rule import ContractError, Rule, Violation
from .table import SPECS

__all__ = ["SPECS", "ContractError", "Rule", "Violation", "check", "require"]
