"""What is run on each family: the same calls on the plain model and on the compiled one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers import DynamicCache, StaticCache

from tests.models.tiny import VOCABULARY, Family

Outputs = list[torch.Tensor]
Case = Callable[[Family, Any, Callable[..., Any]], Outputs]
"""(family, model, forward) -> the outputs to compare; padded positions are cut out."""

BATCH, PROMPT = 2, 17
STEPS = 6


def ids(batch: int = BATCH, length: int = PROMPT, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (batch, length), generator=generator)


def padding(side: str, batch: int = BATCH, length: int = PROMPT) -> torch.Tensor:
    """A 2-D attention mask whose first row has 5 padded positions."""
    mask = torch.ones(batch, length, dtype=torch.int64)
    if side == "left":
        mask[0, :5] = 0
    else:
        mask[0, -5:] = 0
    return mask


def _hidden(output: Any) -> torch.Tensor:
    return output.logits if "logits" in output else output.last_hidden_state


def _real(values: torch.Tensor, mask: torch.Tensor) -> Outputs:
    return [row[keep.bool()] for row, keep in zip(values, mask, strict=True)]


def prefill(family: Family, model: Any, forward: Callable[..., Any]) -> Outputs:
    return [_hidden(forward(input_ids=ids()))]


def left_padded(family: Family, model: Any, forward: Callable[..., Any]) -> Outputs:
    mask = padding("left")
    return _real(_hidden(forward(input_ids=ids(), attention_mask=mask)), mask)


def right_padded(family: Family, model: Any, forward: Callable[..., Any]) -> Outputs:
    mask = padding("right")
    return _real(_hidden(forward(input_ids=ids(), attention_mask=mask)), mask)


def _decode(model: Any, forward: Callable[..., Any], cache: Any) -> Outputs:
    tokens = ids(length=PROMPT + STEPS)
    out = [forward(input_ids=tokens[:, :PROMPT], cache=cache, use_cache=True).logits]
    for step in range(PROMPT, PROMPT + STEPS):
        out.append(forward(input_ids=tokens[:, step : step + 1], cache=cache, use_cache=True).logits.clone())
    return out


def static_decode(family: Family, model: Any, forward: Callable[..., Any]) -> Outputs:
    return _decode(model, forward, StaticCache(config=model.config, max_cache_len=32))


def dynamic_decode(family: Family, model: Any, forward: Callable[..., Any]) -> Outputs:
    return _decode(model, forward, DynamicCache(config=model.config))


def chunked_prefill(family: Family, model: Any, forward: Callable[..., Any]) -> Outputs:
    cache = StaticCache(config=model.config, max_cache_len=32)
    chunks = ids().split((7, 6, 4), 1)
    return [forward(input_ids=chunk, cache=cache, use_cache=True).logits.clone() for chunk in chunks]


def generate_static(family: Family, model: Any, forward: Callable[..., Any]) -> Outputs:
    """Greedy generation from a left-padded batch with a static cache: token ids."""
    return _generated(model, forward, inputs=ids(), attention_mask=padding("left"))


def _generated(model: Any, forward: Callable[..., Any], **inputs: torch.Tensor) -> Outputs:
    """Greedy tokens with a static cache, with ``forward`` in the place of the model's own."""
    plain = model.forward
    model.forward = forward
    try:
        tokens = model.generate(
            **inputs,
            cache_implementation="static",
            max_new_tokens=STEPS,
            do_sample=False,
            disable_compile=True,
        )
    finally:
        model.forward = plain
    return [tokens]


def vision(family: Family, model: Any, forward: Callable[..., Any]) -> Outputs:
    pixels = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    return [forward(pixel_values=pixels).last_hidden_state]


def clip(family: Family, model: Any, forward: Callable[..., Any]) -> Outputs:
    pixels = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    tokens = ids()
    tokens[:, -1] = 2
    mask = padding("right")
    mask[:, -1] = 1
    out = forward(input_ids=tokens, pixel_values=pixels, attention_mask=mask)
    return [out.logits_per_image, out.text_embeds, out.image_embeds]


def speech(family: Family, model: Any, forward: Callable[..., Any]) -> Outputs:
    features = torch.randn(BATCH, 8, 34, generator=torch.Generator().manual_seed(2))
    return [forward(input_features=features, decoder_input_ids=ids(length=9)).logits]


def seq2seq(family: Family, model: Any, forward: Callable[..., Any]) -> Outputs:
    return [forward(input_ids=ids(), decoder_input_ids=ids(length=9, seed=3)).logits]


def seq2seq_padded(family: Family, model: Any, forward: Callable[..., Any]) -> Outputs:
    return [
        forward(
            input_ids=ids(), attention_mask=padding("right"), decoder_input_ids=ids(length=9, seed=3)
        ).logits
    ]


def generate_seq2seq(family: Family, model: Any, forward: Callable[..., Any]) -> Outputs:
    inputs = {"input_features": torch.randn(BATCH, 8, 34, generator=torch.Generator().manual_seed(2))}
    if family.kind != "speech":
        inputs = {"input_ids": ids(), "attention_mask": padding("right")}
    return _generated(model, forward, **inputs)


CASES: dict[str, tuple[Case, ...]] = {
    "encoder": (prefill, right_padded, left_padded),
    "vision": (vision,),
    "clip": (clip,),
    "decoder": (
        prefill,
        left_padded,
        right_padded,
        static_decode,
        dynamic_decode,
        chunked_prefill,
        generate_static,
    ),
    "speech": (speech, generate_seq2seq),
    "seq2seq": (seq2seq, seq2seq_padded, generate_seq2seq),
}


def all_cases(families: dict[str, Family]) -> Iterator[tuple[Family, str, Case]]:
    for family in families.values():
        for attention in ("sdpa", "eager"):
            for case in CASES[family.kind]:
                yield family, attention, case
