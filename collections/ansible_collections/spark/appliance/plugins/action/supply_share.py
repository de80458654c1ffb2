# SPDX-License-Identifier: Apache-2.0
"""Follow a supply job with a line of progress; see the module of the same name for its options."""

from __future__ import annotations

from ansible_collections.spark.appliance.plugins.action.supply_fetch import ActionModule

__all__ = ["ActionModule"]
