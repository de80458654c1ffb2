# SPDX-License-Identifier: Apache-2.0
"""Every rule that a node, the fleet, an inventory or a recipe is judged by."""

from __future__ import annotations

from ansible_collections.spark.appliance.plugins.plugin_utils.checks import (
    desktop,
    drift,
    engine,
    fabric,
    memory,
    rdma,
    security,
    serving,
    upgrade,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.checks.context import (
    Context,
    ExpectedImage,
    ExpectedLaunch,
    Needs,
    NotGivenError,
    Site,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.checks.drift import drift_record
from ansible_collections.spark.appliance.plugins.plugin_utils.checks.needs import needs_of
from ansible_collections.spark.appliance.plugins.plugin_utils.checks.registry import (
    Check,
    Phase,
    Problem,
    Scope,
    declared,
    judge,
    select,
)

# Importing an area declares its checks.
AREAS = (desktop, drift, engine, fabric, memory, rdma, security, serving, upgrade)

__all__ = [
    "AREAS",
    "Check",
    "Context",
    "ExpectedImage",
    "ExpectedLaunch",
    "Needs",
    "NotGivenError",
    "Phase",
    "Problem",
    "Scope",
    "Site",
    "declared",
    "drift_record",
    "judge",
    "needs_of",
    "select",
]
