#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
module: netplan_rails
short_description: Bring a node's rails to their addresses and MTU through netplan
description:
  - Writes one netplan file that describes the rails and nothing else, after netplan has accepted
    it together with all other files in a copy of them.
  - With O(apply) live rails change too. A transient systemd timer, armed before, brings file and
    live state back after O(confirm_s) seconds unless the change is confirmed with
    O(state=confirmed) over a connection that outlived it.
  - A change that netplan refuses, or that does not show on the live rails, is undone at once.
version_added: 0.1.0
author: spark-appliance contributors (@spark-appliance)
options:
  path:
    description: The netplan file that belongs to the appliance.
    type: path
    required: true
  content:
    description: Its text; used with O(state=present).
    type: str
    default: ""
  rails:
    description: The rails as they shall be.
    type: list
    elements: dict
    required: true
    suboptions:
      rail:
        description: V(a) or V(b).
        type: str
        required: true
      interface:
        description: Netdev.
        type: str
        required: true
      address:
        description: IPv4 address with prefix length.
        type: str
        required: true
      mtu:
        description: Ethernet MTU in bytes.
        type: int
        required: true
  control_interface:
    description: Netdev that carries the control session; the module refuses to change it.
    type: str
    default: ""
  apply:
    description: Change live rails too, not only what a boot brings up.
    type: bool
    default: false
  confirm_s:
    description: Seconds until an unconfirmed change is undone.
    type: int
    default: 60
  state:
    description:
      - V(present) changes the rails.
      - V(confirmed) keeps a change that was applied, and changes nothing itself.
      - V(undone) takes a change back that was applied and not confirmed.
    type: str
    default: present
    choices: [present, confirmed, undone]
attributes:
  check_mode:
    description: Has netplan judge the file in a copy of its folders; changes nothing.
    support: full
  diff_mode:
    description: Shows the file and the live rails before and after.
    support: full
  platform:
    description: Linux hosts with netplan, systemd and the system's Python 3.11 or later.
    support: full
    platforms: linux
"""

EXAMPLES = r"""
- name: Bring the rails up
  spark.appliance.netplan_rails:
    path: /etc/netplan/60-spark-fabric.yaml
    content: "{{ fabric_plan.content }}"
    rails: "{{ fabric_plan.rails }}"
    control_interface: "{{ fabric_plan.control_interface }}"
    apply: true

- name: Keep the change
  spark.appliance.netplan_rails:
    path: /etc/netplan/60-spark-fabric.yaml
    rails: "{{ fabric_plan.rails }}"
    state: confirmed
"""

RETURN = r"""
written:
  description: Whether the file differed.
  type: bool
  returned: when O(state=present)
armed:
  description: Whether a way back waits for the confirmation.
  type: bool
  returned: when O(state=present)
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.spark.appliance.plugins.module_utils._netplan import (
    LiveRail,
    Rail,
    RailChangeError,
    Site,
    change,
    check_merged,
    confirm,
    live_differences,
    read_live,
    read_mode,
    read_text,
    refuse_armed,
    undo,
)

ARGUMENTS: dict[str, Any] = {
    "path": {"type": "path", "required": True},
    "content": {"type": "str", "default": ""},
    "rails": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {
            "rail": {"type": "str", "required": True},
            "interface": {"type": "str", "required": True},
            "address": {"type": "str", "required": True},
            "mtu": {"type": "int", "required": True},
        },
    },
    "control_interface": {"type": "str", "default": ""},
    "apply": {"type": "bool", "default": False},
    "confirm_s": {"type": "int", "default": 60},
    "state": {"type": "str", "default": "present", "choices": ["present", "confirmed", "undone"]},
}
MODE = "0600"


def listing(rails: Sequence[Rail], live: Mapping[str, LiveRail]) -> tuple[str, str]:
    """Return the live rails before and after, as text for a diff."""
    before = [f"{n} mtu {r.mtu} {' '.join(r.addresses)}".rstrip() for n, r in live.items()]
    after = [f"{rail.interface} mtu {rail.mtu} {rail.address}" for rail in rails]
    return "\n".join(before) + "\n", "\n".join(after) + "\n"


def present(module: AnsibleModule, site: Site, rails: Sequence[Rail]) -> dict[str, Any]:
    """Change what differs and return the module's result."""
    asked = module.params
    text, mode = read_text(site.path), read_mode(site.path)
    live = read_live(site, rails)
    written = (text, mode) != (asked["content"], MODE)
    apply = bool(asked["apply"] and live_differences(rails, live))
    if apply and asked["control_interface"] in {"", *live}:
        found = asked["control_interface"] or "an unknown interface"
        raise RailChangeError(
            f"expected the control session on another interface than the rails, found {found}; "
            "reach the node by its management address"
        )
    diff = []
    if written:
        check_merged(site, asked["content"], rails)
        diff.append(
            {
                "before_header": f"{site.path} {mode}".strip(),
                "after_header": f"{site.path} {MODE}",
                "before": text or "",
                "after": asked["content"],
            }
        )
    if apply:
        refuse_armed(site)
        before, after = listing(rails, live)
        header = "live rails"
        diff.append(
            {
                "before_header": header,
                "after_header": header,
                "before": before,
                "after": after,
            }
        )
    if not module.check_mode:
        content = asked["content"] if written else None
        change(site, rails, content, apply=apply, confirm_s=asked["confirm_s"])
    armed = apply and not module.check_mode
    return {"changed": written or apply, "written": written, "armed": armed, "diff": diff}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    asked = module.params
    site = Site(path=asked["path"])
    rails = [Rail(item["interface"], item["address"], item["mtu"]) for item in asked["rails"]]
    try:
        if asked["state"] == "present":
            result = present(module, site, rails)
        elif module.check_mode:
            result = {"changed": False}
        elif asked["state"] == "confirmed":
            confirm(site, rails)
            result = {"changed": False}
        else:
            result = {"changed": undo(site)}
    except RailChangeError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename or site.path}: {error.strerror}")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
