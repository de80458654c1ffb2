"""A small decoder with one draft block: the graphs that a ladder of draft depths needs.

Sizes are chosen so that a step has the launches of a real one (per layer: norm, projections,
attention, feed-forward), not its weights; times say what a graph, a shape and a change of depth
cost on the device, nothing about a served model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

Step = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the decoder; context in tokens a request."""

    layers: int = 8
    hidden: int = 2048
    heads: int = 16
    kv_heads: int = 4
    head_size: int = 128
    feed_forward: int = 5632
    vocabulary: int = 32768
    context: int = 4096
    max_requests: int = 4
    max_query: int = 6


class Block:
    """One layer: attention over a static cache, then a gated feed-forward."""

    def __init__(self, sizes: Sizes, generator: torch.Generator) -> None:
        def weight(rows: int, columns: int) -> torch.Tensor:
            values = torch.randn(rows, columns, generator=generator, device="cuda")
            return (values / columns**0.5).to(torch.bfloat16)

        s = self.sizes = sizes
        self.query = weight(s.heads * s.head_size, s.hidden)
        self.key_value = weight(2 * s.kv_heads * s.head_size, s.hidden)
        self.out = weight(s.hidden, s.heads * s.head_size)
        self.up = weight(2 * s.feed_forward, s.hidden)
        self.down = weight(s.hidden, s.feed_forward)
        shape = (2, s.max_requests, s.kv_heads, s.context + s.max_query, s.head_size)
        self.cache = torch.randn(shape, generator=generator, device="cuda").to(torch.bfloat16)

    def project(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return queries and keys with values of (n, q, hidden)."""
        normed = functional.rms_norm(hidden, (self.sizes.hidden,))
        return functional.linear(normed, self.query), functional.linear(normed, self.key_value)

    def attend(self, query: torch.Tensor, key_value: torch.Tensor) -> torch.Tensor:
        """Write the new keys and values and attend to everything cached."""
        s = self.sizes
        n, q, _ = query.shape
        fresh = key_value.view(n, q, 2, s.kv_heads, s.head_size).permute(2, 0, 3, 1, 4)
        self.cache[:, :n, :, s.context : s.context + q] = fresh
        keys, values = self.cache[:, :n, :, : s.context + q]
        heads = query.view(n, q, s.heads, s.head_size).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(heads, keys, values, enable_gqa=True)
        return mixed.transpose(1, 2).reshape(n, q, s.heads * s.head_size)

    def finish(self, hidden: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
        """Return the layer's output."""
        hidden = hidden + functional.linear(mixed, self.out)
        gate, up = functional.linear(
            functional.rms_norm(hidden, (self.sizes.hidden,)), self.up
        ).chunk(2, dim=-1)
        return hidden + functional.linear(functional.silu(gate) * up, self.down)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the layer's output for (n, q, hidden)."""
        return self.finish(hidden, self.attend(*self.project(hidden)))


class Decoder:
    """Verifies (n, q) tokens and drafts ``depth`` more, eagerly or for capture."""

    def __init__(self, sizes: Sizes) -> None:
        generator = torch.Generator("cuda").manual_seed(6)
        self.sizes = sizes
        self.blocks = [Block(sizes, generator) for _ in range(sizes.layers)]
        self.draft_block = Block(sizes, generator)
        shape = (sizes.vocabulary, sizes.hidden)
        embedding = torch.randn(shape, generator=generator, device="cuda")
        self.embedding = embedding.to(torch.bfloat16)
        self.head = (embedding / sizes.hidden**0.5).to(torch.bfloat16)
        self.tokens = torch.randint(
            0,
            sizes.vocabulary,
            (sizes.max_requests, sizes.max_query),
            generator=generator,
            device="cuda",
        )
        self.verified = torch.zeros_like(self.tokens)
        self.drafted = torch.zeros(
            (sizes.max_requests, sizes.max_query - 1), dtype=torch.int64, device="cuda"
        )

    def verify(self, query: int, requests: int) -> Step:
        """Return a step that verifies ``query`` tokens of each request."""

        def step() -> None:
            hidden = functional.embedding(self.tokens[:requests, :query], self.embedding)
            for block in self.blocks:
                hidden = block(hidden)
            self.verified[:requests, :query] = functional.linear(hidden, self.head).argmax(-1)

        return step

    def draft(self, depth: int, requests: int) -> Step:
        """Return a step that drafts ``depth`` tokens of each request, one after the other."""

        def step() -> None:
            token = self.verified[:requests, :1]
            for position in range(depth):
                hidden = self.draft_block(functional.embedding(token, self.embedding))
                token = functional.linear(hidden, self.head).argmax(-1)
                self.drafted[:requests, position : position + 1] = token

        return step

    def pieces(self, query: int, requests: int, pool: object) -> Step:
        """Return a verifying step whose parts between attentions are graphs of their own."""
        graphs: list[tuple[torch.cuda.CUDAGraph, Step | None]] = []
        hidden = functional.embedding(self.tokens[:requests, :query], self.embedding)
        first = self.blocks[0]
        qkv = first.project(hidden)

        def attention(block: Block, qkv: tuple[torch.Tensor, ...], out: torch.Tensor) -> Step:
            def run() -> None:
                out.copy_(block.attend(qkv[0], qkv[1]))

            return run

        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            hidden = functional.embedding(self.tokens[:requests, :query], self.embedding)
            qkv = first.project(hidden)
        for index, block in enumerate(self.blocks):
            mixed = torch.empty_like(qkv[0])
            graphs.append((graph, attention(block, qkv, mixed)))
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                hidden = block.finish(hidden, mixed)
                if index + 1 < len(self.blocks):
                    qkv = self.blocks[index + 1].project(hidden)
                else:
                    self.verified[:requests, :query] = functional.linear(hidden, self.head).argmax(
                        -1
                    )
        graphs.append((graph, None))

        def step() -> None:
            for piece, between in graphs:
                piece.replay()
                if between is not None:
                    between()

        return step


def capture(step: Step, pool: object) -> torch.cuda.CUDAGraph:
    """Return a step as one graph in a shared pool, after a warm-up."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        step()
    return graph
