# SPDX-License-Identifier: Apache-2.0
"""Wait for an engine with a line of progress; see the module of the same name for its options."""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.spark.appliance.plugins.plugin_utils.waiting import (
    Goal,
    Progress,
    assess,
)

display = Display()

_POLL_S = 2.0
# One line in this many seconds is enough to see life without burying the run's own output.
_LINE_S = 10.0


class ActionModule(ActionBase):
    """Polls ``engine_progress`` on the node until the goal is met, failed or late."""

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        _, asked = self.validate_argument_spec(
            argument_spec={
                "goal": {"type": "str", "choices": [goal.value for goal in Goal], "required": True},
                "units": {"type": "list", "elements": "str", "required": True},
                "addresses": {"type": "list", "elements": "str", "default": []},
                "gpus": {"type": "int", "default": 0},
                "ray": {"type": "dict"},
                "health_url": {"type": "str"},
                "timeout": {"type": "int", "required": True},
            }
        )
        if self._task.check_mode:
            return result | {
                "changed": False,
                "skipped": True,
                "msg": "nothing starts in check mode",
            }
        host = task_vars["inventory_hostname"]
        goal = Goal(asked["goal"])
        started = time.monotonic()
        last_line = -_LINE_S
        while True:
            seen = self._execute_module(
                module_name="spark.appliance.engine_progress",
                module_args={
                    "units": asked["units"],
                    "log_lines": 15,
                    "ray": asked["ray"] if goal is Goal.RANKS else None,
                    "health_url": asked["health_url"] if goal is Goal.HEALTH else None,
                },
                task_vars=task_vars,
            )
            if seen.get("failed") or seen.get("unreachable"):
                return {**result, **seen}
            elapsed_s = time.monotonic() - started
            progress: Progress = assess(
                goal,
                seen,
                addresses=asked["addresses"],
                gpus=asked["gpus"],
                elapsed_s=elapsed_s,
                timeout_s=asked["timeout"],
            )
            if progress.failed:
                log = "\n".join(seen["log"])
                return result | {"failed": True, "msg": f"{host}: {progress.line}\n{log}"}
            if progress.done or elapsed_s - last_line >= _LINE_S:
                display.display(f"    {host}: {progress.line}")
                last_line = elapsed_s
            if progress.done:
                return result | {"changed": False, "elapsed_s": round(elapsed_s, 1), "seen": seen}
            time.sleep(_POLL_S)
