"""transformers' engine step by step in the test's own thread, so that a test can look between the steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import transformers as hf
from torch.utils._python_dispatch import TorchDispatchMode


class Recorder(TorchDispatchMode):
    """Operators called, in order, and the largest tensor that one of them made new."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.calls.append((str(func), args, kwargs or {}))
        inputs = {a.untyped_storage().data_ptr() for a in args if isinstance(a, torch.Tensor)}
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in inputs:
                self.largest = max(self.largest, tensor.numel())
        return out

    def named(self, part: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return [(args, kwargs) for name, args, kwargs in self.calls if part in name]


class Engine:
    """``step`` runs one forward pass. ``engine`` are arguments of ContinuousBatchingConfig."""

    def __init__(self, model: Any, requests: list[list[int]], new_tokens: int, **engine: Any) -> None:
        config = hf.GenerationConfig(max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1)
        self.model = model
        self.manager = model.init_continuous_batching(
            generation_config=config, continuous_batching_config=hf.ContinuousBatchingConfig(**engine)
        )
        self.ids = self.manager.add_requests(requests, max_new_tokens=new_tokens)
        self.processor = self.manager._create_batch_processor()

    @property
    def cache(self) -> Any:
        return self.processor.cache

    @property
    def decoding(self) -> bool:
        """Whether the step that was prepared last is one token of each request."""
        return self.processor.inputs_and_outputs.use_block_table

    def steps(self) -> Iterator[Callable[[], None]]:
        """One function per forward pass, which runs it; the step is prepared already."""
        while self.processor.prepare_next_batch():
            yield lambda: self.processor._generation_step(self.model)
            self.processor.update_batch()

    def run(self) -> list[list[int]]:
        for step in self.steps():
            step()
        return self.results()

    def results(self) -> list[list[int]]:
        found = {}
        while (result := self.manager.get_result(timeout=0)) is not None:
            assert result.error is None, result.error
            found[result.request_id] = result.generated_tokens
        return [found[request] for request in self.ids]
