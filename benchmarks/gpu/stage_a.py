"""What graphs, shapes and changes of draft depth cost on a CUDA device, driven by the controller.

    python -m benchmarks.gpu.stage_a DIRECTORY [pairs]

Writes ``stage_a.json`` there, or with ``pairs`` that part alone into ``pairs.json``. Every time is
a median of repeats after a warm-up, with their range.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.decoder import Decoder, Sizes, Step, capture
from image.overlay.dynamic.decode_shapes import TUNED_LADDER
from image.overlay.dynamic.depth_policy import DepthController, PolicyOptions

REPEATS = 7
STEPS = 200
PAIRS = 5
# Tokens of each run of a pair: one turn of easy and one of hard text.
TOKENS = 4000
# Unconditional gain of each draft position, published for 2,162 drafts.
PROFILES = {
    "published": (0.895, 0.747, 0.483, 0.411, 0.335),
    "easy": (0.97, 0.94, 0.90, 0.86, 0.80),
    "hard": (0.60, 0.33, 0.17, 0.09, 0.04),
}
Key = tuple[int, int]


def summary(values: list[float], digits: int = 3) -> dict[str, float]:
    """Return median, least and greatest of repeats."""
    return {
        "median": round(statistics.median(values), digits),
        "min": round(min(values), digits),
        "max": round(max(values), digits),
        "n": len(values),
    }


def microseconds(step: Step, steps: int = STEPS) -> float:
    """Return the mean duration of queued steps, by device events."""
    for _ in range(10):
        step()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(steps):
        step()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3 / steps


def capture_set(decoder: Decoder, keys: list[Key]) -> dict[str, Any]:
    """Capture a set of verifying graphs in a pool of their own; seconds and bytes."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    pool = torch.cuda.graph_pool_handle()
    start = time.perf_counter()
    graphs, per_shape, before = [], {}, free
    for depth, requests in sorted(keys, key=lambda k: -(k[0] + 1) * k[1]):
        graphs.append(capture(decoder.verify(depth + 1, requests), pool))
        torch.cuda.synchronize()
        now, _ = torch.cuda.mem_get_info()
        per_shape[f"K{depth} n{requests}"] = before - now
        before = now
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "bytes": free - before, "bytes_per_shape": per_shape}


def capture_costs(decoder: Decoder) -> dict[str, Any]:
    """Measure the sets of 3, 9 and 12 shapes, interleaved."""
    sets = {
        "3 (K5, 3 sequences)": [(5, n) for n in (1, 2, 3)],
        "9 (K2/4/5, 3 sequences)": [(d, n) for d in TUNED_LADDER for n in (1, 2, 3)],
        "12 (K2/4/5, 4 sequences)": [(d, n) for d in TUNED_LADDER for n in (1, 2, 3, 4)],
    }
    capture_set(decoder, sets["12 (K2/4/5, 4 sequences)"])
    runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for _ in range(5):
        for name, keys in sets.items():
            runs[name].append(capture_set(decoder, keys))
    return {
        name: {
            "seconds": summary([run["seconds"] for run in found], 4),
            "bytes": summary([run["bytes"] for run in found], 0),
            "bytes_per_shape_last_run": found[-1]["bytes_per_shape"],
        }
        for name, found in runs.items()
    }


def step_times(decoder: Decoder, full: dict[Key, Step], pool: object) -> dict[str, Any]:
    """Time each shape as a FULL graph, in pieces, and eagerly, interleaved."""
    table: dict[str, Any] = {}
    for (depth, requests), replay in sorted(full.items()):
        eager = decoder.verify(depth + 1, requests)
        eager()
        wanted = decoder.verified[:requests, : depth + 1].clone()
        modes = {"full": replay, "piecewise": decoder.pieces(depth + 1, requests, pool),
                 "eager": eager}  # fmt: skip
        for name, step in modes.items():
            decoder.verified.fill_(-1)
            step()
            same = (decoder.verified[:requests, : depth + 1] == wanted).float().mean().item()
            if same < 0.99:
                raise RuntimeError(f"{name} of K{depth} n{requests}: {same:.3f} of tokens agree")
        times: dict[str, list[float]] = defaultdict(list)
        for _ in range(REPEATS):
            for name, step in modes.items():
                times[name].append(microseconds(step))
        row = {name: summary(values, 2) for name, values in times.items()}
        table[f"K{depth} n{requests}"] = {"tokens": (depth + 1) * requests, "us": row}
    return table


def sequence_times(steps: list[Step], *, wait: bool) -> list[float]:
    """Return microseconds of each step of a sequence; ``wait`` for the device after each."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(len(steps) + 1)]
    torch.cuda.synchronize()
    marks[0].record()
    for step, mark in zip(steps, marks[1:], strict=True):
        step()
        mark.record()
        if wait:
            mark.synchronize()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) * 1e3 for a, b in pairwise(marks)]


def switch_cost(verify: dict[Key, Step], draft: dict[Key, Step], *, wait: bool) -> dict[str, Any]:
    """Compare a step after another depth with the same step after its own depth."""
    table: dict[str, Any] = {}
    order = random.Random(1)  # noqa: S311 - draws of a benchmark
    for requests in (1, 4):
        repeats: dict[str, list[float]] = defaultdict(list)
        for _ in range(REPEATS):
            depths = [order.choice(TUNED_LADDER) for _ in range(1001)]
            steps = [_both(verify, draft, depth, requests) for depth in depths]
            times = sequence_times(steps, wait=wait)
            groups: dict[tuple[int, int], list[float]] = defaultdict(list)
            for before, now, took in zip(depths, depths[1:], times[1:], strict=False):
                groups[before, now].append(took)
            for now in TUNED_LADDER:
                same = statistics.median(groups[now, now])
                repeats[f"{now}->{now}"].append(same)
                for before in TUNED_LADDER:
                    if before != now:
                        other = statistics.median(groups[before, now])
                        repeats[f"{before}->{now} minus {now}->{now}"].append(other - same)
        table[f"n{requests}"] = {name: summary(v, 2) for name, v in sorted(repeats.items())}
    return table


def _both(verify: dict[Key, Step], draft: dict[Key, Step], depth: int, n: int) -> Step:
    first, second = verify[depth, n], draft[depth, n]

    def step() -> None:
        first()
        second()

    return step


def oscillation(verify: dict[Key, Step], draft: dict[Key, Step]) -> dict[str, Any]:
    """Time 4 and 5 taking turns of every length against the same steps sorted."""
    table: dict[str, Any] = {}
    steps = 1024
    for period in (1, 2, 4, 8, 16, 32, 64):
        turns = [4 if (i // period) % 2 == 0 else 5 for i in range(steps)]
        ratios = []
        for _ in range(REPEATS):
            totals = [
                sum(sequence_times([_both(verify, draft, d, 4) for d in depths], wait=False))
                for depths in (turns, sorted(turns))
            ]
            ratios.append(totals[0] / totals[1])
        table[f"every {period} steps"] = summary(ratios, 4)
    return table


def draws(seed: int) -> Iterator[list[list[float]]]:
    """Yield per step, per request, five uniform numbers; the same for every arm of a pair."""
    source = random.Random(seed)  # noqa: S311 - draws of a benchmark
    while True:
        yield [[source.random() for _ in range(5)] for _ in range(4)]


def accepted(uniform: list[float], gains: tuple[float, ...], depth: int) -> int:
    """Return how many of ``depth`` tokens a draft with these unconditional gains has accepted."""
    reached = 1.0
    for position in range(depth):
        if uniform[position] >= gains[position] / reached:
            return position
        reached = gains[position]
    return depth


def serve(
    verify: dict[Key, Step],
    draft: dict[Key, Step],
    gains: Callable[[int], tuple[float, ...]],
    *,
    seed: int,
    requests: int,
    controller: DepthController | None,
    tokens: int,
) -> dict[str, float]:
    """Generate tokens with a fixed depth of 5 or by the ladder; wall time on the device.

    A depth decided after step t is drafted in t + 1 and verified in t + 2, as with asynchronous
    scheduling.
    """
    drafted_depth = asked = 5 if controller is None else controller.depth
    produced = steps = positions = changes = 0
    spent = 0.0
    torch.cuda.synchronize()
    start = time.perf_counter()
    for uniform in draws(seed):
        verify[drafted_depth, requests]()
        draft[asked, requests]()
        for row in uniform[:requests]:
            count = accepted(row, gains(produced), drafted_depth)
            produced += count + 1
            positions += drafted_depth
            if controller is not None:
                controller.observe(drafted_depth, count)
        drafted_depth = asked
        if controller is not None:
            before = time.perf_counter()
            decision = controller.end_step()
            spent += time.perf_counter() - before
            changes += decision is not None and decision.next_depth != decision.previous_depth
            asked = controller.depth
        steps += 1
        torch.cuda.synchronize()
        if produced >= tokens:
            break
    seconds = time.perf_counter() - start
    return {"tokens_per_s": produced / seconds, "tokens_per_step": produced / steps,
            "positions_per_token": positions / produced, "changes": changes,
            "end_step_us": spent / steps * 1e6}  # fmt: skip


def always(gains: tuple[float, ...], _produced: int) -> tuple[float, ...]:
    """Return the same gains at every length."""
    return gains


def phases(produced: int) -> tuple[float, ...]:
    """Return easy and hard text taking turns of 2,000 tokens."""
    return PROFILES["easy" if (produced // 2000) % 2 == 0 else "hard"]


def pairs(verify: dict[Key, Step], draft: dict[Key, Step]) -> dict[str, Any]:
    """Compare arms on the same draws, in turns whose order alternates."""
    sources: dict[str, Callable[[int], tuple[float, ...]]] = {
        name: partial(always, gains) for name, gains in PROFILES.items()
    }
    sources["phases"] = phases
    arms: dict[str, Callable[[], DepthController | None]] = {
        "fixed 5": lambda: None,
        "ladder": DepthController,
        "ladder, barred and settled": lambda: DepthController(
            options=PolicyOptions(bar_windows=4, settle_steps=2)
        ),
    }
    table: dict[str, Any] = {}
    for name, gains in sources.items():
        for requests in (1, 4):
            found: dict[str, list[dict[str, float]]] = defaultdict(list)
            for pair in range(PAIRS + 1):
                order = list(arms.items())
                for arm, make in order if pair % 2 == 0 else reversed(order):
                    result = serve(
                        verify,
                        draft,
                        gains,
                        seed=pair,
                        requests=requests,
                        controller=make(),
                        tokens=TOKENS,
                    )
                    if pair:  # the first pair warms up
                        found[arm].append(result)
            row: dict[str, Any] = {
                arm: {key: summary([r[key] for r in results], 4) for key in results[0]}
                for arm, results in found.items()
            }
            for arm in ("ladder", "ladder, barred and settled"):
                row[f"{arm} / fixed 5, tokens per s"] = summary(
                    [
                        mine["tokens_per_s"] / fixed["tokens_per_s"]
                        for mine, fixed in zip(found[arm], found["fixed 5"], strict=True)
                    ],
                    4,
                )
            table[f"{name} n{requests}"] = row
    return table


def main() -> None:
    """Run every part and write the results."""
    directory = Path(sys.argv[1])
    pairs_only = "pairs" in sys.argv[2:]
    name_of_file = "pairs.json" if pairs_only else "stage_a.json"
    began = time.perf_counter()
    sizes = Sizes()
    results: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "hardware_note": "H200, not GB10",
        "torch": torch.__version__,
        "sizes": {name: getattr(sizes, name) for name in sizes.__slots__},
        "repeats": REPEATS,
        "steps_per_repeat": STEPS,
    }

    def part(name: str, value: object) -> None:
        results[name] = value
        results["seconds"] = round(time.perf_counter() - began, 1)
        (directory / name_of_file).write_text(json.dumps(results, indent=1))
        print(name, results["seconds"], "s", flush=True)

    with torch.inference_mode():
        decoder = Decoder(sizes)
        for depth in TUNED_LADDER:
            decoder.verify(depth + 1, 4)()
            decoder.draft(depth, 4)()
        if not pairs_only:
            part("capture", capture_costs(decoder))
        keys = [(d, n) for d in TUNED_LADDER for n in (1, 2, 3, 4)]
        pool = torch.cuda.graph_pool_handle()
        verify = {k: capture(decoder.verify(k[0] + 1, k[1]), pool).replay for k in keys}
        draft = {k: capture(decoder.draft(*k), pool).replay for k in keys}
        if pairs_only:
            part("pairs", pairs(verify, draft))
            return
        part("verify_step", step_times(decoder, verify, pool))
        part(
            "draft_us",
            {
                f"K{depth} n{n}": summary([microseconds(step) for _ in range(REPEATS)], 2)
                for (depth, n), step in sorted(draft.items())
            },
        )
        part("switch_queued_us", switch_cost(verify, draft, wait=False))
        part("switch_waiting_us", switch_cost(verify, draft, wait=True))
        part("oscillation_4_5", oscillation(verify, draft))
        part("pairs", pairs(verify, draft))


if __name__ == "__main__":
    main()
