# SPDX-License-Identifier: Apache-2.0
"""What is observed is judged or shown: a fact that nobody reads would only look like a check."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

from ansible_collections.spark.appliance.plugins import plugin_utils
from ansible_collections.spark.appliance.plugins.module_utils._facts.kernel_log import MARKERS
from ansible_collections.spark.appliance.plugins.plugin_utils import facts

JUDGES = Path(next(iter(plugin_utils.__path__)))
# Read on the node, where another fact is made of it, or kept for a reader of the facts alone.
ON_THE_NODE = {
    "Container.memory_limit_bytes": "no limit binds the GPU's memory, so none is believed (MEM-09)",
    "Container.started_at": "for a reader",
    "Dgx.platform": "the vendor's name, for a reader",
    "Firewall.installed": "an absent firewall and one that is off let the same through",
    "File.target": "for a reader",
    "File.uid": "for a reader",
    "Gid.ndev": "becomes the netdev of a device that names none",
    "Identity.boot_id": "for a reader",
    "Identity.uptime_s": "for a reader",
    "Interface.operstate": "carrier is the stricter one",
    "Interface.pci": "for a reader",
    "KernelLog.lines": "an empty log is unknown already",
    "Unit.main_pid": "leads to the name that avahi announces",
}


def _attributes() -> set[str]:
    used: set[str] = set()
    for path in (*JUDGES.rglob("*.py"), *(JUDGES.parent / "action").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                used.add(node.attr)
    return used


def test_every_fact_is_used() -> None:
    used = _attributes()
    unused = {
        f"{name}.{field.name}"
        for name in facts.__all__
        if dataclasses.is_dataclass(shape := getattr(facts, name))
        for field in dataclasses.fields(shape)
        if field.name not in used
    }
    assert unused <= ON_THE_NODE.keys(), unused - ON_THE_NODE.keys()


def test_every_marker_of_the_kernel_log_is_judged() -> None:
    asked = {
        node.args[0].value
        for path in (JUDGES / "checks").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "marker"
        and isinstance(node.args[0], ast.Constant)
    }
    assert asked == set(MARKERS)
