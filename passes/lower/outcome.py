"""What became of each site, as report rows."""

from __future__ import annotations

from typing import Any

from npu_compile.passes.lower.forms import CallForm
from npu_compile.passes.lower.masks import MaskArguments
from npu_compile.passes.site import AttentionSite, Refusal, SiteOutcome


def lowered(site: AttentionSite, form: CallForm, masks: MaskArguments) -> SiteOutcome:
    return SiteOutcome(
        **_common(site),
        mask=masks.words,
        op=form.op,
        input_layout=form.input_layout,
        sparse_mode=form.plain["sparse_mode"],
        lengths=masks.lengths,
        notes=(*site.notes, *form.notes),
    )


def declined(site: AttentionSite, reason: str, masks: MaskArguments | None) -> SiteOutcome:
    return SiteOutcome(**_common(site), mask=masks.words if masks else "", reason=reason, notes=site.notes)


def refused(refusal: Refusal) -> SiteOutcome:
    return SiteOutcome(
        name=refusal.node.name,
        form=refusal.form,
        module_path=refusal.module_path,
        source=refusal.source,
        reason=refusal.reason,
    )


def _common(site: AttentionSite) -> dict[str, Any]:
    return {
        "name": site.output.name,
        "form": site.form,
        "module_path": site.module_path,
        "source": site.source,
        "num_heads": int(site.scores.heads),
        "num_key_value_heads": site.num_key_value_heads,
        "head_dim": site.head_dim,
        "value_head_dim": site.value_head_dim,
        "query_len": str(site.scores.query),
        "key_len": str(site.scores.key),
        "cache": site.cache,
    }
