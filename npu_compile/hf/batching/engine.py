"""The one place that changes transformers: which manager class ``init_continuous_batching`` makes.

transformers has no way to register a continuous batching engine, and its own refuses attention
implementations that it doesn't know. The class put in is its manager for every model whose attention isn't
"ascend_fia".
"""

from __future__ import annotations

import logging

import transformers
from packaging.version import Version

logger = logging.getLogger(__name__)

KNOWN = (Version("5.24"), Version("5.25"))
"""First known version and first unknown one. Parts of the engine that we build on change between releases."""


def install() -> bool:
    """Put the manager in; False, with a warning, where this transformers' engine isn't known."""
    if not KNOWN[0] <= Version(transformers.__version__) < KNOWN[1]:
        logger.warning(
            "generate_batch can't use 'ascend_fia': the engine is known for transformers %s to %s, not %s",
            *KNOWN,
            transformers.__version__,
        )
        return False
    from transformers.generation.continuous_batching import continuous_api

    from .manager import FiaBatchingManager

    continuous_api.ContinuousBatchingManager = FiaBatchingManager  # type: ignore[misc]
    return True
