"""Build real graph managers on a CPU and print what they would capture and dispatch.

Reads a JSON list of cases from its input, writes a JSON list of answers. Only the process group and
the graph pool are stand-ins: both need a GPU and neither takes part in choosing graphs.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import torch

from vllm.config.compilation import CUDAGraphMode
from vllm.v1.worker.gpu import cudagraph_utils


def manager(case: dict[str, Any]) -> cudagraph_utils.CudaGraphManager:
    """Return the real manager for a case."""
    group = SimpleNamespace(is_first_rank=True, is_last_rank=True)
    cudagraph_utils.get_pp_group = lambda: group
    cudagraph_utils.current_platform = SimpleNamespace(get_global_graph_pool=lambda: None)
    speculative = SimpleNamespace(
        method="mtp",
        num_speculative_tokens=5,
        num_speculative_tokens_per_batch_size=None,
        adaptive_speculative_tokens_window=case.get("window", 32),
    )
    config = SimpleNamespace(
        scheduler_config=SimpleNamespace(max_num_seqs=case["seqs"]),
        compilation_config=SimpleNamespace(
            cudagraph_capture_sizes=case["sizes"],
            max_cudagraph_capture_size=max(case["sizes"], default=0),
        ),
        parallel_config=SimpleNamespace(tensor_parallel_size=1, data_parallel_size=1),
        cache_config=SimpleNamespace(use_kda_recoverssm=False),
        speculative_config=speculative,
        num_speculative_tokens=5,
    )
    return cudagraph_utils.CudaGraphManager(
        config,
        torch.device("cpu"),
        CUDAGraphMode[case.get("mode", "FULL_AND_PIECEWISE")],
        case.get("query", 6),
        lora_capture_cases=case.get("loras"),
    )


def answer(case: dict[str, Any]) -> dict[str, Any]:
    """Return what a case leads to."""
    try:
        built = manager(case)
    except (RuntimeError, ValueError) as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    built._graphs_captured = True
    shapes = {}
    for query in (3, 5, 6):
        for requests in range(1, case["seqs"] + 1):
            found = built.dispatch(requests, query * requests, query, 0)
            shapes[f"{query}x{requests}"] = [
                found.cg_mode.name, found.num_tokens, found.num_reqs, found.uniform_token_count,
            ]  # fmt: skip
    mixed = {
        tokens: [(d := built.dispatch(2, tokens, None, 0)).cg_mode.name, d.num_tokens]
        for tokens in (4, 7, 11, 16, 23)
    }
    full = built._capture_descs.get(CUDAGraphMode.FULL, [])
    return {"full": len(full), "shapes": shapes, "mixed": mixed}


print("ANSWERS" + json.dumps([answer(case) for case in json.load(sys.stdin)]))
