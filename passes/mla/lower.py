"""The calls that an MLA site could become: absorbed or expanded by cost, then whatever else is legal."""

from __future__ import annotations

from dataclasses import replace

from torch import fx

from npu_compile.kernels.targets import Target
from npu_compile.passes.lower.forms import CallForm
from npu_compile.passes.lower.legality import illegal
from npu_compile.passes.lower.masks import MaskArguments
from npu_compile.passes.lower.shared import Shared
from npu_compile.passes.mla.absorb import absorbed
from npu_compile.passes.mla.cache_write import fuse_cache_write
from npu_compile.passes.mla.chunks import chunk_tokens, chunked
from npu_compile.passes.mla.cost import Choice, Sizes, cheaper
from npu_compile.passes.mla.options import MlaOptions
from npu_compile.passes.mla.recognise import recognise_mla
from npu_compile.passes.mla.site import MlaSite, NotAbsorbable
from npu_compile.passes.mla.split import split
from npu_compile.passes.recognise.assemble import Declined, Surroundings
from npu_compile.passes.site import AttentionSite
from npu_compile.passes.specialise import seen_when_tracing

MOST_ABSORBED_QUERIES = 16
"""Query tokens per request that a device takes in the absorbed form (torch_npu docs)."""

DEFAULT = MlaOptions()


class MlaLowering:
    """MLA in one graph: a specialist of the lowering."""

    def __init__(
        self, graph: fx.Graph, around: Surroundings, target: Target, options: MlaOptions = DEFAULT
    ) -> None:
        self._target = target
        self._options = options
        self._around = around
        self._shared = Shared(graph, around.writes)
        self._found: dict[fx.Node, MlaSite] = {}

    def refine(self, site: AttentionSite) -> AttentionSite:
        """``site`` as of form "mla" where it is; with a note where it only looks like it."""
        found = recognise_mla(site, self._around)
        if isinstance(found, NotAbsorbable):
            return replace(site, notes=(*site.notes, f"keys kept expanded: {found.reason}"))
        if found is None:
            return site
        self._found[site.output] = found
        return replace(site, form="mla", cache=found.cache)

    def form(self, site: AttentionSite, masks: MaskArguments) -> tuple[CallForm | None, tuple[str, ...]]:
        """The cheapest legal call for a site that :meth:`refine` found to be MLA, if any, and why."""
        mla = self._found.get(site.output)
        if mla is None:
            return None, ()
        first, why = self._preferred(mla)
        second: Choice = "expand" if first == "absorb" else "absorb"
        notes = [f"{first}: {why}"]
        for choice in (first, second):
            form = self._legal(choice, mla, masks)
            if isinstance(form, CallForm):
                return form, tuple(notes)
            if form != why:
                notes.append(f"not {choice}: {form}")
        return None, tuple(notes)

    def finish(self) -> None:
        """Fuse the cache writes if that is asked for."""
        if self._fuse("all"):
            for mla in self._found.values():
                fuse_cache_write(mla, self._target)

    def _legal(self, choice: Choice, mla: MlaSite, masks: MaskArguments) -> CallForm | str:
        """The call, or why it can't be made."""
        if choice == "absorb" and (many := self._too_many(mla)) is not None:
            return many
        try:
            form = self._made(choice, mla, masks)
        except Declined as reason:
            return str(reason)
        return illegal(form, self._target) or form

    def _made(self, choice: Choice, mla: MlaSite, masks: MaskArguments) -> CallForm:
        """Raises Declined where the form has no way to say the mask."""
        if choice == "absorb":
            return absorbed(mla, masks, self._target, self._shared, self._fuse("output"))
        tokens = chunk_tokens(mla.attention.scores, self._options.max_context_tokens)
        if tokens is not None:
            return chunked(mla, masks, self._target, self._shared, tokens)
        return split(mla, masks, self._target, self._shared)

    def _fuse(self, what: str) -> bool:
        """Whether to use the fused operator around attention: never on the CPU, which gains nothing by it."""
        return self._target is not Target.CPU and self._options.fusions in (what, "all")

    def _too_many(self, mla: MlaSite) -> str | None:
        """Why the device doesn't take so many query tokens in the absorbed form, or None."""
        tokens = mla.attention.scores.query
        if self._target is Target.CPU or (isinstance(tokens, int) and tokens <= MOST_ABSORBED_QUERIES):
            return None
        return f"{tokens} query tokens, and latents take at most {MOST_ABSORBED_QUERIES}"

    def _preferred(self, mla: MlaSite) -> tuple[Choice, str]:
        """The form to try first, and why."""
        if self._options.form != "auto":
            return self._options.form, "asked for"
        if (many := self._too_many(mla)) is not None:
            return "expand", many
        scores = mla.attention.scores
        sizes = Sizes(
            seen_when_tracing(scores.query),
            seen_when_tracing(scores.key),
            scores.heads,
            mla.latent_dim,
            mla.nope_dim,
            mla.rope_dim,
            mla.value_up.width,
        )
        return cheaper(sizes), f"cost {sizes.absorbed:.2g} absorbed, {sizes.expanded:.2g} expanded"
