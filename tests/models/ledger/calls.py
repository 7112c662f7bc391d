"""What the models of some types are called with: where the names of the arguments don't tell it.

A call here is the first that a type's model is tried with; the others come from the names.
"""

from __future__ import annotations

from tests.models.ledger.arguments import Call
from tests.models.ledger.calls_images import IMAGES
from tests.models.ledger.calls_sounds import SOUNDS
from tests.models.ledger.calls_texts import TEXTS

CALLS: dict[str, Call] = {**TEXTS, **IMAGES, **SOUNDS}
