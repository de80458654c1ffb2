"""The pinned vLLM with the overlay, and the lab's checkpoint, each made once a session."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from image.lab import cache, environment
from image.overlay.apply import change
from image.overlay.manifest import load_manifest
from tests.vllm.servers import lay_tree

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Overlaid:
    """An interpreter of the pinned environment and a tree that holds the overlaid package."""

    python: Path
    tree: Path


@pytest.fixture(scope="session")
def overlaid(tmp_path_factory: pytest.TempPathFactory) -> Overlaid:
    """The overlaid package in a tree of its own; the environment stays as it is."""
    found = environment.environment_path()
    if not cache.is_complete(found):
        pytest.fail(f"{found} is missing: run make vllm-env")
    tree = tmp_path_factory.mktemp("overlaid")
    lay_tree(environment.site_packages(found), tree)
    change(tree, load_manifest())
    return Overlaid(found / "bin" / "python", tree)


@pytest.fixture(scope="session")
def checkpoint(overlaid: Overlaid, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lab's checkpoint, whose acceptance is known for each prompt."""
    directory = tmp_path_factory.mktemp("checkpoint")
    argv = [str(overlaid.python), "-m", "image.lab.checkpoint", str(directory)]
    subprocess.run(argv, cwd=REPOSITORY, check=True, capture_output=True)
    return directory
