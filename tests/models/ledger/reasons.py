"""Why each reason for not lowering is true, read off the models of transformers 5.24 by hand.

Each sentence stands with the lines that show it: a folder's modeling file, a line, and what it says there.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """A line of ``transformers/models/<model>/modeling_<model>.py`` and a part of it."""

    model: str
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.model}:{self.number}"


@dataclass(frozen=True)
class Because:
    sentence: str
    lines: tuple[Line, ...]

    def __str__(self) -> str:
        return f"{self.sentence} ({', '.join(map(str, self.lines))})"


_RETURNED = "return attn_output, attn_weights"
_LENGTHS = "torch.split(tensor, lengths.tolist(), dim=2)"
_SEVERAL_USES = (
    Because(
        "The model returns them, whether or not it is asked to.",
        (
            Line("bridgetower", 1284, "all_self_attentions.append"),
            Line("kosmos2", 1377, "vision_output.projection_attentions = projection_attentions"),
        ),
    ),
    Because(
        "A graph break leaves the attention's own function, or its layer, a graph to itself, and they return "
        "them to a caller that drops them. Vision towers break where they read lengths from a tensor.",
        (
            *(Line("inkling2", 1139, _LENGTHS), Line("lfm3_vl", 271, _LENGTHS)),
            *(Line("minimax_m3_vl", 1143, _LENGTHS), Line("paddleocr_vl", 721, _LENGTHS)),
            *(Line("video_llama_3", 330, _LENGTHS), Line("pixtral", 220, _RETURNED)),
            *(Line("glm5_next", 1237, _RETURNED), Line("qwen4_exp", 915, _RETURNED)),
            *(Line("jetmoe", 499, _RETURNED), Line("longt5", 1145, "attention_outputs + cross_")),
        ),
    ),
    Because(
        "A graph break follows in the layer, where the variable that holds them is still to be read.",
        (
            Line("grounding_dino", 1108, "text_enhanced_attn"),
            Line("grounding_dino", 1297, "self_attn_weights, text_cross_attn_weights"),
        ),
    ),
    Because(
        "The largest of a column becomes 1 and all others 0, out of a maximum, a difference and a sum.",
        (Line("groupvit", 56, "y_soft.max"), Line("groupvit", 58, "y_hard - y_soft.detach() + y_soft")),
    ),
    Because(
        "They also weigh learned vectors of relative positions, which are added to the output.",
        (Line("vits", 945, "_absolute_position_to_relative_position(attn_probs)"),),
    ),
)

REASONS: dict[str, tuple[Because, ...]] = {
    "softmax: the attention probabilities are used more than once (for example, returned)": _SEVERAL_USES,
    "softmax: the attention probabilities are set to 0 where one of several masks is": (
        Because(
            "Scores by relative positions are added before the mask; for all that the compiler knows they "
            "mask, too, and the probabilities are set to 0 in the places of the mask alone.",
            (
                Line("sew_d", 738, "attention_scores + rel_att"),
                Line("sew_d", 487, "input.masked_fill(rmask"),
                Line("sew_d", 489, "output.masked_fill_(rmask, 0)"),
            ),
        ),
    ),
    "softmax: the scores are also used by max": (
        Because(
            "The largest score of all rows, heads and samples is taken off, then they are clamped. The same "
            "product, transposed, is the scores of the other direction; each row's maximum goes off there.",
            (
                Line("grounding_dino", 809, "attn_weights - attn_weights.max()"),
                Line("grounding_dino", 811, "torch.clamp(attn_weights, min=-50000, max=50000)"),
                Line("grounding_dino", 814, "torch.max(attn_weights_transposed, dim=-1"),
            ),
        ),
    ),
    "softmax: the scores are multiplied or divided by a tensor": (
        Because(
            "The scores are multiplied by the causal mask, 1 and 0, before -10000 is added where it is 0.",
            (Line("openai", 71, "w * b + -1e4 * (1 - b)"),),
        ),
        Because(
            "The number of the soft cap is a buffer, so that it isn't known when compiling.",
            (
                Line("gemma3n", 503, "logits / softcap_val"),
                Line("gemma4", 337, "attn_weights / self.softcap"),
            ),
        ),
    ),
    "softmax: the scores are put beside other scores": (
        Because(
            "Each block has one softmax over two products: with the global keys and with its own.",
            (Line("pegasus_x", 484, "torch.cat([blocked_local2global, blocked_local2local], dim=-1)"),),
        ),
    ),
    "softmax: the scores are put together of parts, each written in its place": (
        Because(
            "Products of overlapping chunks are written into a band around the diagonal.",
            (
                Line("longformer", 782, "diagonal_attention_scores[:, :-1, :, window_overlap:] ="),
                Line("led", 425, "diagonal_attention_scores[:, :-1, :, window_overlap:] ="),
            ),
        ),
    ),
    "sdpa: the mask mul is written to in place before it is read": (
        Because(
            "Padding of the last block is written into the bias of relative positions.",
            (Line("granite_speech", 202, "masked_fill_(mask, mask_value)"),),
        ),
    ),
}
