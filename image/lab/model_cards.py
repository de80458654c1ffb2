"""Ask vLLM once what its GLM-4-MoE classes can do, and keep the answer for the image.

Run by the Python of the vLLM environment, which writes below ``VLLM_CACHE_ROOT``::

    VLLM_CACHE_ROOT=DIRECTORY python -m image.lab.model_cards

A server without this cache starts another process for each class of its model, just to look at it;
on two processors that is a third of its start. Entries are keyed by the class's source: an overlay
that replaces the source makes vLLM look again.
"""

from __future__ import annotations

import sys

from vllm.model_executor.models.registry import ModelRegistry

CLASSES = ("Glm4MoeForCausalLM", "Glm4MoeMTPModel")


def main() -> int:
    """Inspect the classes."""
    for name in CLASSES:
        ModelRegistry.models[name].inspect_model_cls()
    return 0


if __name__ == "__main__":
    sys.exit(main())
