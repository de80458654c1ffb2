"""The room for R13's image and weights in the judgement of four nodes, before any fetch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.spark.appliance.plugins.plugin_utils.checks import Phase
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import refusals
from ansible_collections.spark.appliance.plugins.plugin_utils.judgement import judge_nodes

from tests.fixtures.nodes.compose import FACTORY, Edit, Tree
from tests.unit.plugin_utils.launch_cases import NODES, R13
from tests.unit.plugin_utils.test_judgement import material

GIB = 1024**3
# 379 GiB of weights, 20,327,717,376 B of image, 7,500,000,000 B of parts and 2 GiB to spare.
TOGETHER_BYTES = 406_948_151_296 + 20_327_717_376 + 7_500_000_000 + 2_147_483_648


def test_a_recipe_says_how_large_its_weights_are_and_who_says_so() -> None:
    assert R13.weights.size == 379 * GIB == 406_948_151_296
    assert "published" in (R13.weights.source or "")


def test_the_size_of_the_weights_makes_no_other_launch() -> None:
    weights = R13.weights.model_copy(update={"size": 1, "source": "corrected"})
    assert R13.model_copy(update={"weights": weights}).digest == R13.digest


def disk(total_bytes: int, free_bytes: int) -> Edit:
    def edit(tree: Tree) -> None:
        row = f"/ {total_bytes} {free_bytes}\n"
        tree.write("/_commands/df.txt", "Mounted on 1B-blocks Avail\n" + row * 3)

    return edit


# 1 TB and 4 TB as machines of the field show them: 916 GiB and 3.7 TiB with one partition.
@pytest.mark.parametrize(
    ("total_bytes", "free_bytes", "refused"),
    [
        (916 * GIB, 668 * GIB, []),
        (3_725 * GIB, 3_500 * GIB, []),
        (916 * GIB, TOGETHER_BYTES, []),
        (916 * GIB, TOGETHER_BYTES - 1, ["weights.room"]),
        # A copy of the weights lies elsewhere on the disk already.
        (916 * GIB, 289 * GIB, ["weights.room"]),
        (916 * GIB, 40 * GIB, ["image.room", "weights.room"]),
    ],
)
@pytest.mark.parametrize("node", ["alpha", "charlie"], ids=["fetches", "receives"])
@pytest.mark.parametrize("phase", [Phase.PREFLIGHT, None], ids=["preflight", "observe"])
def test_a_node_without_room_is_refused_before_anything_is_fetched(
    phase: Phase | None, node: str, total_bytes: int, free_bytes: int, refused: list[str]
) -> None:
    whole = material(FACTORY, {node: [disk(total_bytes, free_bytes)]})
    found = [
        finding
        for finding in refusals(judge_nodes(whole, phase).findings)
        if finding.check.endswith(".room")
    ]
    assert [(finding.check, finding.node) for finding in found] == [
        (check, node) for check in refused
    ]


def test_the_refusal_says_what_is_needed_what_is_there_and_what_to_do() -> None:
    whole = material(FACTORY, {"delta": [disk(916 * GIB, 300 * GIB)]})
    messages = [finding.message() for finding in refusals(judge_nodes(whole, None).findings)]
    (said,) = [message for message in messages if "weights.room" in message]
    assert said == (
        "delta: room for the weights [appliance_weights_dir]: expected 436,923,352,320 B "
        "(406.917 GiB) free at /var/lib/spark-appliance/weights/glm-5.2: 406,948,151,296 B "
        "(379.000 GiB) for the weights, 27,827,717,376 B (25.917 GiB) for the image, the rest to "
        "spare, found 322,122,547,200 B (300.000 GiB) of 983,547,510,784 B (916.000 GiB); free "
        "space there, or choose another disk; nothing was fetched (weights.room)"
    )


def test_a_folder_on_the_head_is_judged_there_and_the_others_here() -> None:
    policy = replace(material().policy, weights_url="file:///srv/weights")
    edits = {name: [disk(916 * GIB, 60 * GIB)] for name in NODES}
    judged = judge_nodes(material(FACTORY, edits, policy=policy), None)
    refused = [f.node for f in refusals(judged.findings) if f.check == "weights.room"]
    assert refused == ["bravo", "charlie", "delta"]
