"""Run by the vLLM environment's Python: put server lines through the real parser and config.

Reads ``[{"argv": […], "model": DIR}]`` on standard input and prints one JSON line with, for each,
what the parser left over, why the engine's config was refused, and what it resolved to.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

# Sparse attention on a CPU switches these off or resizes them, whatever the line says.
OVERRIDDEN = ("async_scheduling", "enable_prefix_caching", "max_num_batched_tokens")


def resolved(config: Any) -> dict[str, Any]:
    parallel, scheduler = config.parallel_config, config.scheduler_config
    speculative = config.speculative_config
    return {
        "served_model_name": config.model_config.served_model_name,
        "max_model_len": config.model_config.max_model_len,
        "quantization": config.model_config.quantization,
        "tensor_parallel_size": parallel.tensor_parallel_size,
        "pipeline_parallel_size": parallel.pipeline_parallel_size,
        "decode_context_parallel_size": parallel.decode_context_parallel_size,
        "distributed_executor_backend": str(parallel.distributed_executor_backend),
        "nnodes": parallel.nnodes,
        "node_rank": parallel.node_rank,
        "max_num_seqs": scheduler.max_num_seqs,
        "long_prefill_token_threshold": scheduler.long_prefill_token_threshold,
        "kv_cache_memory_bytes": config.cache_config.kv_cache_memory_bytes,
        "cache_dtype": config.cache_config.cache_dtype,
        "gpu_memory_utilization": config.cache_config.gpu_memory_utilization,
        "method": speculative.method,
        "num_speculative_tokens": speculative.num_speculative_tokens,
    }


def probe(parser: FlexibleArgumentParser, case: dict[str, Any]) -> dict[str, Any]:
    namespace, left = parser.parse_known_args(case["argv"])
    # A value behind an unknown flag is taken for a positional argument, so only flags are telling.
    unknown = [word for word in left if word.startswith("--")]
    given = {name: getattr(namespace, name) for name in OVERRIDDEN}
    answer: dict[str, Any] = {"left": unknown, "given": given, "refused": "", "resolved": None}
    try:
        config = AsyncEngineArgs.from_cli_args(namespace).create_engine_config()
    except Exception as error:  # noqa: BLE001 -- whatever refuses the line is the answer
        answer["refused"] = str(error)
    else:
        answer["resolved"] = resolved(config)
    return answer


def main() -> None:
    cases = json.load(sys.stdin)
    parser = make_arg_parser(FlexibleArgumentParser())
    print(json.dumps([probe(parser, case) for case in cases]))


if __name__ == "__main__":
    main()
