# SPDX-License-Identifier: Apache-2.0
"""Judge inventory and nodes on the control node; see the module of the same name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.spark.appliance.plugins.plugin_utils.checks import Phase, select
from ansible_collections.spark.appliance.plugins.plugin_utils.checks.drift import (
    RECORD,
    drift_record,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.from_recipe import (
    LEDGER_NAME,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.ledger import (
    Ledger,
    parse_ledger,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.facts import NodeFacts
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import (
    Finding,
    Severity,
    refusals,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.inventory import (
    Inventory,
    read_inventory,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.judgement import (
    Judgement,
    Material,
    Policy,
    judge_nodes,
    no_plan,
    serving_request,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.plan import (
    FabricPolicy,
    HardenPolicy,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.reach import reach_request
from ansible_collections.spark.appliance.plugins.plugin_utils.receipt import Receipt, last_good
from ansible_collections.spark.appliance.plugins.plugin_utils.recipe import (
    Recipe,
    RecipeError,
    load_recipe,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.release import (
    Release,
    ReleaseError,
    load_release,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.report import (
    Judgement as Report,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.report import (
    render,
    to_table,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.staging import TEMPLATES

display = Display()

# `observe` selects no checks: the judge only plans.
_OBSERVE = "observe"
_SEPARATE = ("inventory", _OBSERVE)

_VARIABLES = (
    "ansible_host",
    "spark_rail_a",
    "spark_rail_b",
    "appliance_accept_unmeasured_floor",
    "appliance_api_bind",
    "appliance_api_key",
    "appliance_api_port",
    "appliance_fabric_mtu",
    "appliance_profile",
    "appliance_ray_port",
    "appliance_recipe",
    "appliance_release_url",
    "appliance_weights_dir",
    "appliance_weights_source",
    "fabric_allow_disruption",
    "harden_display",
    "harden_swap",
)


class _UnusableError(Exception):
    """The inventory, the recipe or the release cannot be used; carries the findings."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        super().__init__()
        self.findings = list(findings)


def _missing(variable: str, expected: str, found: str, remedy: str) -> Finding:
    title = "the file can be read"
    return Finding(
        "inventory.file", "", Severity.ERROR, title, expected, found, remedy, variable=variable
    )


class ActionModule(ActionBase):
    """Reads recipe, release and templates, hands everything to the judge, fails on a refusal."""

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _, asked = self.validate_argument_spec(
            argument_spec={
                "phase": {
                    "type": "str",
                    "required": True,
                    "choices": [_OBSERVE, *(phase.value for phase in Phase)],
                }
            }
        )
        variables = task_vars or {}
        root = Path(str(self._templar.template(variables["appliance_root"])))
        inventory = self._inventory(variables)
        try:
            recipe, release = _files(root, inventory)
            site, faults = read_inventory(inventory, recipe.topology.nodes, recipe.ports())
            profile = str(inventory.of_head("appliance_profile") or "")
            if profile:
                recipe.profile(profile)
            if site is None:
                raise _UnusableError(faults)
            if asked["phase"] == Phase.INVENTORY:
                return {
                    **result,
                    "changed": False,
                    "serving": serving_request(recipe, site),
                    "reach": reach_request(site.rails, site.fabric_mtu),
                    "plan": dict.fromkeys(site.nodes, no_plan()),
                }
            receipts = root / "receipts"
            material = Material(
                site=site,
                policy=_policy(inventory, profile),
                recipe=recipe,
                release=release,
                templates={name: (root / "templates" / name).read_text() for name in TEMPLATES},
                facts=_observed(variables["hostvars"], inventory.nodes),
                serving=_serving(variables["hostvars"], inventory.nodes),
                receipt=last_good(
                    path.read_text(encoding="utf-8", errors="replace")
                    for path in receipts.glob("*.json")
                ),
                ledger=_ledger(receipts / LEDGER_NAME),
                watched=_watched(variables["hostvars"], inventory.nodes),
                predicting=self._task.check_mode,
            )
        except _UnusableError as unusable:
            return _refuse(result, unusable.findings)
        except RecipeError as error:
            return _refuse(result, [*error.findings, *_inventory_faults(inventory)])
        except ReleaseError as error:
            return _refuse(result, error.findings)
        phase = None if asked["phase"] == _OBSERVE else Phase(asked["phase"])
        judgement = judge_nodes(material, phase)
        return self._conclude(result, judgement, material, phase, receipts)

    def _inventory(self, variables: Mapping[str, Any]) -> Inventory:
        groups, hostvars = variables["groups"], variables["hostvars"]
        head = tuple(groups.get("head", ()))
        workers = tuple(groups.get("workers", ()))
        hosts = {
            name: {
                variable: hostvars[name][variable]
                for variable in _VARIABLES
                if variable in hostvars[name]
            }
            for name in (*head, *workers)
        }
        names = {name: tuple(hostvars[name]) for name in hosts}
        return Inventory(head, workers, hosts, names)

    def _conclude(
        self,
        result: dict[str, Any],
        judgement: Judgement,
        material: Material,
        phase: Phase | None,
        receipts: Path,
    ) -> dict[str, Any]:
        checks = () if judgement.phase is None else select(judgement.phase)
        report = Report(
            phase="observe" if phase is None else phase.value,
            time=datetime.now(UTC),
            nodes=material.site.nodes,
            checks=checks,
            findings=judgement.findings,
            facts={
                "recipe": material.recipe.name,
                "profile": judgement.profile,
                "launch": judgement.launch,
            },
        )
        if phase is Phase.VERIFY and judgement.phase is None:
            display.display("nothing serves this launch yet: the run without --check will judge it")
        elif phase is Phase.VERIFY or (phase is not None and judgement.findings):
            display.display(to_table(report))
        if phase is Phase.VERIFY and not material.predicting:
            _write(receipts, report, judgement, material)
        refused = refusals(judgement.findings)
        if refused:
            return _refuse(result, refused)
        return {
            **result,
            "changed": False,
            "serving": serving_request(material.recipe, material.site),
            "reach": reach_request(material.site.rails, material.site.fabric_mtu),
            "profile": judgement.profile,
            "launch": judgement.launch,
            "plan": judgement.plan,
            "findings": [finding.as_dict() for finding in judgement.findings],
        }


def _refuse(result: dict[str, Any], findings: Iterable[Finding]) -> dict[str, Any]:
    lines = [finding.message() for finding in findings]
    return {
        **result,
        "failed": True,
        "msg": f"refused, {len(lines)} to correct; nothing was changed:\n" + "\n".join(lines),
    }


def _files(root: Path, inventory: Inventory) -> tuple[Recipe, Release]:
    name = inventory.of_head("appliance_recipe")
    known = sorted(path.stem for path in (root / "recipes").glob("*.yml"))
    if name not in known:
        expected = f"one of {', '.join(known)}"
        found = str(name or "nothing")
        raise _UnusableError(
            [
                _missing("appliance_recipe", expected, found, "name a recipe"),
                *_inventory_faults(inventory),
            ]
        )
    path = root / "recipes" / f"{name}.yml"
    recipe = load_recipe(path.read_text(encoding="utf-8"), f"recipes/{name}.yml")
    described = f"image/releases/{recipe.image.release}.yml"
    try:
        text = (root / described).read_text(encoding="utf-8")
    except OSError as error:
        raise _UnusableError(
            [
                _missing(
                    "image.release",
                    described,
                    error.strerror or "nothing",
                    "name a release in the recipe; the lab's is made by `make lab-image`",
                )
            ]
        ) from error
    return recipe, load_release(text, described)


def _inventory_faults(inventory: Inventory) -> list[Finding]:
    return read_inventory(inventory, None)[1]


def _policy(inventory: Inventory, profile: str) -> Policy:
    head = inventory.of_head
    return Policy(
        profile=profile,
        api_key=str(head("appliance_api_key")),
        release_url=str(head("appliance_release_url")),
        weights_url=str(head("appliance_weights_source")),
        harden=HardenPolicy(
            display=head("harden_display") or "off", swap=head("harden_swap") or "off"
        ),
        fabric=FabricPolicy(
            mtu=int(head("appliance_fabric_mtu")),
            allow_disruption=head("fabric_allow_disruption") is True,
        ),
        accept_unmeasured_floor=head("appliance_accept_unmeasured_floor") is True,
    )


def _observed(hostvars: Mapping[str, Any], nodes: Iterable[str]) -> dict[str, Any]:
    results = {node: hostvars[node].get("observe_result") or {} for node in nodes}
    return {node: seen["facts"] for node, seen in results.items() if "facts" in seen}


def _serving(hostvars: Mapping[str, Any], nodes: tuple[str, ...]) -> Mapping[str, Any] | None:
    serving = (hostvars[nodes[0]].get("observe_result") or {}).get("serving")
    return serving if isinstance(serving, Mapping) else None


def _watched(hostvars: Mapping[str, Any], nodes: Iterable[str]) -> dict[str, Any] | None:
    results = {node: hostvars[node].get("cutover_watched") or {} for node in nodes}
    return {node: seen for node, seen in results.items() if "watch" in seen} or None


def _ledger(path: Path) -> Ledger:
    if not path.is_file():
        return Ledger()
    return parse_ledger(path.read_text(encoding="utf-8"), str(path))[0]


def _write(receipts: Path, report: Report, judgement: Judgement, material: Material) -> None:
    """Write the receipt and the judgement's readable forms on the control node."""
    receipts.mkdir(exist_ok=True)
    receipt = Receipt(
        kind=report.phase,
        time=report.time,
        recipe=material.recipe.name,
        recipe_digest=material.recipe.digest,
        profile=judgement.profile,
        launch=judgement.launch,
        nodes={
            name: {RECORD: drift_record(NodeFacts.of(name, raw))}
            for name, raw in material.facts.items()
        },
        serving=material.serving or {},
        findings=judgement.findings,
    )
    target = receipts / receipt.file_name()
    target.write_text(receipt.to_json(), encoding="utf-8")
    for suffix, text in render(report).items():
        form = target.with_name(f"{target.stem}-findings.{suffix}")
        form.write_text(text, encoding="utf-8")
