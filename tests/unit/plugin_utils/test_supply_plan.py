from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.spark.appliance.plugins.plugin_utils.facts import NodeFacts
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import Finding, Severity
from ansible_collections.spark.appliance.plugins.plugin_utils.plan.supply import (
    RESERVE_BYTES,
    STATE,
    SupplyNode,
    SupplyPlan,
    image_room_bytes,
    judge_image_room,
    judge_weights_room,
    plan_image,
    plan_weights,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.release import Release
from ansible_collections.spark.appliance.plugins.plugin_utils.supply_progress import (
    clock,
    progress_line,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.units import GIB

DIGEST = f"sha256:{'6' * 64}"
URL = "http://198.51.100.5/r13"
WEIGHTS = f"{STATE}/weights/glm"
# The figures of release R13 in bytes.
IMAGE_BYTES, ARCHIVE_BYTES = 20_327_717_376, 7_500_000_000

RELEASE = Release.model_validate(
    {
        "schema": 1,
        "name": "r13",
        "title": "test",
        "archive": "a.tar.zst",
        "archive_bytes": ARCHIVE_BYTES,
        "parts": {"count": 4},
        "image": {
            "reference": "repo:1",
            "config_digest": DIGEST,
            "size_bytes": IMAGE_BYTES,
            "architecture": "arm64",
        },
    }
)


def image(config: str | None = DIGEST, tags: tuple[str, ...] = ("repo:1",)) -> dict[str, Any]:
    return {
        "id": "sha256:0",
        "config_digest": config,
        "tags": list(tags),
        "architecture": "arm64",
        "os": "linux",
        "layers": [],
        "labels": {},
        "size_bytes": 1,
    }


def docker(*images: dict[str, Any]) -> dict[str, Any]:
    data = {
        "server_version": "29.2.1",
        "storage_driver": "overlay2",
        "containerd_store": False,
        "root_dir": "/var/lib/docker",
        "image_dir": "/var/lib/docker",
        "origin": "package",
        "runtimes": ["runc"],
        "cdi_devices": [],
        "cdi_driver_versions": [],
        "images": list(images),
        "containers": [],
    }
    return {"ok": True, "data": data}


def disk(free_bytes: int, *, state_filesystem: str = "/") -> dict[str, Any]:
    return {
        "ok": True,
        "data": [
            {
                "path": path,
                "filesystem": filesystem,
                "total_bytes": 4 * 10**12,
                "free_bytes": free_bytes,
            }
            for path, filesystem in (
                ("/var/lib/docker", "/"),
                (STATE, state_filesystem),
                ("/", "/"),
            )
        ],
    }


def node(name: str, rank: int, **sections: Any) -> SupplyNode:
    facts = NodeFacts.of(name, {"schema": 1, "sections": sections})
    return SupplyNode(name, f"198.51.100.{11 + rank}", facts)


def roles(plans: dict[str, SupplyPlan]) -> dict[str, str]:
    return {
        name: "".join(
            letter
            for letter, does in (
                ("n", plan.needed),
                ("f", plan.fetch),
                ("s", plan.share),
                ("r", plan.receive),
            )
            if does
        )
        for name, plan in plans.items()
    }


HAS, LACKS, UNKNOWN = docker(image()), docker(), {"ok": False, "reason": "no engine"}


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        ((LACKS, LACKS, LACKS), {"a": "nfs", "b": "nr", "c": "nr"}),
        ((HAS, HAS, HAS), {"a": "", "b": "", "c": ""}),
        ((HAS, LACKS, HAS), {"a": "fs", "b": "nr", "c": ""}),
        ((LACKS, HAS, HAS), {"a": "nf", "b": "", "c": ""}),
        ((HAS, UNKNOWN, HAS), {"a": "fs", "b": "nr", "c": ""}),
    ],
)
def test_one_node_fetches_and_only_those_that_lack_it_receive(
    held: tuple[dict[str, Any], ...], expected: dict[str, str]
) -> None:
    nodes = [node(name, rank, docker=held[rank]) for rank, name in enumerate("abc")]
    plans = plan_image(RELEASE, URL, nodes)
    assert roles(plans) == expected
    lacking = any("n" in role for role in expected.values())
    assert {plan.source for plan in plans.values()} == ({"a"} if lacking else {""})


def test_one_node_alone_shares_with_nobody() -> None:
    assert roles(plan_image(RELEASE, URL, [node("a", 0, docker=LACKS)])) == {"a": "nf"}


@pytest.mark.parametrize(
    "held",
    [
        image(config=f"sha256:{'7' * 64}"),
        image(config=None),
        image(tags=("repo:2",)),
        image(tags=()),
    ],
)
def test_neither_a_name_nor_an_id_makes_it_the_image(held: dict[str, Any]) -> None:
    plans = plan_image(RELEASE, URL, [node("a", 0, docker=docker(held))])
    assert plans["a"].needed


def test_a_plan_says_all_that_the_role_needs() -> None:
    plan = plan_image(RELEASE, URL, [node("a", 0, docker=LACKS)])["a"].as_dict()
    assert plan["part_names"] == [f"a.tar.zst.part-0{n}.bin" for n in range(4)]
    assert plan["folder"] == f"{STATE}/parts/r13-{DIGEST[7:19]}"
    assert plan["parts"] == {"archive": "a.tar.zst", "count": 4, "digits": 2}
    assert plan["image"]["config_digest"] == DIGEST
    assert plan["release"] == "r13"


def weights(stored_bytes: int = 0, **verified: Any) -> dict[str, Any]:
    folder = {"exists": True, "stored_bytes": stored_bytes, "verified": verified or None}
    return {"ok": True, "data": {WEIGHTS: folder}}


def remembered(**changes: Any) -> dict[str, Any]:
    """Return a folder of weights that was verified whole and is untouched, with differences."""
    whole = {"manifest_sha256": "m", "source": f"{URL}#", "whole": True, "changed": []}
    return weights(**{**whole, **changes})


@pytest.mark.parametrize(
    ("section", "pinned", "needed"),
    [
        (remembered(), "", False),
        (remembered(), "m", False),
        (remembered(), "other", True),
        (remembered(changed=["config.json"]), "m", True),
        # A copy that was given up after some files.
        (remembered(whole=False), "", True),
        (remembered(whole=False), "m", True),
        # Another source may hold other weights, unless their digest says that it does not.
        (remembered(source="hub://owner/name@0#"), "", True),
        (remembered(source="hub://owner/name@0#"), "m", False),
        (weights(), "", True),
        ({"ok": True, "data": {}}, "", True),
        ({"ok": False, "reason": "unreadable"}, "", True),
    ],
)
def test_weights_count_when_they_were_verified_and_are_untouched(
    section: dict[str, Any], pinned: str, needed: bool
) -> None:
    plans = plan_weights(URL, WEIGHTS, [node("a", 0, weights=section)], pinned)
    assert plans["a"].needed is needed


def test_room_for_the_image_follows_its_formula() -> None:
    assert image_room_bytes(RELEASE, same_disk=False) == 2 * IMAGE_BYTES + RESERVE_BYTES
    # 2 · 20,327,717,376 + 7,500,000,000 + 2 GiB
    assert image_room_bytes(RELEASE, same_disk=True) == 50_302_918_400


@pytest.mark.parametrize(
    ("state_filesystem", "free_bytes", "refused"),
    [
        ("/", 50_302_918_399, True),
        ("/", 50_302_918_400, False),
        ("/data", 42_802_918_399, True),
        ("/data", 42_802_918_400, False),
    ],
)
def test_a_node_without_room_for_the_image_is_refused(
    state_filesystem: str, free_bytes: int, refused: bool
) -> None:
    sections = {"docker": LACKS, "disk": disk(free_bytes, state_filesystem=state_filesystem)}
    findings = judge_image_room(RELEASE, [node("a", 0, **sections)])
    assert [finding.check for finding in findings] == ["image.room"] * refused


def test_parts_that_are_there_already_need_no_room_again() -> None:
    """Else a fetch that was cut would be refused until its own bytes are removed."""
    stored = 5_000_000_000
    disks = disk(50_302_918_400 - stored)
    assert judge_image_room(RELEASE, [node("a", 0, docker=LACKS, disk=disks)])
    disks["data"][1]["parts"] = {f"r13-{DIGEST[7:19]}": stored, "another": 1}
    assert judge_image_room(RELEASE, [node("a", 0, docker=LACKS, disk=disks)]) == []
    disks["data"][1]["parts"] = {"another": stored}
    assert judge_image_room(RELEASE, [node("a", 0, docker=LACKS, disk=disks)])


def test_a_node_that_has_the_image_needs_no_room() -> None:
    assert judge_image_room(RELEASE, [node("a", 0, docker=HAS, disk=disk(1))]) == []


def parts(*stored_bytes: int) -> list[SupplyNode]:
    """Return nodes a, b, … without the image that hold this much of its parts."""
    nodes = []
    for rank, stored in enumerate(stored_bytes):
        disks = disk(10**12)
        disks["data"][1]["parts"] = {f"r13-{DIGEST[7:19]}": stored}
        nodes.append(node("abcd"[rank], rank, docker=LACKS, disk=disks))
    return nodes


@pytest.mark.parametrize(
    ("stored", "url", "source"),
    [
        ((0, ARCHIVE_BYTES, ARCHIVE_BYTES), URL, "b"),
        ((ARCHIVE_BYTES, ARCHIVE_BYTES), URL, "a"),
        ((0, ARCHIVE_BYTES - 1), URL, "a"),
        # Only the head reads a folder of its own.
        ((0, ARCHIVE_BYTES), "file:///srv/image", "a"),
    ],
)
def test_parts_that_a_node_has_already_come_from_it_and_not_from_outside(
    stored: tuple[int, ...], url: str, source: str
) -> None:
    plans = plan_image(RELEASE, url, parts(*stored))
    assert {plan.source for plan in plans.values()} == {source}
    assert [name for name, plan in plans.items() if plan.fetch] == [source]


def test_an_image_that_nothing_protects_from_pruning_is_protected() -> None:
    def keeper(digest: str) -> dict[str, Any]:
        engine = docker(image())
        container = dict.fromkeys(("id", "name", "image", "image_id", "started_at"), "x")
        labels = {"org.spark-appliance.keep": digest}
        engine["data"]["containers"] = [
            container | {"state": "created", "exit_code": 0, "labels": labels}
        ]
        return engine

    engines = [HAS, keeper(DIGEST), keeper(f"sha256:{'7' * 64}"), LACKS, UNKNOWN]
    nodes = [node(f"n{rank}", rank, docker=engine) for rank, engine in enumerate(engines)]
    plans = plan_image(RELEASE, URL, nodes)
    assert [plan.keep for plan in plans.values()] == [True, False, True, False, False]
    assert [plan.needed for plan in plans.values()] == [False, False, False, True, True]


def test_layers_of_containerd_s_store_are_judged_where_they_lie() -> None:
    engine = docker()
    engine["data"] |= {"containerd_store": True, "image_dir": "/var/lib/containerd"}
    disks = disk(10**12)
    own = {"path": "/var/lib/containerd", "filesystem": "/small", "total_bytes": 10**12}
    disks["data"].append(own | {"free_bytes": 2 * IMAGE_BYTES + RESERVE_BYTES})
    assert judge_image_room(RELEASE, [node("a", 0, docker=engine, disk=disks)]) == []
    disks["data"][-1]["free_bytes"] -= 1
    (finding,) = judge_image_room(RELEASE, [node("a", 0, docker=engine, disk=disks)])
    assert "/var/lib/containerd" in finding.expected


def test_weights_that_a_node_has_already_come_from_it_and_not_from_outside() -> None:
    """Its fetch finds everything verified; a head that was installed anew receives."""
    held = [weights(), remembered(), weights(), remembered()]
    nodes = [node(name, rank, weights=held[rank]) for rank, name in enumerate("abcd")]
    plans = plan_weights(URL, WEIGHTS, nodes)
    assert roles(plans) == {"a": "nr", "b": "fs", "c": "nr", "d": ""}
    assert {plan.source for plan in plans.values()} == {"b"}
    assert plans["b"].rail_address == "198.51.100.12"


def test_a_head_that_receives_needs_room_even_from_a_folder_of_its_own() -> None:
    url = "file:///srv/weights"
    source = remembered(source=f"{url}#")
    nodes = [
        node(name, rank, weights=held, disk=disk(1), docker=HAS)
        for rank, (name, held) in enumerate((("a", weights()), ("b", source)))
    ]
    findings = judge_weights_room(WEIGHTS, 1, nodes, release=RELEASE, url=url)
    assert [finding.node for finding in findings] == ["a"]


def test_only_the_head_reads_a_folder_of_its_own() -> None:
    held = [weights(), remembered(source="hub://owner/name@0#m")]
    nodes = [node(name, rank, weights=held[rank]) for rank, name in enumerate("ab")]
    assert roles(plan_weights("file:///srv/weights", WEIGHTS, nodes, "m")) == {"a": "nf", "b": ""}
    assert roles(plan_weights(URL, WEIGHTS, nodes, "m")) == {"a": "nr", "b": "fs"}


WEIGHTS_BYTES = 379 * GIB  # of the checkpoint that R13 serves: 406,948,151,296 B
# What R13's image keeps of a disk once it is loaded, by store.
CLASSIC_BYTES = IMAGE_BYTES + ARCHIVE_BYTES
CONTAINERD_BYTES = 2 * IMAGE_BYTES + ARCHIVE_BYTES


def room(
    free_bytes: int,
    *,
    engine: dict[str, Any] = HAS,
    folder: dict[str, Any] | None = None,
    need_bytes: int | None = WEIGHTS_BYTES,
    url: str = URL,
) -> list[Finding]:
    """Return what is said of a head and a worker with such disks; the head comes first."""
    sections = {"disk": disk(free_bytes), "docker": engine, "weights": folder or weights()}
    nodes = [node(name, rank, **sections) for rank, name in enumerate("ab")]
    return judge_weights_room(WEIGHTS, need_bytes, nodes, release=RELEASE, url=url)


@pytest.mark.parametrize(
    ("free_bytes", "refused"),
    [
        # Delivered disks: 1 TB with 668 GiB free as in the field, 4 TB with 3.5 TiB.
        (668 * GIB, False),
        (3_584 * GIB, False),
        # A 1 TB disk that another copy of the weights fills already.
        (668 * GIB - WEIGHTS_BYTES, True),
        (WEIGHTS_BYTES + RESERVE_BYTES, False),
        (WEIGHTS_BYTES + RESERVE_BYTES - 1, True),
    ],
)
def test_each_node_that_fetches_or_receives_needs_room_for_the_weights(
    free_bytes: int, refused: bool
) -> None:
    findings = room(free_bytes)
    assert [finding.node for finding in findings] == ["a", "b"] * refused
    for finding in findings:
        assert finding.severity is Severity.ERROR
        assert finding.variable == "appliance_weights_dir"
        assert "379.0" in finding.expected
        assert "nothing was fetched" in finding.remedy


@pytest.mark.parametrize(
    ("containerd", "stays_bytes"), [(False, CLASSIC_BYTES), (True, CONTAINERD_BYTES)]
)
def test_image_and_weights_are_judged_together_where_they_share_a_disk(
    containerd: bool, stays_bytes: int
) -> None:
    engine = docker()
    engine["data"]["containerd_store"] = containerd
    enough = WEIGHTS_BYTES + stays_bytes + RESERVE_BYTES
    assert room(enough, engine=engine) == []
    assert "for the image" in room(enough - 1, engine=engine)[0].expected
    # Each alone would fit.
    assert room(enough - 1, engine=HAS) == []
    assert judge_image_room(RELEASE, [node("a", 0, docker=engine, disk=disk(enough - 1))]) == []


def test_what_an_interrupted_copy_stored_needs_no_room_again() -> None:
    left = 100 * GIB
    folder = weights(stored_bytes=WEIGHTS_BYTES - left)
    assert room(left + RESERVE_BYTES, folder=folder) == []
    assert len(room(left + RESERVE_BYTES - 1, folder=folder)) == 2


def test_weights_on_a_disk_of_their_own_are_judged_by_it() -> None:
    own: dict[str, Any] = {
        "path": WEIGHTS,
        "filesystem": "/data",
        "total_bytes": 4 * 10**12,
        "free_bytes": WEIGHTS_BYTES + RESERVE_BYTES,
    }
    folder = weights()
    folder["data"][WEIGHTS]["disk"] = own
    # The image shares the small disk, so it takes nothing of this one.
    assert room(60 * 10**9, engine=LACKS, folder=folder) == []
    own["free_bytes"] -= 1
    assert len(room(3 * 10**12, engine=LACKS, folder=folder)) == 2


def test_a_node_that_has_the_weights_needs_no_room() -> None:
    assert room(1, folder=remembered()) == []


def test_files_that_lie_on_the_head_already_are_judged_there() -> None:
    assert [finding.node for finding in room(1, url="file:///srv/weights")] == ["b"]


def test_an_unknown_size_is_said_and_refuses_nothing() -> None:
    (finding,) = room(1, need_bytes=None)
    assert finding.severity is Severity.WARNING
    assert finding.variable == "weights.size"
    assert room(1, need_bytes=None, folder=remembered()) == []


def test_progress_says_what_is_known() -> None:
    counters = {
        "stage": "fetch",
        "done_bytes": 3 << 30,
        "total_bytes": 4 << 30,
        "rate_bytes_s": 128 << 20,
        "remaining_s": 8,
    }
    line = "fetching 3.000 GiB of 4.000 GiB (75 %), 128.0 MiB/s, 8 s left"
    assert progress_line(counters) == line
    assert progress_line({}) == "starting"
    stalled = counters | {"rate_bytes_s": 0, "remaining_s": None}
    assert progress_line(stalled) == "fetching 3.000 GiB of 4.000 GiB (75 %)"


def test_time_left_is_short() -> None:
    assert [clock(s) for s in (59, 61, 4020)] == ["59 s", "1 min 01 s", "1 h 07 min"]
