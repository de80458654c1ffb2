"""Where the engine keeps layers, by its store and containerd's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.spark.appliance.plugins.module_utils._facts.docker import image_store
from ansible_collections.spark.appliance.plugins.module_utils._facts.host import open_host

SNAPSHOTTER = [["driver-type", "io.containerd.snapshotter.v1"]]
SYSTEM, OWN = "/run/containerd/containerd.sock", "/var/run/docker/containerd/containerd.sock"
MOVED = '# moved\nversion = 2\nroot = "/data/ctd"\nstate = "/run/containerd"\n'
NESTED = 'version = 2\n\n[plugins."io.containerd.x"]\n  root = "/elsewhere"\n'


@pytest.mark.parametrize(
    ("answer", "config", "expected"),
    [
        ({"DriverStatus": [["Backing Filesystem", "extfs"]]}, MOVED, "/srv/docker"),
        ({"DriverStatus": SNAPSHOTTER}, None, "/var/lib/containerd"),
        (
            {"DriverStatus": SNAPSHOTTER, "Containerd": {"Address": SYSTEM}},
            MOVED,
            "/data/ctd",
        ),
        ({"DriverStatus": SNAPSHOTTER}, NESTED, "/var/lib/containerd"),
        (
            {"DriverStatus": SNAPSHOTTER, "Containerd": {"Address": OWN}},
            MOVED,
            "/srv/docker/containerd/daemon",
        ),
    ],
)
def test_layers_lie_where_the_store_is(
    tmp_path: Path, answer: dict[str, Any], config: str | None, expected: str
) -> None:
    if config is not None:
        (tmp_path / "etc/containerd").mkdir(parents=True)
        (tmp_path / "etc/containerd/config.toml").write_text(config)
    info = {"DockerRootDir": "/srv/docker"} | answer
    assert image_store(open_host(str(tmp_path)), info) == expected
