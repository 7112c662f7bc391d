"""The operators of torch_npu that this project uses, as data.

``SCHEMAS`` maps an operator's name, with its overload when it has one, to the schema torch_npu 2.13.0
declares for it in the namespace ``npu``. Spacing and the spelling of floats are free: two schemas are
the same when torch parses them to the same text.
"""

from __future__ import annotations

from . import around, cache, fia, sparse

SCHEMAS: dict[str, str] = {**fia.SCHEMAS, **sparse.SCHEMAS, **cache.SCHEMAS, **around.SCHEMAS}
