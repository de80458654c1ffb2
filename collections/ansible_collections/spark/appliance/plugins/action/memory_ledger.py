# SPDX-License-Identifier: Apache-2.0
"""Keep how low memory went in a launch; see the module of the same name for its options."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.from_recipe import (
    LEDGER_NAME,
    need_by_name,
    roles_of,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.ledger import (
    append,
    parse_ledger,
    to_data,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.need import geometry_of
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.watched import (
    WatchError,
    as_entry,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.recipe import (
    RecipeError,
    load_recipe,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.release import (
    ReleaseError,
    load_release,
)


class ActionModule(ActionBase):
    """Reads the ledger, puts the launch into it and writes it as a whole."""

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        names = {"type": "list", "elements": "str", "required": True}
        _, asked = self.validate_argument_spec(
            argument_spec={
                "recipe": {"type": "path", "required": True},
                "releases": {"type": "path", "required": True},
                "receipts": {"type": "path", "required": True},
                "profile": {"type": "str", "required": True},
                "launch": {"type": "str", "required": True},
                "outcome": {"choices": ["served", "killed"], "default": "served"},
                "head": names,
                "workers": names,
                "watched": {"type": "str", "required": True},
            }
        )
        hosts = (task_vars or {})["hostvars"]
        roles = roles_of(asked["head"], asked["workers"])
        path = Path(asked["receipts"]) / LEDGER_NAME
        try:
            recipe = load_recipe(Path(asked["recipe"]).read_text(encoding="utf-8"), asked["recipe"])
            release_path = Path(asked["releases"]) / f"{recipe.image.release}.yml"
            release = load_release(release_path.read_text(encoding="utf-8"), str(release_path))
            need = need_by_name(recipe, asked["profile"])
            entry = as_entry(
                need,
                need.pool(geometry_of(recipe.memory)),
                roles,
                {name: hosts[name].get(asked["watched"], {}) for name in roles},
                launch=asked["launch"],
                recipe_digest=recipe.digest,
                image=release.image.config_digest,
                now=datetime.now(UTC),
                outcome=asked["outcome"],
            )
            text = path.read_text(encoding="utf-8") if path.exists() else ""
        except (RecipeError, ReleaseError, WatchError, OSError, KeyError) as error:
            raise AnsibleActionFail(f"floor ledger: {error}") from error
        ledger, unreadable = parse_ledger(text, str(path))
        if unreadable:
            # Writing over it would lose measurements that may be repairable.
            raise AnsibleActionFail(unreadable[0].message())
        after = json.dumps(to_data(append(ledger, entry)), indent=1) + "\n"
        if not self._task.check_mode:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_suffix(".new")
            draft.write_text(after, encoding="utf-8")
            draft.replace(path)
        return result | {
            "changed": after != text,
            "path": str(path),
            "counts": entry.outcome == "killed" or entry.saw_long_prefill,
            "diff": {"before": text, "after": after, "before_header": str(path)},
        }
