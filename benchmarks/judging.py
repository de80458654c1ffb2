#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What judging costs: one fleet of 64 nodes against one of 4, side by side in one run.

Prints milliseconds of processor time and their ratio. The facts are those of the constructed
serving fleet, copied under other names, and are parsed from plain JSON data anew in every round, as
a playbook does.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "collections"), str(ROOT)]

# The repository is found through the path above, which must be set first.
from ansible_collections.spark.appliance.plugins.plugin_utils.checks import (  # noqa: E402 -- see above
    Context,
    Phase,
    judge,
    select,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.facts import (  # noqa: E402 -- see above
    NodeFacts,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.reach import (  # noqa: E402 -- see above
    reach_request,
)

from tests.fixtures.nodes.compose import NODES, SERVING  # noqa: E402 -- see above
from tests.fixtures.nodes.fleet import NEEDS, SITE, context, plain_facts  # noqa: E402 -- see above

ROUNDS = 7
SMALL, LARGE = 4, 64
# Judging must stay invisible beside one round trip over ssh.
AIM_MS = 100.0
INTERFACES = {"a": "enp1s0f1np1", "b": "enP2p1s0f1np1"}


def fleet(size: int) -> tuple[Context, dict[str, Any]]:
    """Return a context for ``size`` nodes without facts, and their raw facts."""
    names = (*NODES, *(f"node{number:02}" for number in range(len(NODES), size)))
    base = context()
    rails = {
        name: SITE.rails[name]
        if name in SITE.rails
        else (f"10.77.0.{11 + i}/24", f"10.77.1.{11 + i}/24")
        for i, name in enumerate(names)
    }
    launches = base.require(base.launches, "launches")
    worker = launches[NODES[1]]
    whole = replace(
        base,
        site=replace(SITE, nodes=names, rails=rails),
        needs=replace(NEEDS, nodes=size),
        launches={name: launches.get(name, worker) for name in names},
        facts={},
    )
    wanted = reach_request(rails, SITE.fabric_mtu)
    texts = {name: json.dumps(plain_facts(name, SERVING)) for name in NODES}
    raw: dict[str, Any] = {}
    for index, name in enumerate(names):
        text = texts.get(name, texts[NODES[1]])
        if name not in texts:
            for rail in (0, 1):
                text = text.replace(f'"10.77.{rail}.12"', f'"10.77.{rail}.{11 + index}"')
                text = text.replace(f'"10.77.{rail}.12/24"', f'"10.77.{rail}.{11 + index}/24"')
        raw[name] = json.loads(text)
        # Every node has proven its paths to all others, so that the number of paths grows with
        # the square of the nodes.
        raw[name]["sections"]["reach"]["data"] = [
            {
                "node": name,
                "rail": path["rail"],
                "interface": INTERFACES[path["rail"]],
                "peer": path["peer"],
                "address": path["address"],
                "payload_bytes": 8972,
                "sent": 3,
                "received": 3,
            }
            for path in wanted[name]["paths"]
        ]
    return whole, raw


def measure(size: int) -> float:
    """Return the median of one judgement in ms of processor time; findings would be other work."""
    whole, raw = fleet(size)
    spent: list[float] = []
    for _ in range(ROUNDS + 1):
        started = time.process_time()
        facts = {name: NodeFacts.of(name, sections) for name, sections in raw.items()}
        findings = judge(replace(whole, facts=facts), Phase.VERIFY)
        spent.append((time.process_time() - started) * 1000)
        if findings:
            raise SystemExit(f"the fleet is not healthy: {findings[0].message()}")
    # The first round builds the validators.
    return statistics.median(spent[1:])


def main() -> None:
    """Print the figures."""
    small, large = measure(SMALL), measure(LARGE)
    checks = len(select(Phase.VERIFY))
    print(f"{checks} checks, processor time, median of {ROUNDS} rounds, parsing included")
    print(f"{SMALL:3} nodes {small:8.1f} ms")
    print(f"{LARGE:3} nodes {large:8.1f} ms   aim {AIM_MS:g} ms")
    print(f"ratio {large / small:.1f} for {LARGE / SMALL:.0f} times the nodes")


if __name__ == "__main__":
    main()
