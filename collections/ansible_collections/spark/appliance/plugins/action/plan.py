# SPDX-License-Identifier: Apache-2.0
"""Say whether a profile's memory fits; see the module of the same name for its options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.assess import (
    Circumstances,
    assess,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.chart import draw
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.data import as_data
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.from_recipe import (
    LEDGER_NAME,
    monitor_of,
    need_by_name,
    roles_of,
    with_floors_of_runs,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.holders import (
    ForeignFactsError,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.judge import judge_envelope
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.ledger import (
    LedgerKey,
    parse_ledger,
    select_runs,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.node import (
    NodeMemory,
    offline_node,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.result import Envelope
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.text import render
from ansible_collections.spark.appliance.plugins.plugin_utils.facts import NodeFacts
from ansible_collections.spark.appliance.plugins.plugin_utils.judgement import running_profile
from ansible_collections.spark.appliance.plugins.plugin_utils.recipe import (
    Recipe,
    RecipeError,
    load_recipe,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.recipe_memory import Role
from ansible_collections.spark.appliance.plugins.plugin_utils.release import (
    ReleaseError,
    load_release,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.units import UnitError, parse_bytes

display = Display()


class ActionModule(ActionBase):
    """Judges on the control node, prints the envelope and writes it under the receipts."""

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _, asked = self.validate_argument_spec(
            argument_spec={
                "recipe": {"type": "path", "required": True},
                "profile": {"type": "str", "default": ""},
                "head": {"type": "list", "elements": "str", "required": True},
                "workers": {"type": "list", "elements": "str", "required": True},
                "observed": {"type": "str"},
                "offline": {
                    "type": "dict",
                    "options": {
                        "total": {"type": "str", "required": True},
                        "available": {"type": "str", "required": True},
                    },
                },
                "releases": {"type": "path", "required": True},
                "accept_unmeasured": {"type": "bool", "default": False},
                "receipts": {"type": "path", "required": True},
            }
        )
        try:
            recipe = load_recipe(Path(asked["recipe"]).read_text(encoding="utf-8"), asked["recipe"])
            envelope = _judge(recipe, asked, (task_vars or {})["hostvars"])
        except (RecipeError, ReleaseError) as error:
            raise AnsibleActionFail(str(error)) from error
        except (OSError, UnitError, ForeignFactsError) as error:
            raise AnsibleActionFail(f"plan of memory: {error}") from error
        display.display(render(envelope))
        files = [] if self._task.check_mode else _write(envelope, Path(asked["receipts"]))
        for name in files:
            display.display(f"written: {name}")
        return result | {
            "changed": False,
            "verdict": str(envelope.verdict),
            "envelope": as_data(envelope),
            "files": files,
        }


def _image(asked: Mapping[str, Any], release: str) -> str:
    path = Path(asked["releases"]) / f"{release}.yml"
    return load_release(path.read_text(encoding="utf-8"), str(path)).image.config_digest


def _judge(recipe: Recipe, asked: Mapping[str, Any], hosts: Mapping[str, Any]) -> Envelope:
    roles = roles_of(asked["head"], asked["workers"])
    facts = {}
    if asked["offline"] is None:
        facts = {name: hosts[name].get(asked["observed"], {}).get("facts", {}) for name in roles}
    running = running_profile(
        recipe, {name: NodeFacts.of(name, raw) for name, raw in facts.items()}
    )
    profile = asked["profile"] or running or recipe.default_profile
    need, memory = need_by_name(recipe, profile), with_floors_of_runs(recipe)
    path = Path(asked["receipts"]) / LEDGER_NAME
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    ledger, said = parse_ledger(text, str(path))
    # Without a ledger nothing is compared with the image, whose release may not be built yet.
    image = _image(asked, recipe.image.release) if ledger.entries else ""
    key = LedgerKey(recipe.digest, image, tuple(roles))
    if asked["offline"] is not None:
        runs, ignored = select_runs(ledger, key)
        envelope = judge_envelope(
            memory,
            need,
            _paper_nodes(asked["offline"], roles),
            ledger_runs=runs,
            accept_unmeasured=asked["accept_unmeasured"],
        )
        return replace(envelope, findings=(*envelope.findings, *said, *ignored))
    circumstances = Circumstances(
        service_containers={recipe.container.name},
        monitor=monitor_of(recipe),
        accept_unmeasured=asked["accept_unmeasured"],
        ledger=ledger,
        key=key,
    )
    envelope = assess(memory, need, roles, facts, circumstances)
    return replace(envelope, findings=(*envelope.findings, *said))


def _paper_nodes(offline: Mapping[str, str], roles: Mapping[str, Role]) -> list[NodeMemory]:
    total_bytes, available_bytes = parse_bytes(offline["total"]), parse_bytes(offline["available"])
    return [
        offline_node(name, role, total_bytes=total_bytes, available_bytes=available_bytes)
        for name, role in roles.items()
    ]


def _write(envelope: Envelope, folder: Path) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    contents = {"json": json.dumps(as_data(envelope), indent=2).encode()}
    if envelope.nodes:
        contents |= {"svg": draw(envelope, "svg"), "png": draw(envelope, "png")}
    written = []
    for suffix, content in contents.items():
        path = folder / f"envelope-{envelope.need.profile}.{suffix}"
        path.write_bytes(content)
        written.append(str(path))
    return written
