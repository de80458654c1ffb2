# SPDX-License-Identifier: Apache-2.0
"""What act must change: observed facts and what is wanted become data, or a refusal."""

from __future__ import annotations

from ansible_collections.spark.appliance.plugins.plugin_utils.plan.fabric import (
    FabricPlan,
    FabricPolicy,
    plan_fabric,
    plan_fabrics,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.plan.harden import (
    HardenPlan,
    HardenPolicy,
    plan_harden,
)

__all__ = [
    "FabricPlan",
    "FabricPolicy",
    "HardenPlan",
    "HardenPolicy",
    "plan_fabric",
    "plan_fabrics",
    "plan_harden",
]
