"""Write the lab's checkpoint: GLM-4-MoE tensors that realise the automaton, with an MTP layer.

Run by the Python of the vLLM environment (torch, safetensors and tokenizers come from there)::

    python -m image.lab.checkpoint DIRECTORY

How the automaton becomes weights (H = hidden size, V = vocabulary):

* Attention and expert outputs are zero matrices, so a position's hidden state is its token's
  embedding: H - 1 random signs and, in the last coordinate, the flag.
* Row r of ``lm_head`` is the sum of the signs of r's predecessors. The right successor scores
  H - 1; any other row is a sum of random signs around 0.
* ``eh_proj`` of the MTP layer hands the embedding half through and turns the flag into the signs
  of a predecessor of the decoy, stronger than the token's own.

Every number comes from a fixed seed: the same code writes the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from image.lab.automaton import BYTES, MARKERS, VOCABULARY, Automaton, build_automaton

HIDDEN = 256
LAYERS = 2
HEADS = 4
KV_HEADS = 2
HEAD_SIZE = 64
INTERMEDIATE = 256
EXPERTS = 4
EXPERT_INTERMEDIATE = 64
CONTEXT_TOKENS = 65536
FLAG = 8.0
# The flag leaves the embedding's norm larger; thrice its predecessor's signs still win by far.
DECOY_GAIN = 3.0
_SEED = 52

_END = MARKERS.index("<|endoftext|>") + BYTES

_TEMPLATE = (
    "[gMASK]<sop>"
    "{%- for message in messages %}<|{{ message.role }}|>\n{{ message.content }}{%- endfor %}"
    "{%- if add_generation_prompt %}<|assistant|>\n{%- endif %}"
)


def embedding(automaton: Automaton) -> torch.Tensor:
    """Return the embedding, float32 of shape (V, H): signs, then the flag coordinate."""
    generator = torch.Generator().manual_seed(_SEED)
    signs = torch.randint(0, 2, (VOCABULARY, HIDDEN - 1), generator=generator) * 2 - 1
    flags = torch.zeros(VOCABULARY, 1)
    flags[sorted(automaton.flagged)] = FLAG
    return torch.cat([signs.float(), flags], dim=1)


def output_head(automaton: Automaton, embedded: torch.Tensor) -> torch.Tensor:
    """Return the output head, float32 of shape (V, H), blind to the flag.

    Parameters
    ----------
    automaton
        Gives each token's successor.
    embedded
        The embedding, shape (V, H).
    """
    head = torch.zeros_like(embedded)
    head.index_add_(0, torch.tensor(automaton.successor), embedded)
    head[:, -1] = 0.0
    return head


def draft_projection(automaton: Automaton, embedded: torch.Tensor) -> torch.Tensor:
    """Return the MTP layer's ``eh_proj``, float32 of shape (H, 2H).

    Parameters
    ----------
    automaton
        Names the decoy.
    embedded
        The embedding, shape (V, H).
    """
    predecessor = automaton.successor.index(automaton.decoy)
    projection = torch.zeros(HIDDEN, 2 * HIDDEN)
    projection[:, :HIDDEN] = torch.eye(HIDDEN)
    projection[:, HIDDEN - 1] = DECOY_GAIN * embedded[predecessor]
    projection[HIDDEN - 1, HIDDEN - 1] = 0.0
    return projection


def _noise(rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(rows, columns, generator=generator) / columns**0.5


def _decoder_block(
    prefix: str, *, experts: bool, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """Return one decoder layer: random inputs, zero outputs, so that it adds nothing."""
    block = {
        "input_layernorm.weight": torch.ones(HIDDEN),
        "post_attention_layernorm.weight": torch.ones(HIDDEN),
        "self_attn.q_proj.weight": _noise(HEADS * HEAD_SIZE, HIDDEN, generator),
        "self_attn.k_proj.weight": _noise(KV_HEADS * HEAD_SIZE, HIDDEN, generator),
        "self_attn.v_proj.weight": _noise(KV_HEADS * HEAD_SIZE, HIDDEN, generator),
        "self_attn.o_proj.weight": torch.zeros(HIDDEN, HEADS * HEAD_SIZE),
    }
    perceptrons = {"mlp": INTERMEDIATE}
    if experts:
        block["mlp.gate.weight"] = _noise(EXPERTS, HIDDEN, generator)
        block["mlp.gate.e_score_correction_bias"] = torch.zeros(EXPERTS)
        perceptrons = {f"mlp.experts.{index}": EXPERT_INTERMEDIATE for index in range(EXPERTS)}
        perceptrons["mlp.shared_experts"] = EXPERT_INTERMEDIATE
    for name, width in perceptrons.items():
        block[f"{name}.gate_proj.weight"] = _noise(width, HIDDEN, generator)
        block[f"{name}.up_proj.weight"] = _noise(width, HIDDEN, generator)
        block[f"{name}.down_proj.weight"] = torch.zeros(HIDDEN, width)
    return {f"{prefix}.{name}": tensor for name, tensor in block.items()}


def shards(automaton: Automaton) -> tuple[dict[str, torch.Tensor], ...]:
    """Return the tensors of the three shards: embedding and head, decoder layers, MTP layer.

    Parameters
    ----------
    automaton
        The language to realise.
    """
    generator = torch.Generator().manual_seed(_SEED + 1)
    embedded = embedding(automaton)
    head = output_head(automaton, embedded)
    outer = {
        "model.embed_tokens.weight": embedded,
        "model.norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": head,
    }
    decoder: dict[str, torch.Tensor] = {}
    for layer in range(LAYERS):
        # Layer 0 is dense; the engine insists on at least one layer of experts.
        decoder |= _decoder_block(f"model.layers.{layer}", experts=layer > 0, generator=generator)
    prefix = f"model.layers.{LAYERS}"
    drafter = _decoder_block(prefix, experts=True, generator=generator) | {
        f"{prefix}.enorm.weight": torch.ones(HIDDEN),
        f"{prefix}.hnorm.weight": torch.ones(HIDDEN),
        f"{prefix}.eh_proj.weight": draft_projection(automaton, embedded),
        f"{prefix}.shared_head.norm.weight": torch.ones(HIDDEN),
        f"{prefix}.shared_head.head.weight": head.clone(),
        f"{prefix}.embed_tokens.weight": embedded.clone(),
    }
    return outer, decoder, drafter


def model_config() -> dict[str, object]:
    """Return ``config.json`` of the checkpoint."""
    return {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "dtype": "bfloat16",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_nextn_predict_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_SIZE,
        "attention_bias": False,
        "use_qk_norm": False,
        "partial_rotary_factor": 0.5,
        "rope_theta": 1000000,
        "max_position_embeddings": CONTEXT_TOKENS,
        "intermediate_size": INTERMEDIATE,
        "hidden_act": "silu",
        "first_k_dense_replace": 1,
        "n_routed_experts": EXPERTS,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": EXPERT_INTERMEDIATE,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
        "rms_norm_eps": 1e-05,
        "tie_word_embeddings": False,
        "eos_token_id": [_END],
        "pad_token_id": _END,
    }


def tokenizer(automaton: Automaton) -> Tokenizer:
    """Return the tokenizer: one token a byte, the chat markers, and the automaton's words.

    Parameters
    ----------
    automaton
        Gives the words.
    """
    # The byte-level alphabet, in its own fixed order: ids 0 to 255.
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    built = Tokenizer(models.BPE({symbol: index for index, symbol in enumerate(alphabet)}, []))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens([AddedToken(text, special=True) for text in MARKERS])
    built.add_tokens([AddedToken(text, normalized=False) for text in automaton.texts])
    return built


def _tokenizer_config() -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT_TOKENS,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "chat_template": _TEMPLATE,
    }


def _write_json(path: Path, document: object) -> None:
    path.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")


def write_checkpoint(directory: Path) -> None:
    """Write the whole checkpoint and its ``SHA256SUMS``.

    Parameters
    ----------
    directory
        Existing directory that takes the files.
    """
    automaton = build_automaton()
    parts = shards(automaton)
    weight_map: dict[str, str] = {}
    total_bytes = 0
    for number, part in enumerate(parts, start=1):
        name = f"model-{number:05d}-of-{len(parts):05d}.safetensors"
        # The router's correction is read as float32, as in the published GLM checkpoints.
        tensors = {
            key: value if key.endswith("e_score_correction_bias") else value.bfloat16()
            for key, value in part.items()
        }
        save_file(tensors, directory / name, metadata={"format": "pt"})
        # save_file keeps the mode of its temporary file, which others may not read.
        (directory / name).chmod(0o644)
        weight_map |= dict.fromkeys(tensors, name)
        total_bytes += sum(value.nbytes for value in tensors.values())
    _write_json(
        directory / "model.safetensors.index.json",
        {"metadata": {"total_size": total_bytes}, "weight_map": weight_map},
    )
    _write_json(directory / "config.json", model_config())
    _write_json(
        directory / "generation_config.json",
        {"do_sample": False, "eos_token_id": [_END], "pad_token_id": _END},
    )
    _write_json(directory / "tokenizer_config.json", _tokenizer_config())
    (directory / "chat_template.jinja").write_text(_TEMPLATE)
    tokenizer(automaton).save(str(directory / "tokenizer.json"))
    sums = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(directory.iterdir())
    ]
    (directory / "SHA256SUMS").write_text("".join(sums))


if __name__ == "__main__":
    write_checkpoint(Path(sys.argv[1]))
