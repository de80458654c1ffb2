# SPDX-License-Identifier: Apache-2.0
"""Gather a node's facts, and what it serves; see the module of the same name for its options."""

from __future__ import annotations

import time
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible_collections.spark.appliance.plugins.plugin_utils.plan import OBSERVED_UNITS


class ActionModule(ActionBase):
    """Runs ``node_facts`` once; an unreachable node fails with one message instead of a trace."""

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        host = task_vars["inventory_hostname"]
        serving = self._task.args.get("serving")
        asked = {
            "weights": [self._templar.template(task_vars["appliance_weights_dir"])],
            "units": list(OBSERVED_UNITS),
            "reference_epoch_s": time.time(),
        }
        if reach := self._task.args.get("reach"):
            asked["reach"] = reach
        try:
            seen: dict[str, Any] = self._execute_module(
                module_name="spark.appliance.node_facts", module_args=asked, task_vars=task_vars
            )
            if serving and not seen.get("failed"):
                answer = self._execute_module(
                    module_name="spark.appliance.serving_probe",
                    module_args={**serving, "api_key": self._task.args.get("api_key", "")},
                    task_vars=task_vars,
                )
                if answer.get("failed"):
                    return {**result, **answer}
                seen["serving"] = answer["serving"]
        except AnsibleConnectionFailure as unreachable:
            address = task_vars.get("ansible_host", host)
            # ssh puts its own last word on the last line; the rest is its debug output.
            said = str(unreachable).strip().splitlines()[-1][:200]
            return {
                **result,
                "failed": True,
                "msg": (
                    f"{host}: expected an ssh login at {address} [ansible_host], found: {said}; "
                    "start the node or correct its address, user and key, then run again. "
                    "Nothing further was done on any node."
                ),
            }
        return {**result, **seen, "changed": False}
