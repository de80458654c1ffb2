"""The overlaid vLLM on a CUDA device: arms side by side, with the published acceptance.

    python -m benchmarks.gpu.stage_b DIRECTORY

Every arm is an engine in a process of its own; all stay loaded and take turns, so that a pair of
runs is minutes apart in nothing. The model is GLM-4-MoE with random weights; vLLM's synthetic
rejection sampler accepts drafts at the published rates. Writes ``stage_b.json`` there.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

RATES = [0.895, 0.747, 0.483, 0.411, 0.335]
UNION = [3, 5, 6, 9, 10, 12, 15, 18, 20, 24]
SHORT = [6, 12, 18, 24]
WINDOW = {"adaptive_speculative_tokens_window": 32}
# Sizes of the draft layer's own decode steps: one token a request.
DRAFT_SIZES = [1, 2, 4]
ARMS: dict[str, dict[str, Any]] = {
    "ladder": {"spec": WINDOW, "sizes": UNION},
    "ladder, draft sizes": {"spec": WINDOW, "sizes": DRAFT_SIZES + UNION},
    "fixed 5": {"spec": {}, "sizes": SHORT},
    "fixed 5, draft sizes": {"spec": {}, "sizes": DRAFT_SIZES + SHORT},
    "fixed 2": {"spec": {"num_speculative_tokens": 2}, "sizes": [*DRAFT_SIZES, 3, 6, 9, 12]},
}
REFUSED: dict[str, dict[str, Any]] = {
    "short capture list": {"spec": WINDOW, "sizes": SHORT},
    "capture list short by one": {"spec": WINDOW, "sizes": UNION[1:]},
    "eager": {"spec": WINDOW, "sizes": UNION, "enforce_eager": True},
    "piecewise": {"spec": WINDOW, "sizes": UNION, "mode": "PIECEWISE", "compile": 3},
    "V1 runner": {"spec": WINDOW, "sizes": UNION, "v2": "0"},
    "window 0": {"spec": {"adaptive_speculative_tokens_window": 0}, "sizes": UNION},
    "top rung": {"spec": {**WINDOW, "num_speculative_tokens": 4}, "sizes": UNION},
}
PIECEWISE_TOO = {"spec": WINDOW, "sizes": UNION, "mode": "FULL_AND_PIECEWISE", "compile": 3}
TOKENS = 1500
ROUNDS = 5


def write_config(directory: Path) -> None:
    """Write the shape of a GLM-4-MoE model with one draft layer; no weights."""
    config = {
        "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "dtype": "bfloat16",
        "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 16,
        "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 5632,
        "moe_intermediate_size": 768, "n_routed_experts": 16, "n_shared_experts": 1,
        "num_experts_per_tok": 4, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
        "norm_topk_prob": True, "routed_scaling_factor": 1.0, "use_qk_norm": False,
        "attention_bias": False, "partial_rotary_factor": 0.5, "rope_theta": 1000000,
        "max_position_embeddings": 16384, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "vocab_size": 32768, "num_nextn_predict_layers": 1, "tie_word_embeddings": False,
        "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1,
    }  # fmt: skip
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))


def count_dispatches() -> Counter[str]:
    """Count what the real graph managers answer, per kind of manager and batch."""
    from vllm.v1.worker.gpu import cudagraph_utils  # noqa: PLC0415 - only the arms have vLLM

    counts: Counter[str] = Counter()
    original = cudagraph_utils.CudaGraphManager.dispatch

    def dispatch(self: Any, *batch: Any, **more: Any) -> Any:  # noqa: ANN401 - vLLM's own types
        found = original(self, *batch, **more)
        num_reqs, num_tokens, uniform = batch[:3] if len(batch) >= 3 else (None, None, None)
        owner = f"{type(self).__name__}[{self.decode_query_len}]"
        exact = found.num_tokens == num_tokens and found.num_reqs in (None, num_reqs)
        counts[f"{owner} n={num_reqs} tokens={num_tokens} uniform={uniform} ->"
               f" {found.cg_mode.name}{'' if exact else ' padded'}"] += 1  # fmt: skip
        return found

    cudagraph_utils.CudaGraphManager.dispatch = dispatch
    return counts


def arm(name: str, directory: Path) -> None:
    """Load an engine, then answer each line of input with a measured run."""
    from vllm import LLM, SamplingParams, TokensPrompt  # noqa: PLC0415 - only the arms have vLLM

    plan = {**ARMS, **REFUSED, "FULL_AND_PIECEWISE": PIECEWISE_TOO}[name]
    spec = {"method": "mtp", "num_speculative_tokens": 5, **plan["spec"]}
    depth = spec["num_speculative_tokens"]
    spec |= {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": RATES[:depth]}
    counts = count_dispatches()
    began = time.perf_counter()
    engine = LLM(
        model=str(directory / "model"), load_format="dummy", skip_tokenizer_init=True,
        max_model_len=8192, max_num_seqs=4, max_num_batched_tokens=1024, seed=0,
        kv_cache_memory_bytes=2 << 30, gpu_memory_utilization=0.05, async_scheduling=True,
        enable_prefix_caching=False, disable_log_stats=False, speculative_config=spec,
        attention_backend="FLASH_ATTN", enforce_eager=plan.get("enforce_eager", False),
        compilation_config={
            "mode": plan.get("compile", 0),
            "cudagraph_mode": plan.get("mode", "FULL_DECODE_ONLY"),
            "cudagraph_capture_sizes": plan["sizes"],
        },
    )  # fmt: skip
    print("RESULT", json.dumps({"load_s": time.perf_counter() - began}), flush=True)

    def total(metric: str) -> float:
        return float(sum(m.value for m in engine.get_metrics() if m.name == f"vllm:{metric}"))

    for line in sys.stdin:
        if line.strip() == "end":
            break
        requests = int(line)
        prompts = [TokensPrompt(prompt_token_ids=list(range(2 + i, 130 + i))) for i in
                   range(requests)]  # fmt: skip
        sampling = SamplingParams(
            temperature=0, max_tokens=TOKENS, ignore_eos=True, detokenize=False
        )
        before = {m: total(m) for m in ("spec_decode_num_drafts", "spec_decode_num_draft_tokens",
                                        "spec_decode_num_accepted_tokens")}  # fmt: skip
        counts.clear()
        start = time.perf_counter()
        outputs = engine.generate(prompts, sampling, use_tqdm=False)
        seconds = time.perf_counter() - start
        produced = sum(len(output.outputs[0].token_ids) for output in outputs)
        result = {m: total(m) - value for m, value in before.items()}
        result |= {"tokens": produced, "seconds": seconds, "tokens_per_s": produced / seconds}
        print("RESULT", json.dumps(result | {"dispatch": counts}), flush=True)


class Worker:
    """An arm in a process of its own."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        v2 = REFUSED.get(name, {}).get("v2", "1")
        self.log = directory / f"{name.replace(' ', '_').replace(',', '')}.log"
        environment = os.environ | {
            "VLLM_USE_V2_MODEL_RUNNER": v2, "VLLM_USE_FLASHINFER_SAMPLER": "0",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1", "VLLM_MTP_INSTRUMENT": "1",
            "VLLM_MTP_INSTRUMENT_WINDOW": "256",
        }  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu.stage_b", str(directory), name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
            stderr=self.log.open("w"),
        )  # fmt: skip

    def result(self) -> dict[str, Any] | None:
        """Return the next result, or None when the arm ended."""
        assert self.process.stdout is not None  # noqa: S101 - opened as a pipe above
        with self.log.open("a") as log:
            for line in self.process.stdout:
                if line.startswith("RESULT "):
                    answer: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
                    return answer
                log.write(line)
        return None

    def ask(self, line: str) -> dict[str, Any] | None:
        """Send a line and return the answer."""
        assert self.process.stdin is not None  # noqa: S101 - opened as a pipe above
        try:
            print(line, file=self.process.stdin, flush=True)
        except BrokenPipeError:
            return None
        return self.result()

    def last_error(self) -> str:
        """Return the line of the log that says why the arm ended."""
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines()]
        errors = [line for line in lines if "Error" in line or "decode shapes" in line]
        return " | ".join(errors[-2:])[-900:]


def windows(log: Path) -> list[str]:
    """Return depth changes and coverage lines of an arm's log."""
    marks = ("draft depth", "coverage verified", "keeping cudagraph_mode", "Graph capturing")
    lines = log.read_text(errors="replace").splitlines()
    return [line[-260:] for line in lines if any(mark in line for mark in marks)]


def main() -> None:
    """Run the arms in turns, then what must be refused."""
    directory = Path(sys.argv[1])
    if len(sys.argv) > 2:
        arm(sys.argv[2], directory)
        return
    write_config(directory / "model")
    results: dict[str, Any] = {"hardware_note": "H200, not GB10", "rates": RATES, "arms": {}}

    def save() -> None:
        (directory / "stage_b.json").write_text(json.dumps(results, indent=1))

    workers = {name: Worker(name, directory) for name in ARMS}
    for name, worker in list(workers.items()):
        loaded = worker.result()
        results["arms"][name] = {"loaded": loaded, "runs": []}
        if loaded is None:
            results["arms"][name]["error"] = worker.last_error()
            del workers[name]
        print(name, loaded, worker.last_error() if loaded is None else "", flush=True)
    save()
    for requests in (4, 1):
        for turn in range(ROUNDS):
            order = list(workers.items())
            for name, worker in order if turn % 2 == 0 else reversed(order):
                run = worker.ask(str(requests))
                entry = {"requests": requests, "turn": turn, "run": run}
                results["arms"][name]["runs"].append(entry)
        for name in workers:
            rates = [r["run"]["tokens_per_s"] for r in results["arms"][name]["runs"]
                     if r["requests"] == requests and r["turn"] and r["run"]]  # fmt: skip
            if rates:
                print(requests, name, round(statistics.median(rates), 1), min(rates), max(rates))
        save()
    for name, worker in workers.items():
        worker.ask("end")
        results["arms"][name]["log"] = windows(worker.log)
    results["refused"] = {}
    refusing = {name: Worker(name, directory) for name in REFUSED}
    for name, worker in refusing.items():
        started = worker.result() is not None
        results["refused"][name] = {"started": started, "error": worker.last_error()}
        if started:
            worker.ask("end")
        print("STARTED" if started else "refused", name, worker.last_error()[:300], flush=True)
    save()
    both = Worker("FULL_AND_PIECEWISE", directory)
    loaded = both.result()
    run = None if loaded is None else both.ask("4")
    results["FULL_AND_PIECEWISE"] = {"loaded": loaded, "run": run, "log": windows(both.log),
                                     "error": None if run else both.last_error()}  # fmt: skip
    if loaded:
        both.ask("end")
    save()
    print("FULL_AND_PIECEWISE", loaded, run and run["tokens_per_s"], flush=True)


if __name__ == "__main__":
    main()
