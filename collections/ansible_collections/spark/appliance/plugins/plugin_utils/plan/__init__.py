# SPDX-License-Identifier: Apache-2.0
"""What act must change: observed facts and what is wanted become data, or a refusal."""

from __future__ import annotations

from ansible_collections.spark.appliance.plugins.plugin_utils.plan.fabric import (
    WAY_BACK_TIMER,
    FabricPlan,
    FabricPolicy,
    plan_fabric,
    plan_fabrics,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.plan.harden import (
    ZRAM_UNITS,
    HardenPlan,
    HardenPolicy,
    plan_harden,
)

# What the facts module has to be asked for beyond the units that it always reports.
OBSERVED_UNITS = (*ZRAM_UNITS, WAY_BACK_TIMER)

__all__ = [
    "OBSERVED_UNITS",
    "FabricPlan",
    "FabricPolicy",
    "HardenPlan",
    "HardenPolicy",
    "plan_fabric",
    "plan_fabrics",
    "plan_harden",
]
