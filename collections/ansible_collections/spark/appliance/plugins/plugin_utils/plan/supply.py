# SPDX-License-Identifier: Apache-2.0
"""What each node lacks of the image and of the weights, and who gets it from whom.

One node, the source, fetches from outside; the others receive from it over rail A. A node that
has everything takes no part, unless it is the source of one that does not. The source is the first
node that has the files already, the head where none has.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ansible_collections.spark.appliance.plugins.module_utils._supply.image_load import KEEP_LABEL
from ansible_collections.spark.appliance.plugins.plugin_utils.facts import (
    Disk,
    NodeFacts,
    SectionUnknownError,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import Finding, Severity
from ansible_collections.spark.appliance.plugins.plugin_utils.release import Release
from ansible_collections.spark.appliance.plugins.plugin_utils.units import GIB, format_bytes

STATE = "/var/lib/spark-appliance"
# What a disk keeps for logs, journals and the compile cache.
RESERVE_BYTES = 2 * GIB


@dataclass(frozen=True, slots=True)
class SupplyNode:
    """One node as supply sees it.

    Parameters:
        name: inventory name.
        rail_address: its address on rail A, without prefix length.
        facts: what it said of itself.
    """

    name: str
    rail_address: str
    facts: NodeFacts


@dataclass(frozen=True, slots=True)
class SupplyPlan:
    """What one node does; roles ``image`` and ``weights`` take it as a dictionary.

    Parameters:
        needed: this node lacks what is supplied.
        fetch: it fetches from outside.
        receive: it fetches from the source over the rail.
        share: it is the source of others.
        keep: it has the image, and nothing protects that from being pruned.
        source: inventory name of the source, empty where nobody lacks anything.
        rail_address: where it shares.
        url: folder outside.
        label: what the files are remembered by: the address and the digest that pins them, so that
            another release behind the same address is fetched anew.
        manifest_sha256: digest of the list of files, empty where none is pinned.
        folder: folder on the node.
        checksums: checksum file in the folder outside.
        parts: naming of an archive's parts; None for a set that the checksum file lists.
        part_names: the parts in joining order.
        image: what the archive must hold; None for weights.
        release: name of the release's description; empty for weights.
    """

    needed: bool = False
    fetch: bool = False
    receive: bool = False
    share: bool = False
    keep: bool = False
    source: str = ""
    rail_address: str = ""
    url: str = ""
    label: str = ""
    manifest_sha256: str = ""
    folder: str = ""
    checksums: str = "SHA256SUMS"
    parts: dict[str, Any] | None = None
    part_names: tuple[str, ...] = ()
    image: dict[str, Any] | None = None
    release: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain data for a role."""
        return asdict(self) | {"part_names": list(self.part_names)}


def has_image(release: Release, facts: NodeFacts) -> bool:
    """Tell whether a node has the release's image under its name; unknown counts as no."""
    try:
        images = facts.docker.images
    except SectionUnknownError:
        return False
    return any(
        image.config_digest == release.image.config_digest and release.image.reference in image.tags
        for image in images
    )


def _keeps_image(release: Release, facts: NodeFacts) -> bool:
    """Tell whether a container protects the image from being pruned; unknown counts as yes."""
    try:
        containers = facts.docker.containers
    except SectionUnknownError:
        return True
    return any(
        container.labels.get(KEEP_LABEL) == release.image.config_digest for container in containers
    )


def source_label(url: str, manifest_sha256: str) -> str:
    """Return what a set of weights is remembered by: its address, and the digest where pinned."""
    return f"{url.rstrip('/')}#{manifest_sha256}"


def has_weights(directory: str, facts: NodeFacts, url: str, manifest_sha256: str) -> bool:
    """Tell whether a node's weights are whole, verified and untouched; unknown counts as no.

    Parameters:
        directory: folder of the weights on the node.
        facts: what the node said.
        url: where the weights come from; it tells sets apart where no digest is pinned.
        manifest_sha256: digest of the list of files, empty where the recipe pins none.
    """
    try:
        folder = facts.weights.get(directory)
    except SectionUnknownError:
        return False
    verified = folder.verified if folder is not None else None
    if not isinstance(verified, dict) or verified.get("changed") or not verified.get("whole"):
        return False
    if manifest_sha256:
        return bool(verified.get("manifest_sha256") == manifest_sha256)
    return bool(verified.get("source") == source_label(url, ""))


def _remembered_source(directory: str, facts: NodeFacts) -> str:
    folder = facts.weights.get(directory)
    verified = folder.verified if folder is not None else None
    return str(verified.get("source")) if isinstance(verified, dict) else ""


def _distribute(
    nodes: Sequence[SupplyNode], lacking: Sequence[str], common: SupplyPlan, source: str
) -> dict[str, SupplyPlan]:
    if not lacking:
        return {node.name: common for node in nodes}
    receivers = [name for name in lacking if name != source]
    return {
        node.name: replace(
            common,
            needed=node.name in lacking,
            fetch=node.name == source,
            receive=node.name in receivers,
            share=node.name == source and bool(receivers),
            source=source,
            rail_address=node.rail_address,
        )
        for node in nodes
    }


def _only_head_reads(url: str) -> bool:
    return url.startswith("file:")


def _parts_folder(release: Release) -> str:
    return f"{release.name}-{release.image.config_digest.removeprefix('sha256:')[:12]}"


def plan_image(release: Release, url: str, nodes: Sequence[SupplyNode]) -> dict[str, SupplyPlan]:
    """Return each node's part in bringing the image.

    Parameters:
        release: what is wanted.
        url: folder outside that holds the parts and their checksum file.
        nodes: all nodes, the head first.
    """
    lacking = [node.name for node in nodes if not has_image(release, node.facts)]
    # Docker does not give an image's parts back: who has the image need not have them. Whether they
    # are right is proven by whoever hands them out.
    holding = [
        node.name
        for node in nodes
        if not _only_head_reads(url)
        and _stored_parts_bytes(release, node.facts) >= release.archive_bytes
    ]
    image = release.image
    plans = _distribute(
        nodes,
        lacking,
        SupplyPlan(
            url=url,
            label=f"{url.rstrip('/')}#{release.image.config_digest}",
            folder=posixpath.join(STATE, "parts", _parts_folder(release)),
            checksums=release.checksums,
            parts={
                "archive": release.archive,
                "count": release.parts.count,
                "digits": release.parts.digits,
            },
            part_names=tuple(release.part_names()),
            image={
                "reference": image.reference,
                "config_digest": image.config_digest,
                "architecture": image.architecture,
                "os": image.os,
                "size_bytes": image.size_bytes,
            },
            release=release.name,
        ),
        (holding or [nodes[0].name])[0],
    )
    return {
        node.name: replace(
            plans[node.name],
            keep=node.name not in lacking and not _keeps_image(release, node.facts),
        )
        for node in nodes
    }


def _stored_parts_bytes(release: Release, facts: NodeFacts) -> int:
    """Return what a node holds of the parts, whole or not; unknown counts as nothing."""
    try:
        state = next((disk for disk in facts.disk if disk.path == STATE), None)
    except SectionUnknownError:
        return 0
    return state.parts.get(_parts_folder(release), 0) if state is not None else 0


def _weights_source(
    nodes: Sequence[SupplyNode], directory: str, url: str, manifest_sha256: str
) -> str:
    """Return the first node that has the weights, so that nothing comes from outside twice.

    Who has them from elsewhere asks the source for its list of files again, which must be within
    its reach.
    """
    label = source_label(url, manifest_sha256)
    for node in nodes:
        if has_weights(directory, node.facts, url, manifest_sha256) and (
            not _only_head_reads(url) or _remembered_source(directory, node.facts) == label
        ):
            return node.name
    return nodes[0].name


def plan_weights(
    url: str, directory: str, nodes: Sequence[SupplyNode], manifest_sha256: str = ""
) -> dict[str, SupplyPlan]:
    """Return each node's part in bringing the weights.

    Parameters:
        url: folder outside that holds the files and their checksum file.
        directory: folder on the nodes.
        nodes: all nodes, the head first.
        manifest_sha256: digest of the list of files, where the recipe pins one.
    """
    lacking = [
        node.name for node in nodes if not has_weights(directory, node.facts, url, manifest_sha256)
    ]
    return _distribute(
        nodes,
        lacking,
        SupplyPlan(
            url=url,
            label=source_label(url, manifest_sha256),
            manifest_sha256=manifest_sha256,
            folder=directory,
        ),
        _weights_source(nodes, directory, url, manifest_sha256),
    )


def image_room_bytes(release: Release, *, same_disk: bool, stored_bytes: int = 0) -> int:
    """Return what the disk of a node's images must have free to take the image, in bytes.

    Parameters:
        release: what is wanted.
        same_disk: the parts lie on that disk, as on a Spark with its one partition.
        stored_bytes: what an earlier fetch brought of the parts.

    Formula: 2 · unpacked image + reserve, plus the parts where they share the disk. Both stores
    hold the image twice while they load it: the classic one unpacks the archive to a temporary
    folder before it extracts the layers, containerd's keeps blobs beside extracted snapshots.
    """
    parts = max(0, release.archive_bytes - stored_bytes) if same_disk else 0
    return 2 * release.image.size_bytes + parts + RESERVE_BYTES


def judge_image_room(release: Release, nodes: Sequence[SupplyNode]) -> list[Finding]:
    """Return a refusal for each node that lacks the image and the room for it."""
    findings = []
    for node in nodes:
        if has_image(release, node.facts):
            continue
        try:
            disks = {disk.path: disk for disk in node.facts.disk}
            root = node.facts.docker.image_dir
        except SectionUnknownError:
            # The loader judges again on the node itself, before it writes.
            continue
        disk, state = disks.get(root), disks.get(STATE)
        if disk is None:
            continue
        same = state is None or state.filesystem == disk.filesystem
        stored = _stored_parts_bytes(release, node.facts)
        need = image_room_bytes(release, same_disk=same, stored_bytes=stored)
        if disk.free_bytes < need:
            findings.append(
                Finding(
                    check="image.room",
                    node=node.name,
                    severity=Severity.ERROR,
                    title="room for the image",
                    expected=f"{format_bytes(need)} free at {root}",
                    found=format_bytes(disk.free_bytes),
                    remedy="free space there, or move the images to a larger disk",
                )
            )
    return findings


def judge_weights_room(
    directory: str,
    need_bytes: int | None,
    nodes: Sequence[SupplyNode],
    *,
    release: Release,
    url: str,
    manifest_sha256: str = "",
) -> list[Finding]:
    """Return a refusal for each node that lacks the weights and the room for them.

    Parameters:
        directory: folder of the weights on the nodes.
        need_bytes: size of the whole set; None where the recipe does not say it.
        nodes: all nodes, the head first.
        release: the image, which comes before the weights and stays beside them.
        url: where the weights come from.
        manifest_sha256: digest of the list of files, where the recipe pins one.

    What lies in the folder counts as fetched. Files of a ``file://`` folder need no room on the
    head where they lie on the same disk, which the head alone can tell: it judges that itself.
    """
    lacking = [
        node for node in nodes if not has_weights(directory, node.facts, url, manifest_sha256)
    ]
    if need_bytes is None:
        return [_unknown_size()] if lacking else []
    findings = []
    source = _weights_source(nodes, directory, url, manifest_sha256)
    for node in lacking:
        if node.name == source and url.startswith("file:"):
            continue
        try:
            folder = node.facts.weights.get(directory)
            disk = folder.disk if folder is not None else None
            disk = disk or _disk_of(directory, node.facts)
        except SectionUnknownError:
            # The fetch judges again on the node itself, before it writes.
            continue
        if disk is None:
            continue
        rest = max(0, need_bytes - (folder.stored_bytes if folder is not None else 0))
        image = _image_stays_bytes(release, disk, node.facts)
        if disk.free_bytes < rest + image + RESERVE_BYTES:
            beside = f", {format_bytes(image)} for the image" if image else ""
            findings.append(
                Finding(
                    check="weights.room",
                    node=node.name,
                    severity=Severity.ERROR,
                    title="room for the weights",
                    expected=(
                        f"{format_bytes(rest + image + RESERVE_BYTES)} free at {directory}: "
                        f"{format_bytes(rest)} for the weights{beside}, the rest to spare"
                    ),
                    found=f"{format_bytes(disk.free_bytes)} of {format_bytes(disk.total_bytes)}",
                    remedy="free space there, or choose another disk; nothing was fetched",
                    variable="appliance_weights_dir",
                )
            )
    return findings


def _unknown_size() -> Finding:
    return Finding(
        check="weights.room",
        node="",
        severity=Severity.WARNING,
        title="room for the weights is judged before the image is fetched",
        expected="the size of the weights, with its source",
        found="none in the recipe",
        remedy="set both; without them each node judges once the source has told it the sizes",
        variable="weights.size",
    )


def _disk_of(directory: str, facts: NodeFacts) -> Disk | None:
    """Return the disk that holds a folder, as far as the facts tell."""
    holding = [
        disk for disk in facts.disk if posixpath.commonpath([disk.path, directory]) == disk.path
    ]
    return max(holding, key=lambda held: len(held.path), default=None)


def _image_stays_bytes(release: Release, disk: Disk, facts: NodeFacts) -> int:
    """Return what the image will still have taken of a disk once it is loaded, 0 where it is there.

    The classic store keeps it once, containerd's twice: as blobs and as snapshots.
    """
    if has_image(release, facts):
        return 0
    disks = {entry.path: entry for entry in facts.disk}
    try:
        root, copies = disks.get(facts.docker.image_dir), 2 if facts.docker.containerd_store else 1
    except SectionUnknownError:
        root, copies = disk, 2
    state = disks.get(STATE)
    held = 0
    if root is None or root.filesystem == disk.filesystem:
        held += copies * release.image.size_bytes
    if state is None or state.filesystem == disk.filesystem:
        held += max(0, release.archive_bytes - _stored_parts_bytes(release, facts))
    return held
