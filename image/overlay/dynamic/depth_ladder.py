# SPDX-License-Identifier: Apache-2.0
"""The one place where the engine learns its ladder, and where it refuses to run without graphs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Protocol

from .decode_shapes import TUNED_LADDER, GraphManager, Shape, parse_ladder, reachable, uncovered
from .depth_policy import PolicyOptions

LADDER = "VLLM_ADAPTIVE_SPEC_DEPTHS"
ADAPTIVE_METHODS = ("mtp", "eagle", "eagle3")
_LISTED = 12


class SpeculativeSettings(Protocol):
    """What is read of vLLM's ``SpeculativeConfig``."""

    method: str | None
    num_speculative_tokens: int
    num_speculative_tokens_per_batch_size: list[tuple[int, int, int]] | None
    adaptive_speculative_tokens_window: int | None
    adaptive_speculative_tokens_bar_windows: int
    adaptive_speculative_tokens_settle_steps: int
    adaptive_speculative_tokens_start: int | None

    def use_multi_module_mtp(self) -> bool:
        """Return whether several draft layers are used."""


def engine_ladder(environment: Mapping[str, str] = os.environ) -> tuple[int, ...]:
    """Return the ladder that this process was started with.

    Parameters:
        environment: the process's variables; without the ladder's, the tuned ladder.

    Raises:
        ValueError: see :func:`parse_ladder`.
    """
    text = environment.get(LADDER)
    return TUNED_LADDER if text is None else parse_ladder(text)


def adaptive_ladder(settings: SpeculativeSettings | None) -> tuple[int, ...] | None:
    """Return the ladder, or None when the draft depth is not adaptive."""
    if settings is None or settings.adaptive_speculative_tokens_window is None:
        return None
    return engine_ladder()


def policy_options(settings: SpeculativeSettings) -> PolicyOptions:
    """Return the departures from the tuned policy that a configuration asks for.

    Raises:
        ValueError: see :class:`PolicyOptions`.
    """
    start = settings.adaptive_speculative_tokens_start
    return PolicyOptions(
        bar_windows=settings.adaptive_speculative_tokens_bar_windows,
        settle_steps=settings.adaptive_speculative_tokens_settle_steps,
        start_depth=TUNED_LADDER[0] if start is None else start,
    )


def check_settings(settings: SpeculativeSettings) -> None:
    """Refuse a speculative configuration whose depth cannot follow the ladder.

    Raises:
        ValueError: what was expected, what was found.
    """
    options = policy_options(settings)
    ladder = adaptive_ladder(settings)
    if ladder is None:
        if options != PolicyOptions():
            raise ValueError(
                "adaptive_speculative_tokens_* options need adaptive_speculative_tokens_window"
            )
        return
    if settings.method not in ADAPTIVE_METHODS or settings.use_multi_module_mtp():
        raise ValueError(
            f"an adaptive draft depth needs one draft layer of {', '.join(ADAPTIVE_METHODS)},"
            f" not method {settings.method!r} with several or none"
        )
    if settings.num_speculative_tokens_per_batch_size is not None:
        raise ValueError(
            "num_speculative_tokens_per_batch_size and adaptive_speculative_tokens_window both"
            " choose the draft depth; leave one out"
        )
    if settings.num_speculative_tokens != ladder[-1]:
        raise ValueError(
            f"num_speculative_tokens is {settings.num_speculative_tokens}, but the top rung of"
            f" the ladder {ladder} is {ladder[-1]}"
        )


def _texts(shapes: Iterable[Shape]) -> str:
    shapes = list(shapes)
    texts = [f"{s.requests}x{s.query_length} ({s.tokens} tokens)" for s in shapes[:_LISTED]]
    if len(shapes) > _LISTED:
        texts.append(f"and {len(shapes) - _LISTED} more")
    return ", ".join(texts)


def check_graph_settings(
    settings: SpeculativeSettings | None,
    *,
    cuda_graphs: bool,
    v2_runner: bool,
    full_decode: bool,
    mode: str,
    capture_sizes: Iterable[int],
    max_seqs: int,
    data_parallel: int,
) -> str | None:
    """Refuse an engine configuration in which a reachable decode shape has no FULL graph.

    Parameters:
        settings: the speculative configuration, if any.
        cuda_graphs: the platform that vLLM detected has CUDA graphs. Where it has none, no
            configuration can give or take coverage.
        v2_runner: the engine uses the V2 model runner.
        full_decode: uniform decode batches have FULL graphs of their own.
        mode: name of the graph mode, for the message.
        capture_sizes: tokens.
        max_seqs: sequences decoded at once.
        data_parallel: size of the data-parallel group.

    Returns:
        What was established, for the log; None without a ladder.

    Raises:
        ValueError: what was expected, what was found.
    """
    ladder = adaptive_ladder(settings)
    if ladder is None:
        return None
    if data_parallel > 1:
        raise ValueError(
            f"an adaptive draft depth needs data_parallel_size 1, not {data_parallel}: ranks"
            " could choose different depths and wait for each other"
        )
    if not cuda_graphs:
        return f"draft depth follows {list(ladder)} on a platform without CUDA graphs"
    sizes = sorted(set(capture_sizes))
    if not (v2_runner and full_decode and sizes):
        raise ValueError(
            f"ladder {ladder} needs the V2 model runner with FULL graphs for decode, but"
            f" v2_runner={v2_runner}, cudagraph_mode={mode}, cudagraph_capture_sizes={sizes}"
        )
    if missing := uncovered(GraphManager.UPSTREAM, sizes, ladder, max_seqs):
        raise ValueError(
            f"cudagraph_capture_sizes {sizes} leave decode shapes of ladder {ladder} without a"
            f" FULL graph: {_texts(missing)}; add {sorted({s.tokens for s in missing})}"
        )
    return f"keeping cudagraph_mode={mode} with an adaptive draft depth"


class GraphDescriptor(Protocol):
    """What is read of vLLM's ``BatchExecutionDescriptor``."""

    @property
    def num_tokens(self) -> int: ...
    @property
    def num_reqs(self) -> int | None: ...
    @property
    def uniform_token_count(self) -> int | None: ...
    @property
    def num_active_loras(self) -> int: ...


def owned_query_lengths(
    settings: SpeculativeSettings | None, decode_query_len: int
) -> tuple[int, ...]:
    """Return the uniform query lengths that a graph manager meets under the ladder.

    Parameters:
        settings: the speculative configuration, if any.
        decode_query_len: longest uniform decode query of the manager. That of the draft layer's
            own decode steps is 1: no depth changes it.

    Returns:
        Query lengths in tokens, ascending; empty when the manager has no adaptive shape.

    Raises:
        RuntimeError: the manager's length does not belong to the ladder.
    """
    ladder = adaptive_ladder(settings)
    if ladder is None or decode_query_len <= 1:
        return ()
    new_tokens = decode_query_len - ladder[-1]
    if new_tokens < 1:
        raise RuntimeError(
            f"decode query length {decode_query_len} is too short for draft depth {ladder[-1]}"
        )
    return tuple(depth + new_tokens for depth in ladder)


def require_coverage(
    query_lengths: tuple[int, ...],
    *,
    max_seqs: int,
    lora_cases: Iterable[int],
    full_graphs: Iterable[GraphDescriptor],
    mode: str,
    capture_sizes: Iterable[int],
) -> str | None:
    """Refuse graph candidates that miss a reachable shape; there is no way past this.

    Parameters:
        query_lengths: see :func:`owned_query_lengths`.
        max_seqs: sequences decoded at once.
        lora_cases: numbers of active LoRAs that graphs are captured for.
        full_graphs: descriptors that will be captured as FULL graphs.
        mode: name of the resolved graph mode, for the message.
        capture_sizes: tokens, for the message.

    Returns:
        What was established, for the log; None when the manager has no adaptive shape.

    Raises:
        RuntimeError: the shapes without a graph of exactly their tokens, requests and query length.
    """
    if not query_lengths:
        return None
    captured = {
        (graph.num_tokens, graph.num_reqs, graph.uniform_token_count, graph.num_active_loras)
        for graph in full_graphs
    }
    missing = [
        shape
        for shape in reachable(query_lengths, max_seqs, new_tokens=0)
        if any(
            (shape.tokens, shape.requests, shape.query_length, loras) not in captured
            for loras in lora_cases
        )
    ]
    if missing:
        raise RuntimeError(
            f"decode shapes without a FULL graph of their own: {_texts(missing)}; cudagraph mode"
            f" {mode}, capture sizes {sorted(capture_sizes)}; sizes needed:"
            f" {sorted({shape.tokens for shape in missing})}"
        )
    return (
        f"FULL CUDA graph coverage verified for query lengths {list(query_lengths)}"
        f" across request counts 1..{max_seqs}"
    )
