"""transformers' continuous batching manager and processor, with FIA's cache and inputs."""

from __future__ import annotations

import copy
from typing import Any

from transformers.generation.continuous_batching import continuous_api
from transformers.generation.continuous_batching.initialization import (
    resolve_using_hints,
    resolve_without_hints,
    update_cb_config_after_cache_creation,
)
from transformers.generation.continuous_batching.scheduler import SCHEDULER_MAPPING, FIFOScheduler

from ...errors import AscendFiaError
from ..engine_options import engine_options
from ..register import ATTENTION
from .cache import FiaPagedCache
from .ios import FiaBatchIOs

Manager = continuous_api.ContinuousBatchingManager
Processor = continuous_api.ContinuousBatchProcessor


class FiaBatchProcessor(Processor):
    def __init__(self, cache: FiaPagedCache, **kwargs: Any) -> None:
        super().__init__(cache=cache, **kwargs)
        config = kwargs["continuous_batching_config"]
        self.inputs_and_outputs = FiaBatchIOs(
            cache=cache,
            config=kwargs["config"],
            continuous_batching_config=config,
            device=kwargs["model_device"],
            model_dtype=kwargs["model_dtype"],
            logit_processor=self.logit_processor,
        )
        self.model_runner.inputs_and_outputs = self.inputs_and_outputs
        self.offloading_manager._compute_stream = None


class FiaBatchingManager(Manager):
    """The manager of every model; it differs from transformers' for those whose attention is "ascend_fia".

    Their decode steps use block tables, which transformers keeps for flash attention on CUDA and XPU, and
    may be compiled by ``decode_compile_config``. Other steps are never compiled: their shapes don't repeat.
    """

    def __init__(
        self,
        model: Any,
        generation_config: Any,
        continuous_batching_config: Any,
        workload_hints: Any = None,
    ) -> None:
        asked = continuous_batching_config
        if _uses_fia(model):
            # What transformers' gate on devices would switch off, with warnings, is set afterwards.
            asked = copy.deepcopy(asked)
            asked.max_blocks_per_request = asked.decode_compile_config = asked.varlen_compile_config = None
        super().__init__(model, generation_config, asked, workload_hints)
        if _uses_fia(model):
            self._open_decode_path(continuous_batching_config, workload_hints)

    def switch_to_cb_friendly_attn(self, model: Any, auto_switch_to_flash: bool = True) -> None:
        if not _uses_fia(model):
            super().switch_to_cb_friendly_attn(model, auto_switch_to_flash)

    def _open_decode_path(self, asked: Any, hints: Any) -> None:
        if asked.use_async_batching:
            raise AscendFiaError("use_async_batching", True, "it isn't supported with 'ascend_fia'")
        wanted = copy.deepcopy(asked)
        resolve_using_hints(wanted, hints)
        resolve_without_hints(wanted)
        resolved = self.continuous_batching_config
        resolved.max_blocks_per_request = wanted.max_blocks_per_request
        resolved.decode_compile_config = wanted.decode_compile_config
        resolved.varlen_compile_config = None

    def _create_batch_processor(self) -> Any:
        if not _uses_fia(self.model) or isinstance(getattr(self, "batch_processor", None), Processor):
            return super()._create_batch_processor()
        config: Any = self.continuous_batching_config
        model: Any = self.model
        text_config = model.config.get_text_config()
        cache = FiaPagedCache(
            text_config,
            config,
            device=model.device,
            distributed_helper=self.distributed_helper,
            dtype=model.dtype,
            options=engine_options(model),
            model_supports_logits_to_keep=model._supports_logits_to_keep(),
        )
        self._use_prefix_sharing = cache.use_prefix_sharing
        update_cb_config_after_cache_creation(config, cache.num_blocks, cache.max_batch_tokens)
        scheduler_class: Any = SCHEDULER_MAPPING.get(config.scheduler_type, FIFOScheduler)
        scheduler = scheduler_class(
            cache=cache,
            safety_margin=config.safety_margin,
            max_requests_per_batch=config.max_requests_per_batch,
        )
        return FiaBatchProcessor(
            cache=cache,
            config=text_config,
            generation_config=self.generation_config,
            continuous_batching_config=config,
            logit_processor=self.logit_processor,
            input_queue=self.input_queue if self.is_tp_driver else None,
            cancel_queue=self.cancel_queue if self.is_tp_driver else None,
            output_router=self.output_router,
            background_thread_status=self.background_thread_status,
            model_device=model.device,
            model_dtype=model.dtype,
            scheduler=scheduler,
            distributed_helper=self.distributed_helper,
        )


def _uses_fia(model: Any) -> bool:
    return model.config.get_text_config()._attn_implementation == ATTENTION
