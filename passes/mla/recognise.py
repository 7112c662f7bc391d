"""recognise: MLA, by where an attention site's key and value come from."""

from __future__ import annotations

from npu_compile.passes.mla.pieces import Piece, owner, pieces, unsliced
from npu_compile.passes.mla.projection import Projected, Unprojected, projected
from npu_compile.passes.mla.site import MlaSite, NotAbsorbable
from npu_compile.passes.recognise.assemble import Surroundings, operand_shape
from npu_compile.passes.recognise.cache_kind import cache_kind
from npu_compile.passes.recognise.kv_heads import fold_repeated_heads
from npu_compile.passes.site import AttentionSite, Operand
from npu_compile.passes.values import aten, same, same_shape, value, viewed


def recognise_mla(site: AttentionSite, around: Surroundings) -> MlaSite | NotAbsorbable | None:
    """``site`` with the latent behind it; None where its key has no part that all heads share."""
    parts = pieces(site.key, around.writes)
    if site.num_key_value_heads != site.scores.heads or len(parts) != 2:
        return None
    shared = [_one_head(part) for part in parts]
    found: MlaSite | NotAbsorbable | None = None
    for own, rope in ((0, 1), (1, 0)):
        key_rope = shared[rope]
        # With one head in all, either part could be the shared one.
        if key_rope is not None and (shared[own] is None or site.scores.heads == 1):
            found = _with_parts(site, parts[own], parts[rope], key_rope, around)
            if isinstance(found, MlaSite):
                break
    return found


def _with_parts(
    site: AttentionSite, own: Piece, rope: Piece, key_rope: Operand, around: Surroundings
) -> MlaSite | NotAbsorbable:
    """The site, given which part of its key each head has for itself and which is shared."""
    try:
        key, value_ = projected(own.source, around.writes), projected(site.value, around.writes)
    except Unprojected as reason:
        return NotAbsorbable(str(reason))
    if (unfit := _unfit(key, value_, key_rope)) is not None:
        return NotAbsorbable(unfit)
    query_nope, query_rope = _query_parts(site, own, rope, around)
    weights = [Operand(side.rows.weight, side.latent.read_at) for side in (key, value_)]
    for operand in (key.latent, key_rope, query_nope, query_rope, *weights):
        if (write := around.writes.between(operand, site.output)) is not None:
            return NotAbsorbable(f"{operand.node.name} is overwritten ({write.name}) before the attention")
    latent = key.latent
    return MlaSite(
        attention=site,
        latent=latent,
        key_rope=key_rope,
        key_nope=own.source,
        query_nope=query_nope,
        query_rope=query_rope,
        key_up=key.rows,
        value_up=value_.rows,
        latent_dim=operand_shape(latent)[-1],
        nope_dim=own.width,
        rope_dim=rope.width,
        cache=cache_kind(Operand(owner(latent.node), latent.read_at), around.writes, around.inputs),
    )


def _one_head(part: Piece) -> Operand | None:
    """The (B, 1, S, R) tensor that every head of ``part`` repeats, or None."""
    found = unsliced(part.source)
    if found is None:
        return None
    whole, cuts = found
    folded = fold_repeated_heads(whole)
    one = Operand(folded.node, folded.read_at, folded.views + cuts)
    return one if same(operand_shape(one)[1], 1) else None


def _unfit(key: Projected, value_: Projected, rope: Operand) -> str | None:
    """Why key and value can't be read from one latent, or None."""
    if (key.latent.node, key.latent.views) != (value_.latent.node, value_.latent.views):
        return "key and value are projected from different latents"
    latent, shared = operand_shape(key.latent), operand_shape(rope)
    if not same_shape(latent[:3], shared[:3]):
        return f"there are latents {latent[:3]} and rope parts {shared[:3]}"
    if not isinstance(latent[-1], int):
        return "the size of the latent is symbolic"
    if value(key.latent.node).dtype != value(key.rows.weight).dtype:
        return "the latent and the weight of its projection have different dtypes"
    return None


def _query_parts(
    site: AttentionSite, nope: Piece, rope: Piece, around: Surroundings
) -> tuple[Operand, Operand]:
    """The query's columns that meet the parts of the key: what it was put together from, or slices."""
    own = {(part.start, part.width): part.source for part in pieces(site.query, around.writes)}
    found = []
    for part in (nope, rope):
        whole = viewed(site.query, aten.slice.Tensor, -1, part.start, part.start + part.width)
        piece = own.get((part.start, part.width))
        fits = piece is not None and same_shape(operand_shape(piece), operand_shape(whole))
        found.append(piece if piece is not None and fits else whole)
    return found[0], found[1]
