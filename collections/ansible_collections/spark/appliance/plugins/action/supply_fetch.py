# SPDX-License-Identifier: Apache-2.0
"""Follow a supply job with a line of progress; see the module of the same name for its options."""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.spark.appliance.plugins.plugin_utils.supply_progress import progress_line

display = Display()

_FIRST_POLL_S = 0.3
_POLL_S = 2.0
# One line in this many seconds is enough to see life without burying the run's own output.
_LINE_S = 5.0


class ActionModule(ActionBase):
    """Begins the module's job on the node and looks at it until it ends."""

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        host = task_vars["inventory_hostname"]
        seen = self._call({"step": "begin"}, task_vars)
        outcome = {key: seen[key] for key in ("changed", "diff") if key in seen}
        run = seen.get("run", "")
        pause_s, last_line = _FIRST_POLL_S, time.monotonic()
        while not seen.get("failed") and seen["state"] == "running":
            time.sleep(pause_s)
            pause_s = min(_POLL_S, pause_s * 2)
            seen = self._call({"step": "look", "run": run}, task_vars)
            if time.monotonic() - last_line >= _LINE_S and not seen.get("failed"):
                display.display(f"    {host}: {progress_line(seen.get('progress') or {})}")
                last_line = time.monotonic()
        if seen.get("failed"):
            return {**result, **seen}
        if seen["state"] == "failed":
            return {**result, "failed": True, "msg": f"{host}: {seen['message']}"}
        return {**result, "changed": False, **outcome, **(seen["data"] or {})}

    def _call(self, extra: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = self._execute_module(
            module_name=self._task.action,
            module_args={**self._task.args, **extra},
            task_vars=task_vars,
        )
        return answer
