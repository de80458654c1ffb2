#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
module: memory_watch
short_description: Watch how low a node's memory goes, from before an engine's start on
description:
  - Runs a small program as the transient unit C(spark-memory-watch.service), which reads
    C(/proc/meminfo) some times a second and keeps the least MemAvailable and the least MemFree,
    with the time and the occupancy of the KV cache.
  - The unit runs as a user of its own without privileges, and is the last that the kernel would
    end when memory gets short.
version_added: 0.1.0
author: spark-appliance contributors (@spark-appliance)
attributes:
  check_mode:
    description: Says whether the unit would be started or stopped; reads what is there.
    support: full
  diff_mode:
    description: Shows the unit's state before and after.
    support: full
  platform:
    description: Linux hosts with systemd and the system's Python 3.11 or later.
    support: full
    platforms: linux
options:
  state:
    description:
      - V(started) begins a new watch, unless one of the same O(launch) runs.
      - V(stopped) ends it; what it saw stays readable until the node boots.
      - V(read) changes nothing.
    type: str
    choices: [started, stopped, read]
    default: read
  launch:
    description: Id of the launch that is watched; required for V(started).
    type: str
  metrics_url:
    description:
      - Address of the metrics of the engine on this node.
      - Left out on nodes without an API server, whose watch then tells no occupancy.
    type: str
  period:
    description: Seconds between two looks.
    type: float
    default: 0.2
"""

EXAMPLES = r"""
- name: Watch memory before the engine starts
  spark.appliance.memory_watch:
    state: started
    launch: "{{ appliance_launch_id }}"
    metrics_url: http://10.77.0.11:8000/metrics

- name: Read how low it went
  spark.appliance.memory_watch:
  register: memory
"""

RETURN = r"""
active:
  description: Whether the watch runs, after this task.
  type: bool
  returned: always
  sample: true
watch:
  description:
    - What was seen, null when there is none.
    - Sizes are in bytes, times in seconds since the watch began, shares are of the KV pool.
  type: dict
  returned: always
  sample:
    schema: 1
    launch: 3f0c9a
    period_s: 0.2
    samples: 4800
    faults: 0
    watched_s: 960.1
    cpu_s: 0.9
    before: {total_bytes: 130663165952, available_bytes: 121411960832, free_bytes: 120000000000}
    min_available: {bytes: 508145664, at_s: 37.1, kv_share: 0.0411}
    min_free: {bytes: 208145664, at_s: 37.2, kv_share: 0.0411}
    peak_kv_share: 0.951
"""

import json
import time
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any
from zipimport import zipimporter

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.spark.appliance.plugins.module_utils import _memory_watch

UNIT = "spark-memory-watch.service"
PROGRAM = Path("/run/spark-appliance/memory_watch.py")
# The first look, from which the memory before the engine's start is known, comes at once.
FIRST_LOOK_S = 10.0
# Made by the unit as its RuntimeDirectory, for its own user.
STATE = Path("/run/spark-memory-watch/state.json")

PROPERTIES = (
    "Description=Watch of the node's memory",
    "Type=exec",
    "DynamicUser=yes",
    "RuntimeDirectory=spark-memory-watch",
    "RuntimeDirectoryPreserve=yes",
    "OOMScoreAdjust=-900",
    "MemoryMax=64M",
    "NoNewPrivileges=yes",
    "CapabilityBoundingSet=",
    "ProtectHome=yes",
)


def program_source() -> str:
    """Return the watch's program as text, also when the module was sent as a zip file."""
    loader = _memory_watch.__loader__
    source = None
    if isinstance(loader, (SourceFileLoader, zipimporter)):
        source = loader.get_source(_memory_watch.__name__)
    if not source:
        raise RuntimeError("its program has no source here")
    return source


def watch_argv(*, launch: str, period_s: float, metrics_url: str | None) -> list[str]:
    """Return the command that starts the watch as a transient unit."""
    argv = ["systemd-run", f"--unit={UNIT}", "--collect", "--quiet"]
    argv += [f"--property={setting}" for setting in PROPERTIES]
    argv += ["--", "/usr/bin/python3", "-I", str(PROGRAM)]
    argv += ["--launch", launch, "--state", str(STATE), "--period", f"{period_s:g}"]
    if metrics_url:
        argv += ["--metrics", metrics_url]
    return argv


def read_state(path: Path) -> dict[str, Any] | None:
    """Return what a watch has written, or None when there is nothing."""
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    if not isinstance(state, dict) or state.get("schema") != _memory_watch.SCHEMA:
        raise ValueError(f"{path} is not what this version of the watch writes")
    return state


def _is_active(module: AnsibleModule) -> bool:
    rc, _, _ = module.run_command(["systemctl", "is-active", "--quiet", UNIT])
    return bool(rc == 0)


def _start(module: AnsibleModule) -> None:
    PROGRAM.parent.mkdir(mode=0o755, exist_ok=True)
    PROGRAM.write_text(program_source(), encoding="utf-8")
    PROGRAM.chmod(0o644)
    # What an earlier watch saw must not be taken for what this one sees.
    STATE.unlink(missing_ok=True)
    asked = module.params
    argv = watch_argv(
        launch=asked["launch"], period_s=asked["period"], metrics_url=asked["metrics_url"]
    )
    module.run_command(argv, check_rc=True)
    give_up = time.monotonic() + FIRST_LOOK_S
    while read_state(STATE) is None:
        if time.monotonic() > give_up:
            raise RuntimeError(f"no look at memory after {FIRST_LOOK_S:g} s; see its journal")
        time.sleep(0.05)


def main() -> None:
    """Start, stop or read the watch."""
    module = AnsibleModule(
        argument_spec={
            "state": {"choices": ["started", "stopped", "read"], "default": "read"},
            "launch": {"type": "str"},
            "metrics_url": {"type": "str"},
            "period": {"type": "float", "default": _memory_watch.PERIOD_S},
        },
        required_if=[("state", "started", ["launch"])],
        supports_check_mode=True,
    )
    wanted = module.params["state"]
    try:
        was_active, watch = _is_active(module), read_state(STATE)
        same = was_active and watch is not None and watch["launch"] == module.params["launch"]
        changed = (wanted == "started" and not same) or (wanted == "stopped" and was_active)
        if changed and not module.check_mode:
            if was_active:
                module.run_command(["systemctl", "stop", UNIT], check_rc=True)
            if wanted == "started":
                _start(module)
            watch = read_state(STATE)
        active = was_active if wanted == "read" else _is_active(module)
    except (OSError, ValueError, RuntimeError) as error:
        module.fail_json(msg=f"the memory watch of this node: {error}")
    diff = {"before": "", "after": ""}
    if changed:
        diff = {"before": _shown(was_active), "after": _shown(wanted == "started")}
    module.exit_json(changed=changed, active=active, watch=watch, diff=diff)


def _shown(active: bool) -> str:
    return f"{UNIT}: {'active' if active else 'inactive'}\n"


if __name__ == "__main__":
    main()
