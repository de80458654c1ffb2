# SPDX-License-Identifier: Apache-2.0
"""Look inside the image on a node and judge it by its release.

With ``release``, the name of a description in ``image/releases``, the module's options come from
it and what was seen is judged; without, the module's own result is returned.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import ordered, refusals
from ansible_collections.spark.appliance.plugins.plugin_utils.image_judge import (
    judge_inside,
    probe_arguments,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.release import (
    ReleaseError,
    load_release,
    parse_sealed_manifest,
)

display = Display()


class ActionModule(ActionBase):
    """Reads the release's description, runs the module on the node and judges its result."""

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        arguments = dict(self._task.args)
        name = arguments.pop("release", None)
        if name is None:
            return {**result, **self._ask(arguments, task_vars)}
        host = task_vars["inventory_hostname"]
        root = Path(self._templar.template(task_vars["appliance_root"]))
        folder = root / "image" / "releases"
        try:
            source = folder / f"{name}.yml"
            release = load_release(source.read_text(encoding="utf-8"), str(source))
            sealed: dict[str, str] = {}
            if release.sealed_manifest is not None:
                raw = (folder / release.sealed_manifest.file).read_bytes()
                digest = hashlib.sha256(raw).hexdigest()
                sealed = parse_sealed_manifest(raw.decode(), release.sealed_manifest, digest)
        except (OSError, ReleaseError) as error:
            return {**result, "failed": True, "msg": str(error)}
        arguments = probe_arguments(release, sealed)
        if not arguments:
            return {**result, "skipped": True, "msg": f"{release.name} asks for no look inside"}
        seen = self._ask(arguments, task_vars)
        if seen.get("failed"):
            return {**result, **seen}
        findings = judge_inside(release, sealed, host, seen)
        for finding in ordered(findings):
            display.display(f"    {finding.severity}: {finding.message()}")
        refused = refusals(findings)
        return {
            **result,
            "changed": False,
            "findings": [finding.as_dict() for finding in findings],
            "matching": sum(seen["sealed"].get(path) == digest for path, digest in sealed.items()),
            "sealed": len(sealed),
            **(
                {"failed": True, "msg": "\n".join(finding.message() for finding in refused)}
                if refused
                else {}
            ),
        }

    def _ask(self, arguments: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = self._execute_module(
            module_name="spark.appliance.image_probe", module_args=arguments, task_vars=task_vars
        )
        return answer
