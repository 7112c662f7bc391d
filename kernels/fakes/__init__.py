"""Output shapes and dtypes of the operators, as torch_npu's own meta functions give them.

``FAKES`` maps an operator's name, with its overload when it has one, to a function of the operator's
signature that allocates outputs and computes nothing. Shapes may be symbolic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import around, cache, fia, mla_prolog, sparse

FAKES: dict[str, Callable[..., Any]] = {
    **fia.FAKES,
    **sparse.FAKES,
    **cache.FAKES,
    **around.FAKES,
    **mla_prolog.FAKES,
}
