"""Compute, with the checkpoint's own tensors, what model and draft head put after each token.

Run by the Python of the vLLM environment with the checkpoint's directory as the argument. Prints
one JSON object: for every token id the argmax of both heads and its lead over the
runner-up, as well as what the attention and expert outputs add (they must add nothing).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

EPSILON = 1e-5


def normed(hidden: torch.Tensor) -> torch.Tensor:
    """Divide each row by its root mean square, as RMSNorm with unit weights does."""
    return hidden * torch.rsqrt(hidden.pow(2).mean(dim=-1, keepdim=True) + EPSILON)


def choose(hidden: torch.Tensor, head: torch.Tensor) -> dict[str, list[float]]:
    """Return the best-scored token of each row and its lead over the second, relative to itself."""
    best = (hidden @ head.T).topk(2, dim=-1)
    lead = (best.values[:, 0] - best.values[:, 1]) / best.values[:, 0]
    return {"token": best.indices[:, 0].tolist(), "lead": lead.tolist()}


def main() -> None:
    """Load all shards and print."""
    directory = Path(sys.argv[1])
    index = json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"]
    tensors: dict[str, torch.Tensor] = {}
    for shard in set(index.values()):
        tensors |= load_file(directory / shard)
    if set(tensors) != set(index):
        raise SystemExit("the index and the shards name different tensors")
    tensors = {name: tensor.float() for name, tensor in tensors.items()}
    silent = [
        tensor.abs().max().item()
        for name, tensor in tensors.items()
        if name.endswith(("o_proj.weight", "down_proj.weight"))
    ]
    embedded = tensors["model.embed_tokens.weight"]
    drafter = "model.layers.2"
    halves = tensors[f"{drafter}.eh_proj.weight"].chunk(2, dim=1)
    drafted = normed(tensors[f"{drafter}.embed_tokens.weight"]) @ halves[0].T
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    text = "Grüße, /two000/two001<|user|>"
    report = {
        "silent": max(silent),
        "history": halves[1].abs().max().item(),
        "model": choose(normed(embedded), tensors["lm_head.weight"]),
        "draft": choose(normed(drafted), tensors[f"{drafter}.shared_head.head.weight"]),
        "round_trip": tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False)
        == text,
        "word": tokenizer.encode("/two000").ids,
        "vocabulary": tokenizer.get_vocab_size(),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
