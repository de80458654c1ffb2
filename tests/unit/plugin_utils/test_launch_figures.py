"""Every number and flag of the R13 release against the rendered lines, as literal figures.

Published values that contradict each other or arithmetic are corrected here as in the recipe:
utilization by profile (D-02), fast at 420,000 tokens (D-03) with one more KV block (D-04).
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.plugin_utils.launch_cases import PROFILES, R13, rendered

FIXED_ENV = {
    "NCCL_IB_DISABLE": "0",
    "NCCL_CUMEM_ENABLE": "0",
    "NCCL_MIN_NCHANNELS": "4",
    "NCCL_MAX_NCHANNELS": "4",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "SAFETENSORS_FAST_GPU": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "VLLM_USE_B12X_SPARSE_INDEXER": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "1",
    "VLLM_MARLIN_USE_ATOMIC_ADD": "1",
    "VLLM_B12X_MLA_SPEC_EXTEND_AS_DECODE": "0",
    "VLLM_SPARSE_INDEXER_MAX_LOGITS_MB": "256",
    "VLLM_ENABLE_PCIE_ALLREDUCE": "0",
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "1800",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_ADAPTIVE_SPEC_DEPTHS": "2,4,5",
    "VLLM_MTP_INSTRUMENT": "1",
    "VLLM_MTP_INSTRUMENT_WINDOW": "32",
    "VLLM_CACHE_ROOT": "/cache/vllm",
    "B12X_CUTE_COMPILE_CACHE_DIR": "/cache/b12x-cute",
    "TRITON_CACHE_DIR": "/cache/triton",
    "TORCHINDUCTOR_CACHE_DIR": "/cache/torchinductor",
    "TORCH_EXTENSIONS_DIR": "/cache/torch-extensions",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_memory_usage_threshold": "0.99",
}
OWN_ENV = {
    "VLLM_HOST_IP": "10.77.0.11",
    "RAY_ADDRESS": "10.77.0.11:6379",
    "RAY_AUTH_MODE": "token",
    "NCCL_SOCKET_IFNAME": "enp1s0f1np1",
    "GLOO_SOCKET_IFNAME": "enp1s0f1np1",
    "NCCL_IB_HCA": "rocep1s0f1,roceP2p1s0f1",
}
# A bare flag has the value None; JSON is compared as what it means.
FIXED_FLAGS: dict[str, Any] = {
    "--model": "/models",
    "--tokenizer": "/models",
    "--download-dir": "/models",
    "--served-model-name": "glm-5.2",
    "--trust-remote-code": None,
    "--load-format": "auto",
    "--quantization": "compressed-tensors",
    "--distributed-executor-backend": "ray",
    "--tensor-parallel-size": "4",
    "--pipeline-parallel-size": "1",
    "--max-num-seqs": "4",
    "--max-num-batched-tokens": "1024",
    "--generation-config": "vllm",
    "--hf-overrides": {
        "use_index_cache": True,
        "index_topk_pattern": "FFF" + 18 * "SSSF" + "SSS",
    },
    "--host": "10.76.0.11",
    "--port": "8000",
    "--no-enable-log-requests": None,
    "--kv-cache-dtype": "nvfp4_ds_mla",
    "--attention-backend": "B12X_MLA_SPARSE",
    "--moe-backend": "flashinfer_cutlass",
    "--reasoning-parser": "glm45",
    "--tool-call-parser": "glm47",
    "--enable-auto-tool-choice": None,
    "--speculative-config": {
        "model": "/models",
        "method": "mtp",
        "num_speculative_tokens": 5,
        "moe_backend": "flashinfer_cutlass",
        "draft_attention_backend": "B12X_MLA_SPARSE",
        "draft_sample_method": "probabilistic",
        "adaptive_speculative_tokens_window": 32,
    },
    "--long-prefill-token-threshold": "1024",
    "--async-scheduling": None,
    "--enable-decode-aware-prefill": None,
    "--decode-prefill-token-budget": "1024",
    "--idle-prefill-token-budget": "1024",
    "--max-long-prefills-per-step": "1",
    "--compilation-config": {"cudagraph_capture_sizes": [6, 12, 18, 24]},
    "--enable-prefix-caching": None,
}
OWN_FLAGS: dict[str, dict[str, Any]] = {
    "balanced": {
        "--max-model-len": "520000",
        "--kv-cache-memory-bytes": "8410000000",
        "--decode-context-parallel-size": "2",
        "--dcp-comm-backend": "a2a",
        "--dcp-kv-cache-interleave-size": "1",
        "--gpu-memory-utilization": "0.87",
    },
    "fast": {
        "--max-model-len": "420000",
        "--kv-cache-memory-bytes": "13432989696",
        "--decode-context-parallel-size": "1",
        "--gpu-memory-utilization": "0.90",
    },
    "fast-319k": {
        "--max-model-len": "319000",
        "--kv-cache-memory-bytes": "10233000000",
        "--decode-context-parallel-size": "1",
        "--gpu-memory-utilization": "0.87",
    },
}


def flags_of(argv: tuple[str, ...]) -> dict[str, Any]:
    """Return the server's flags with their values, after its module."""
    words = list(argv[argv.index("vllm.entrypoints.openai.api_server") + 1 :])
    flags: dict[str, Any] = {}
    while words:
        name = words.pop(0)
        assert name.startswith("--"), name
        assert name not in flags, name
        value = words.pop(0) if words and not words[0].startswith("--") else None
        flags[name] = json.loads(value) if value and value.startswith("{") else value
    return flags


@pytest.mark.parametrize("profile", PROFILES)
def test_the_servers_flags_are_exactly_these(profile: str) -> None:
    head = rendered(profile)["alpha"]
    assert flags_of(head.server_argv) == FIXED_FLAGS | OWN_FLAGS[profile]


@pytest.mark.parametrize("profile", PROFILES)
def test_the_containers_environment_is_exactly_this(profile: str) -> None:
    env = dict(rendered(profile)["alpha"].env)
    assert env == FIXED_ENV | OWN_ENV
    assert len(env) == 33 + 1  # the published ones, and Ray's own authentication


def test_the_index_pattern_is_that_of_78_layers() -> None:
    pattern = FIXED_FLAGS["--hf-overrides"]["index_topk_pattern"]
    assert (len(pattern), pattern.count("F"), pattern.count("S")) == (78, 21, 57)


def test_the_gates_and_the_smoke_are_these() -> None:
    smoke = R13.gates.smoke
    assert (smoke.seed, smoke.max_tokens, smoke.expect) == (20260726, 32, "R9-SMOKE-OK")
    assert smoke.extra == {"top_p": 1, "chat_template_kwargs": {"enable_thinking": False}}
    assert R13.topology.nodes == 4
    assert R13.default_profile == "balanced"
    assert [R13.shapes(R13.profile(name)) for name in PROFILES] == [12, 12, 12]
