# SPDX-License-Identifier: Apache-2.0
"""Observation costs one round trip a node, as the connection log counts them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INVENTORY = os.environ.get("LAB_INVENTORY", "inventories/lab")

pytestmark = pytest.mark.lab


def test_the_facts_of_every_node_come_in_one_round_trip() -> None:
    ansible = Path(sys.executable).with_name("ansible")
    argv = [str(ansible), "-i", INVENTORY, "spark", "--become", "-m", "spark.appliance.node_facts"]
    logged = subprocess.run(
        [*argv, "-vvv"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=180
    )
    trips = Counter(re.findall(r"^<([^>]+)> SSH: EXEC ", logged.stdout, re.MULTILINE))
    answered = set(re.findall(r"^(\w+) \| SUCCESS", logged.stdout, re.MULTILINE))
    assert len(answered) == len(trips) > 1
    assert set(trips.values()) == {1}
    assert "SSH: PUT" not in logged.stdout
