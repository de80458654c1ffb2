"""The real recipe rendered for four nodes that exist on paper only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.spark.appliance.plugins.plugin_utils.checks.context import Site
from ansible_collections.spark.appliance.plugins.plugin_utils.launch import (
    NodeLaunch,
    NodeView,
    render,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.recipe import Recipe, load_recipe
from ansible_collections.spark.appliance.plugins.plugin_utils.release import Image, load_release
from ansible_collections.spark.appliance.plugins.plugin_utils.staging import TEMPLATES

ROOT = Path(__file__).parents[3]
NODES = ("alpha", "bravo", "charlie", "delta")
PROFILES = ("balanced", "fast", "fast-319k")
SITE = Site(
    nodes=NODES,
    rails={name: (f"10.77.0.{11 + i}/24", f"10.77.1.{11 + i}/24") for i, name in enumerate(NODES)},
    fabric_mtu=9000,
    api_bind="10.76.0.11",
    api_port=8000,
    ray_port=6379,
    weights_dir="/var/lib/spark-appliance/weights/glm-5.2",
)
VIEW = NodeView("enp1s0f1np1", ("rocep1s0f1", "roceP2p1s0f1"))


def recipe(name: str) -> Recipe:
    source = f"recipes/{name}.yml"
    return load_recipe((ROOT / source).read_text(encoding="utf-8"), source)


def r13_image() -> Image:
    source = "image/releases/r13-balanced-fast-c4.yml"
    return load_release((ROOT / source).read_text(encoding="utf-8"), source).image


R13 = recipe("glm52-r13")
IMAGE = r13_image()


def templates() -> dict[str, str]:
    return {name: (ROOT / "templates" / name).read_text(encoding="utf-8") for name in TEMPLATES}


def rendered(
    profile: str, what: Recipe = R13, views: Mapping[str, NodeView] | None = None, **changes: Any
) -> dict[str, NodeLaunch]:
    """Return all nodes' launches of a profile; ``changes`` replace arguments of ``render``."""
    arguments: dict[str, Any] = {
        "site": SITE,
        "image": IMAGE,
        "views": views or dict.fromkeys(NODES, VIEW),
    }
    arguments |= changes
    site = arguments.pop("site")
    return render(what, what.profile(profile), site, **arguments)
