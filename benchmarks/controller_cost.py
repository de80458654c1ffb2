"""What observing and deciding costs a scheduler step, and whether it keeps memory.

python -m benchmarks.controller_cost
"""

from __future__ import annotations

import gc
import random
import statistics
import time
import tracemalloc
from pathlib import Path

from image.overlay.dynamic import depth_policy
from image.overlay.dynamic.depth_policy import DepthController

STEPS = 1_000_000


def drafts(steps: int) -> list[int]:
    """Return accepted tokens of one draft a step, at least 0 and at most 5."""
    source = random.Random(6)  # noqa: S311 - an input, not a secret
    return [source.choice((1, 2, 4, 5, 5)) for _ in range(steps)]


def run(controller: DepthController, accepted: list[int]) -> None:
    """Feed one draft a step, as a single sequence does."""
    for count in accepted:
        depth = controller.depth
        controller.observe(depth, min(depth, count))
        controller.end_step()


def step_us() -> tuple[float, float]:
    """Return the median and the mean of the microseconds of a step, decisions included."""
    controller, accepted = DepthController(), drafts(100_000)
    run(controller, accepted[:5000])
    clock, times = time.perf_counter_ns, []
    for count in accepted:
        depth = controller.depth
        taken = min(depth, count)
        start = clock()
        controller.observe(depth, taken)
        controller.end_step()
        times.append((clock() - start) / 1e3)
    return statistics.median(times), statistics.fmean(times)


def growth_bytes(steps: int = STEPS) -> int:
    """Return how many more bytes the controller's code holds after many steps than before."""
    controller, accepted = DepthController(), drafts(1000)
    run(controller, accepted)
    code = [tracemalloc.Filter(True, f"{Path(depth_policy.__file__).parent}/*")]
    tracemalloc.start()
    try:
        run(controller, accepted)
        gc.collect()
        before = tracemalloc.take_snapshot().filter_traces(code)
        for _ in range(steps // len(accepted)):
            run(controller, accepted)
        gc.collect()
        after = tracemalloc.take_snapshot().filter_traces(code)
    finally:
        tracemalloc.stop()
    return sum(change.size_diff for change in after.compare_to(before, "filename"))


def main() -> None:
    """Print both."""
    median, mean = step_us()
    print(f"observe + end_step: median {median:.2f} us, mean {mean:.2f} us of 100,000 steps")
    print(f"memory after {STEPS} steps: {growth_bytes():+d} bytes")


if __name__ == "__main__":
    main()
