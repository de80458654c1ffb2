"""The rendered server lines against the real vLLM parser and engine config.

The released vLLM lacks what the R13 image's fork adds. ``FORK_ONLY`` lists that, and nothing else
may be refused.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.spark.appliance.plugins.plugin_utils.launch import NodeLaunch, NodeView

from image.lab import cache, environment
from tests.unit.plugin_utils.launch_cases import NODES, PROFILES, ROOT, recipe, rendered

pytestmark = pytest.mark.vllm

FORK_ONLY_FLAGS = {
    "--enable-decode-aware-prefill": None,
    "--decode-prefill-token-budget": "1024",
    "--idle-prefill-token-budget": "1024",
    "--max-long-prefills-per-step": "1",
}
FORK_ONLY_BACKEND = "B12X_MLA_SPARSE"
# The released name of the first is attention_backend; the second is the ladder itself.
FORK_ONLY_SPECULATION = ("draft_attention_backend", "adaptive_speculative_tokens_window")
PYTHON = environment.environment_path() / "bin" / "python"

# The shape of GLM-5.2: only what parser and config read; there are no weights.
GLM52: dict[str, Any] = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "dtype": "bfloat16",
    "hidden_size": 6144,
    "intermediate_size": 12288,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 78,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "num_nextn_predict_layers": 1,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "q_lora_rank": 2048,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "index_topk": 2048,
    "index_n_heads": 32,
    "index_head_dim": 128,
    "max_position_embeddings": 1048576,
    "vocab_size": 512,
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group",
                            "group_size": 128},
            }
        },
        "ignore": ["lm_head"],
    },
}  # fmt: skip
TOKENIZER = {
    "version": "1.0",
    "added_tokens": [],
    "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"},
}


def ask(cases: list[list[str]]) -> list[dict[str, Any]]:
    """Return what the real vLLM makes of each line; one process, since the import takes long."""
    if not cache.is_complete(environment.environment_path()):
        pytest.fail(f"{PYTHON} is missing: run make vllm-env")
    done = subprocess.run(
        [str(PYTHON), "-m", "tests.unit.plugin_utils.vllm_launch_probe"],
        cwd=ROOT,
        input=json.dumps([{"argv": argv} for argv in cases]),
        capture_output=True,
        text=True,
        check=False,
        # 15 s on an idle machine; a loaded one takes minutes for the import alone.
        timeout=900,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
             "VLLM_USE_V2_MODEL_RUNNER": "0", "VLLM_LOGGING_LEVEL": "ERROR"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    answers: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return answers


def server_words(launch: NodeLaunch, mount: str, model: Path) -> list[str]:
    """Return the server's arguments with the mounted weights replaced by a folder here."""
    argv = launch.server_argv or launch.container_argv
    words = argv[argv.index("-m") + 2 :]
    # The parser is built for the server's own flags, behind the subcommand where there is one.
    words = words[1:] if words[0] == "serve" else words
    return [word.replace(f'"{mount}"', f'"{model}"') if word != mount else str(model)
            for word in words]  # fmt: skip


def without_flags(words: list[str]) -> list[str]:
    """Return a line without the fork's own flags."""
    kept, rest = [], list(words)
    while rest:
        word = rest.pop(0)
        if word not in FORK_ONLY_FLAGS:
            kept.append(word)
        elif FORK_ONLY_FLAGS[word] is not None:
            rest.pop(0)
    return kept


def without_backend(words: list[str]) -> list[str]:
    """Return a line without the fork's attention backend."""
    index = words.index("--attention-backend")
    assert words[index + 1] == FORK_ONLY_BACKEND
    return words[:index] + words[index + 2 :]


def without_speculation_keys(words: list[str]) -> list[str]:
    """Return a line whose speculative config has only keys of the released vLLM."""
    index = words.index("--speculative-config") + 1
    config = json.loads(words[index])
    for key in FORK_ONLY_SPECULATION:
        del config[key]
    return [*words[:index], json.dumps(config), *words[index + 1 :]]


@pytest.fixture(scope="module")
def glm52(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the shape of the model and a tokenizer of two words."""
    folder = tmp_path_factory.mktemp("glm52-constructed")
    (folder / "config.json").write_text(json.dumps(GLM52))
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return folder


def lines(profile: str, model: Path) -> list[list[str]]:
    whole = server_words(rendered(profile)["alpha"], "/models", model)
    released = without_flags(whole)
    known_backend = without_backend(released)
    return [whole, released, known_backend, without_speculation_keys(known_backend)]


@pytest.fixture(scope="module")
def answers(glm52: Path) -> dict[str, list[dict[str, Any]]]:
    """Return, for each profile, the answers to the line as rendered and ever less of the fork."""
    cases = [line for profile in PROFILES for line in lines(profile, glm52)]
    told = iter(ask(cases))
    return {profile: [next(told) for _ in range(4)] for profile in PROFILES}


@pytest.mark.parametrize("profile", PROFILES)
def test_only_the_forks_flags_are_unknown(
    profile: str, answers: dict[str, list[dict[str, Any]]]
) -> None:
    whole, *rest = answers[profile]
    assert whole["left"] == list(FORK_ONLY_FLAGS)
    assert [answer["left"] for answer in rest] == [[], [], []]


@pytest.mark.parametrize("profile", PROFILES)
def test_only_the_forks_backend_and_keys_are_refused(
    profile: str, answers: dict[str, list[dict[str, Any]]]
) -> None:
    _, released, known_backend, known_keys = answers[profile]
    assert FORK_ONLY_BACKEND in released["refused"]
    for key in FORK_ONLY_SPECULATION:
        assert key in known_backend["refused"]
    assert known_keys["refused"] == ""


@pytest.mark.parametrize(
    ("profile", "numbers"),
    [
        ("balanced", (520000, 8410000000, 2, 0.87)),
        ("fast", (420000, 13432989696, 1, 0.90)),
        ("fast-319k", (319000, 10233000000, 1, 0.87)),
    ],
)
def test_the_engine_resolves_to_the_profiles_numbers(
    profile: str,
    numbers: tuple[int, int, int, float],
    answers: dict[str, list[dict[str, Any]]],
) -> None:
    context, kv_cache_bytes, dcp, utilization = numbers
    assert answers[profile][3]["resolved"] == {
        "served_model_name": "glm-5.2",
        "max_model_len": context,
        "quantization": "compressed-tensors",
        "tensor_parallel_size": 4,
        "pipeline_parallel_size": 1,
        "decode_context_parallel_size": dcp,
        "distributed_executor_backend": "ray",
        "nnodes": 1,
        "node_rank": 0,
        "max_num_seqs": 4,
        "long_prefill_token_threshold": 1024,
        "kv_cache_memory_bytes": kv_cache_bytes,
        "cache_dtype": "nvfp4_ds_mla",
        "gpu_memory_utilization": utilization,
        "method": "mtp",
        "num_speculative_tokens": 5,
    }
    assert answers[profile][3]["given"] == {
        "async_scheduling": True,
        "enable_prefix_caching": True,
        "max_num_batched_tokens": 1024,
    }


def without_window(words: list[str]) -> list[str]:
    """Return a line without the one key that the overlay adds to the released vLLM."""
    index = words.index("--speculative-config") + 1
    config = json.loads(words[index])
    del config["adaptive_speculative_tokens_window"]
    return [*words[:index], json.dumps(config), *words[index + 1 :]]


def test_the_labs_lines_are_taken_but_for_the_overlays_key(tmp_path: Path) -> None:
    subprocess.run(
        [str(PYTHON), "-m", "image.lab.checkpoint", str(tmp_path)],
        cwd=ROOT, check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    views = dict.fromkeys(NODES, NodeView("enp1s0f1np1"))
    launches = [
        rendered(profile, recipe(name), views=views)[node]
        for name, node in (("lab", "alpha"), ("lab-tp4", "alpha"), ("lab-tp4", "delta"))
        for profile in ("balanced", "fast")
    ]
    for launch, answer in zip(
        launches,
        ask([without_window(server_words(launch, "/weights", tmp_path)) for launch in launches]),
        strict=True,
    ):
        assert (answer["left"], answer["refused"]) == ([], "")
        assert answer["resolved"]["method"] == "mtp"
        if launch.kind == "multinode":
            assert (answer["resolved"]["nnodes"], answer["resolved"]["node_rank"]) == (
                4,
                launch.rank,
            )
