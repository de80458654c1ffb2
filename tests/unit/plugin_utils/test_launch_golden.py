"""What is staged on a head and a worker, whole, for every profile.

After an intended change: SPARK_UPDATE_GOLDEN=1 pytest tests/unit/plugin_utils/test_launch_golden.py
and read the difference before it is committed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from ansible_collections.spark.appliance.plugins.plugin_utils.plan.service import Start
from ansible_collections.spark.appliance.plugins.plugin_utils.staging import stage

from tests.unit.plugin_utils.launch_cases import PROFILES, R13, rendered, templates

GOLDEN = Path(__file__).parents[2] / "fixtures" / "golden" / "glm52-r13"
UPDATE = os.environ.get("SPARK_UPDATE_GOLDEN") == "1"


@pytest.mark.parametrize("node", ["alpha", "bravo"])
@pytest.mark.parametrize("profile", PROFILES)
def test_a_launch_is_rendered_as_recorded(profile: str, node: str) -> None:
    launch = rendered(profile)[node]
    files = {file.name: file.content for file in stage(launch, R13, Start(), templates())}
    # It describes the launch for a way back; its digest changes with every word of the recipe.
    del files["launch.json"]
    argv = {
        "container": launch.container_argv,
        "server": launch.server_argv,
        "stop": launch.stop_argv,
    }
    files["argv.json"] = json.dumps(argv, indent=1) + "\n"
    # The launch id follows from everything else, so that it would only hide the difference.
    found = {name: text.replace(launch.id, "LAUNCH-ID") for name, text in files.items()}
    folder = GOLDEN / profile / launch.role
    if UPDATE:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in found.items():
            (folder / name).write_text(text, encoding="utf-8")
    recorded = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    assert found == recorded
