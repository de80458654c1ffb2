# SPDX-License-Identifier: Apache-2.0
"""What proving an image on its way into Docker costs, as ratios measured in one run.

Usage: python benchmarks/supply.py [--release FOLDER] [--description FILE] [--repeats 3]
           [--docker-host URL] [--json FILE]

Rounds are interleaved (hash, plain load, proven load, hash, …), so that a busy machine slows all
alike; the image is removed before each load. Medians with n; times are no limits of any test.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.spark.appliance.plugins.plugin_utils.release import (  # noqa: E402 -- after the path
    Release,
    load_release,
)

_SUPPLY = "ansible_collections.spark.appliance.plugins.module_utils._supply"
WORKER = f"from {_SUPPLY}.worker import main; main()"
AIM_WALL = 1.15
AIM_RSS_MB = 100
MOSTLY_IDLE = 0.7


@dataclass(slots=True)
class Measured:
    """What one run saw; walls in seconds, sizes in bytes, one entry a round.

    ``idle_share`` is that of all cores in the three seconds before each round.
    """

    archive_bytes: int
    image_bytes: int
    hash_s: list[float] = field(default_factory=list)
    plain_load_s: list[float] = field(default_factory=list)
    proven_load_s: list[float] = field(default_factory=list)
    proven_rss_bytes: list[int] = field(default_factory=list)
    proven_written_bytes: list[int] = field(default_factory=list)
    second_run_s: list[float] = field(default_factory=list)
    idle_share: list[float] = field(default_factory=list)


def wall(act: Callable[[], None]) -> float:
    """Return how long something takes, in seconds."""
    began = time.monotonic()
    act()
    return time.monotonic() - began


def shell(command: str, environment: dict[str, str]) -> None:
    """Run a pipeline; every part of it must succeed."""
    subprocess.run(["bash", "-o", "pipefail", "-ec", command], env=environment, check=True)


class Bench:
    """One release on one Docker engine.

    Parameters:
        folder: where its parts lie.
        release: its description.
        environment: variables of the Docker CLI.
    """

    def __init__(self, folder: Path, release: Release, environment: dict[str, str]) -> None:
        self.folder, self.release, self.environment = folder, release, environment
        self.parts = [folder / name for name in release.part_names()]
        self.joined = " ".join(f"'{part}'" for part in self.parts)

    def forget(self) -> None:
        """Remove the image and whatever keeps it, whether there or not."""
        digest = self.release.image.config_digest.removeprefix("sha256:")[:12]
        for words in (
            ["rm", f"spark-keep-{digest}"],
            ["image", "rm", self.release.image.reference],
        ):
            subprocess.run(
                ["docker", *words], env=self.environment, capture_output=True, check=False
            )

    def hash(self) -> None:
        """The slower of the two baselines' first half: read and hash the parts."""
        shell(f"cat {self.joined} | sha256sum > /dev/null", self.environment)

    def plain_load(self) -> None:
        """Load without any proof."""
        shell(f"cat {self.joined} | zstd -dc | docker load --quiet > /dev/null", self.environment)

    def proven_load(self) -> tuple[int, int]:
        """Load as role ``image`` does; return peak resident memory and bytes written by it."""
        image = self.release.image
        request = {
            "kind": "load",
            "run": "benchmark",
            "folder": str(self.folder),
            "parts": [part.name for part in self.parts],
            "environment": self.environment,
            "image": {
                "reference": image.reference,
                "config_digest": image.config_digest,
                "architecture": image.architecture,
                "os": image.os,
                "size_bytes": image.size_bytes,
            },
        }
        with tempfile.TemporaryDirectory() as job:
            (Path(job) / "request.json").write_text(json.dumps(request), encoding="utf-8")
            process = subprocess.Popen(
                [sys.executable, "-c", WORKER, job],
                env=self.environment | {"PYTHONPATH": str(ROOT / "collections")},
            )
            written = peak = 0
            while process.poll() is None:
                written = max(written, counter(process.pid, "io", "write_bytes"))
                peak = max(peak, counter(process.pid, "status", "VmHWM") * 1024)
                time.sleep(0.05)
            result = json.loads((Path(job) / "result.json").read_text(encoding="utf-8"))
            if not result["ok"]:
                raise SystemExit(f"the load failed, so its time means nothing: {result['message']}")
        return peak, written


def counter(pid: int, file: str, key: str) -> int:
    """Return one counter of a process, 0 once it has ended."""
    try:
        text = Path(f"/proc/{pid}/{file}").read_text(encoding="utf-8")
    except OSError:
        return 0
    rows = (line.partition(":") for line in text.splitlines())
    return next((int(value.split()[0]) for name, _, value in rows if name == key), 0)


def settle() -> float:
    """Wait until the machine is mostly idle, two minutes at most; return its idle share."""

    def ticks() -> list[int]:
        return [int(n) for n in Path("/proc/stat").read_text("utf-8").split("\n")[0].split()[1:9]]

    ends = time.monotonic() + 120
    while True:
        before = ticks()
        time.sleep(3)
        spent = [now - then for now, then in zip(ticks(), before, strict=True)]
        # The fourth and fifth columns are idle and waiting for a disk.
        share = spent[3] / max(1, sum(spent))
        if share >= MOSTLY_IDLE or time.monotonic() > ends:
            return share


def measure(bench: Bench, repeats: int) -> Measured:
    """Run the rounds after one that warms the page cache."""
    measured = Measured(
        sum(part.stat().st_size for part in bench.parts), bench.release.image.size_bytes
    )
    bench.hash()
    for _ in range(repeats):
        measured.idle_share.append(settle())
        measured.hash_s.append(wall(bench.hash))
        bench.forget()
        measured.plain_load_s.append(wall(bench.plain_load))
        bench.forget()
        began = time.monotonic()
        peak, written = bench.proven_load()
        measured.proven_load_s.append(time.monotonic() - began)
        measured.proven_rss_bytes.append(peak)
        measured.proven_written_bytes.append(written)
        measured.second_run_s.append(wall(lambda: bench.proven_load() and None))
    bench.forget()
    return measured


def report(measured: Measured) -> str:
    """Return the ratios as lines, each with its terms."""
    hashing, plain, proven, second = (
        statistics.median(walls)
        for walls in (
            measured.hash_s,
            measured.plain_load_s,
            measured.proven_load_s,
            measured.second_run_s,
        )
    )
    peak_mb = max(measured.proven_rss_bytes) / 1e6
    written = max(measured.proven_written_bytes)
    rounds = zip(measured.hash_s, measured.plain_load_s, measured.proven_load_s, strict=True)
    by_round = ", ".join(f"{load / max(others):.2f}" for *others, load in rounds)
    idle = ", ".join(f"{share:.2f}" for share in measured.idle_share)
    sizes = f"archive {measured.archive_bytes:,} B, image {measured.image_bytes:,} B"
    walls = f"hash {hashing:.1f} s, plain load {plain:.1f} s, proven load {proven:.1f} s"
    ratio = proven / max(hashing, plain)
    share = written / measured.archive_bytes
    worst = max(measured.second_run_s)
    lines = [
        f"{sizes}; medians of n = {len(measured.hash_s)} interleaved rounds",
        f"{walls}; idle before each round {idle}",
        f"proven load / slower of the others = {ratio:.2f} (aim at most {AIM_WALL})",
        f"the same by round: {by_round}",
        f"peak resident memory of the loader = {peak_mb:.1f} MB (aim below {AIM_RSS_MB})",
        f"written by the loader / archive = {share:.4f} ({written:,} B; aim at most 0.01)",
        f"second run with its process = {second:.2f} s, worst {worst:.2f} s (aim below 2 s)",
    ]
    return "\n".join(lines)


def main() -> None:
    """Parse arguments, measure, print and, where asked, store."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--release", type=Path, default=ROOT / ".lab" / "release" / "lab")
    parser.add_argument("--description", type=Path, default=ROOT / "image" / "releases" / "lab.yml")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--docker-host", default="")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
    if asked.docker_host:
        environment["DOCKER_HOST"] = asked.docker_host
    text = asked.description.read_text(encoding="utf-8")
    release = load_release(text, str(asked.description))
    measured = measure(Bench(asked.release, release, environment), asked.repeats)
    print(report(measured))
    if asked.json:
        asked.json.write_text(json.dumps(asdict(measured), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
