# SPDX-License-Identifier: Apache-2.0
"""What changed on a node since the last good receipt, told as before → now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ansible_collections.spark.appliance.plugins.plugin_utils.checks.context import Context
from ansible_collections.spark.appliance.plugins.plugin_utils.checks.registry import (
    Phase,
    Problem,
    Scope,
    check,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.facts import (
    NodeFacts,
    SectionUnknownError,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import Severity

RECORD = "state"


def _record(node: NodeFacts) -> Iterator[tuple[str, Any]]:
    identity, memory = node.identity, node.memory
    yield "system update", identity.dgx.version or identity.os.get("version_id", "")
    yield "kernel", identity.kernel.running
    yield "next kernel", identity.kernel.next or "none"
    yield "firmware", identity.dmi.get("bios") or "none"
    yield "MemTotal in kB", memory.total_bytes // 1024
    yield "driver", node.gpu.driver_version
    yield "Docker", node.docker.server_version
    yield "image store", node.docker.storage_driver
    versions = node.packages.versions
    yield "container toolkit", versions.get("nvidia-container-toolkit", "none")
    yield "held packages", ", ".join(node.packages.held) or "none"
    yield "default target", node.display.default_target
    for rail in node.network.rails():
        yield f"MTU of {rail.name}", rail.mtu
        yield f"carrier of {rail.name}", "up" if rail.carrier else "down"
    for unit in ("docker.service", "avahi-daemon.service"):
        if unit in node.units:
            yield f"{unit} at boot", node.units[unit].enabled or "no state"


def drift_record(node: NodeFacts) -> dict[str, Any]:
    """Return what a receipt keeps of a node, so that a later run can tell what changed.

    It stops at the first section that is unknown: a receipt is good only without findings, and an
    unknown section is one.
    """
    record: dict[str, Any] = {}
    try:
        record.update(_record(node))
    except SectionUnknownError:
        return record
    return record


@check(
    "drift.node",
    "the node is as it was at the last good receipt",
    severity=Severity.INFO,
    scope=Scope.NODE,
    phases=frozenset({Phase.VERIFY}),
    remedy="read docs/cases.md before serving on it; a new receipt makes it the reference",
    cases=("MEM-13", "UPG-11", "UPG-18", "GUI-07", "NET-08"),
)
def drift(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """Told, not refused: what is wrong about a change is another check's to say."""
    receipt = context.receipt
    if receipt is None:
        return
    before = ((receipt.get("nodes") or {}).get(node.name) or {}).get(RECORD)
    if not isinstance(before, dict):
        return
    now = dict(_record(node))
    for key in sorted(before.keys() | now.keys()):
        was, value = before.get(key, "none"), now.get(key, "none")
        if was != value:
            yield Problem(expected=f"{key} {was}", found=f"{key}: {was} → {value}")
