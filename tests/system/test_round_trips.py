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
from spark_lab.spec import NODES, Lab

ROOT = Path(__file__).resolve().parents[2]
INVENTORY = os.environ.get("LAB_INVENTORY", "inventories/lab")

pytestmark = pytest.mark.lab


def test_a_whole_verify_costs_one_round_trip_a_node_and_one_more_to_ask_the_server(
    lab: Lab,
) -> None:
    playbook = Path(sys.executable).with_name("ansible-playbook")
    logged = subprocess.run(
        [str(playbook), "-i", INVENTORY, "site.yml", "--tags", "verify", "-vvv"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=180,
    )
    trips = Counter(re.findall(r"^<([^>]+)> SSH: EXEC ", logged.stdout, re.MULTILINE))
    head, *workers = (lab.management(node.number) for node in NODES)
    assert trips == {head: 2, **dict.fromkeys(workers, 1)}
    assert "SSH: PUT" not in logged.stdout
