"""What models of texts, molecules and decisions are called with, where names don't tell it."""

from __future__ import annotations

from typing import Any

import torch
from transformers.models.esmfold2.modeling_esmfold2 import EsmFold2AtomInputs

from tests.models.ledger.arguments import BATCH, LENGTH, Call, noise, ones, tokens


def _blt_local_decoder(config: Any) -> dict[str, Any]:
    patches = noise(BATCH, 4, config.hidden_size_global)
    return {"inputs_embeds": noise(BATCH, LENGTH, config.hidden_size), "patch_embeds": patches}


def _blt_local_encoder(config: Any) -> dict[str, Any]:
    patches = torch.arange(LENGTH).div(3, rounding_mode="floor").expand(BATCH, -1)
    return {"input_ids": tokens(), "num_patches": 3, "patch_ids": patches}


def _assistant(config: Any) -> dict[str, Any]:
    """A draft model reads the keys and values of the model that it drafts for."""
    text = config.text_config
    shapes = {"sliding_attention": (text.num_key_value_heads, LENGTH, text.head_dim)}
    shapes["full_attention"] = (
        getattr(text, "num_global_key_value_heads", None) or text.num_key_value_heads,
        LENGTH,
        getattr(text, "global_head_dim", None) or text.head_dim,
    )
    shared = {
        kind: tuple(noise(BATCH, *shapes[kind], seed=seed) for seed in (3, 4))
        for kind in sorted(set(text.layer_types))
    }
    states = noise(BATCH, 1, 2 * config.backbone_hidden_size)
    position = torch.full((BATCH, 1), LENGTH - 1)
    return {"inputs_embeds": states, "position_ids": position, "shared_kv_states": shared}


def _esmfold2(config: Any) -> dict[str, Any]:
    """One chain of amino acids, of four atoms each."""
    zeros, order = torch.zeros(BATCH, LENGTH, dtype=torch.long), torch.arange(LENGTH).expand(BATCH, -1)
    owner = order.repeat_interleave(4, 1)
    atoms = EsmFold2AtomInputs(
        ref_pos=noise(BATCH, 4 * LENGTH, 3),
        ref_charge=torch.zeros(BATCH, 4 * LENGTH),
        atom_attention_mask=ones(BATCH, 4 * LENGTH).bool(),
        ref_element=ones(BATCH, 4 * LENGTH),
        ref_atom_name_chars=ones(BATCH, 4 * LENGTH, config.max_chars),
        ref_space_uid=owner,
        atom_to_token=owner,
    )
    return {
        **dict.fromkeys(("asym_id", "sym_id", "entity_id", "mol_type"), zeros),
        **dict.fromkeys(("token_index", "residue_index"), order),
        "res_type": tokens() % config.num_res_types,
        "token_bonds": torch.zeros(BATCH, LENGTH, LENGTH, 1),
        "attention_mask": ones(BATCH, LENGTH),
        "atom_inputs": atoms,
        "input_ids": tokens() % config.esmc_config.vocab_size,
        "num_loops": 1,
    }


def _rag(config: Any) -> dict[str, Any]:
    documents = config.n_docs
    return {
        "input_ids": tokens(),
        "decoder_input_ids": tokens(seed=3),
        "context_input_ids": tokens(BATCH * documents, seed=5),
        "context_attention_mask": ones(BATCH * documents, LENGTH),
        "doc_scores": noise(BATCH, documents),
    }


TEXTS: dict[str, Call] = {
    "blt": lambda config: {"input_ids": tokens(), "use_cache": False},
    "blt_local_decoder": _blt_local_decoder,
    "blt_local_encoder": _blt_local_encoder,
    "gemma4_assistant": _assistant,
    "gemma4_unified_assistant": _assistant,
    "esmfold2": _esmfold2,
    "rag": _rag,
    "jev": lambda config: {
        "input_ids": tokens(1),
        "marks": torch.tensor([[4, LENGTH]]),
        "num_options": torch.tensor([[2, 3]]),
        "question_type_ids": torch.tensor([[0, 1]]),
    },
    "muse_glimmer_assistant": lambda config: {
        "noise_embeds": noise(BATCH, 4, config.hidden_size),
        "context_hidden_states": noise(BATCH, LENGTH, config.hidden_size * len(config.target_layer_ids)),
    },
}
