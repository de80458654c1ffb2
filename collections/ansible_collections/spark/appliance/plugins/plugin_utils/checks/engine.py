# SPDX-License-Identifier: Apache-2.0
"""Docker, the image and the weights, as each node holds them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from ansible_collections.spark.appliance.plugins.module_utils._supply.image_load import KEEP_LABEL
from ansible_collections.spark.appliance.plugins.plugin_utils.checks.context import Context
from ansible_collections.spark.appliance.plugins.plugin_utils.checks.registry import (
    HOST,
    STAGED,
    Problem,
    Scope,
    check,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.facts import Image, NodeFacts
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import Severity
from ansible_collections.spark.appliance.plugins.plugin_utils.units import GIB, format_size

# Full disks make Docker fail in ways that do not name the disk; 5 GiB hold logs and JIT caches.
LEAST_FREE_BYTES = 5 * GIB


@check(
    "docker.engine",
    "the container engine is the distribution's or Docker's own",
    scope=Scope.NODE,
    phases=HOST,
    remedy="remove the snap (snap remove docker) and install docker-ce or docker.io",
    cases=("DKR-02", "DKR-06", "IMG-13"),
)
def engine(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """A snap's confinement keeps the driver's libraries from the containers."""
    del context
    if node.docker.origin == "snap":
        yield Problem(expected="docker-ce or docker.io", found=f"snap ({node.docker.root_dir})")
    elif node.packages.snap_docker:
        yield Problem(expected="one engine", found="the snap's beside the package's")


@check(
    "docker.cdi",
    "the generated device specification names the loaded driver",
    scope=Scope.NODE,
    phases=HOST,
    remedy="nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml, or reboot if a driver waits",
    cases=("DKR-01", "DKR-04"),
)
def cdi(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """The specification mounts libraries by driver version and goes stale with an upgrade.

    A missing ``nvidia`` runtime is no fault: GPUs reach containers without it.
    """
    del context
    versions = node.docker.cdi_driver_versions
    if versions and node.gpu.count and node.gpu.driver_version not in versions:
        yield Problem(
            expected=f"libraries of driver {node.gpu.driver_version}",
            found=f"of {', '.join(versions)}",
        )


@check(
    "disk.space",
    "no file system that the appliance writes to is full",
    scope=Scope.NODE,
    phases=HOST,
    remedy="free disk space",
    cases=("IMG-06", "IMG-07", "WGT-05"),
)
def space(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """What image and weights need is planned by their roles; this is what running needs."""
    del context
    seen: set[str] = set()
    for disk in node.disk:
        if disk.filesystem not in seen and disk.free_bytes < LEAST_FREE_BYTES:
            seen.add(disk.filesystem)
            yield Problem(
                expected=f"{format_size(LEAST_FREE_BYTES)} free under {disk.path}",
                found=f"{format_size(disk.free_bytes)} of {format_size(disk.total_bytes)}",
            )


def _pinned(node: NodeFacts, context: Context) -> Image | None:
    wanted = context.require(context.image, "image")
    return next(
        (image for image in node.docker.images if image.config_digest == wanted.config_digest),
        None,
    )


@check(
    "image.present",
    "the pinned image is on the node",
    scope=Scope.NODE,
    phases=STAGED,
    repaired_by="image",
    remedy="run playbooks/image.yml",
    cases=("IMG-01", "IMG-06", "IMG-09", "IMG-11", "IMG-12", "ANS-10"),
)
def image_present(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """The config digest identifies the image on both stores; a tag identifies nothing."""
    wanted = context.require(context.image, "image")
    if _pinned(node, context) is not None:
        return
    unresolved = [image.id for image in node.docker.images if image.config_digest is None]
    store = "containerd" if node.docker.containerd_store else "classic"
    found = f"not among {len(node.docker.images)} images of the {store} store"
    if unresolved:
        found += f", of which {len(unresolved)} do not tell their config digest"
    yield Problem(expected=wanted.config_digest, found=found, variable="image.release")


@check(
    "image.architecture",
    "the image runs on the node's processor",
    scope=Scope.NODE,
    phases=STAGED,
    remedy="take the release for this architecture",
    cases=("IMG-08",),
)
def architecture(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """An image for another processor fails with an exec format error in a loop."""
    wanted = context.require(context.image, "image")
    image = _pinned(node, context)
    if image is not None and (image.architecture, image.os) != (wanted.architecture, "linux"):
        yield Problem(
            expected=f"linux/{wanted.architecture}", found=f"{image.os}/{image.architecture}"
        )


@check(
    "image.layers",
    "the image has the release's layers",
    scope=Scope.NODE,
    phases=STAGED,
    remedy="remove the image and run playbooks/image.yml",
    cases=("IMG-01",),
)
def layers(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """Layer digests are the same on both stores, where the image's id is not."""
    wanted = context.require(context.image, "image").layers
    image = _pinned(node, context)
    if wanted and image is not None and image.layers != wanted:
        yield Problem(
            expected=f"{len(wanted)} pinned layers",
            found=f"{len(image.layers)} layers, {len(set(wanted) - set(image.layers))} missing",
        )


@check(
    "image.kept",
    "the image is protected from docker image prune",
    severity=Severity.WARNING,
    scope=Scope.NODE,
    phases=STAGED,
    repaired_by="image",
    remedy="run playbooks/image.yml",
)
def kept(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """Between two starts no other container holds the image, and prune --all takes it."""
    wanted = context.require(context.image, "image").config_digest
    holders = {entry.labels.get(KEEP_LABEL) for entry in node.docker.containers}
    if _pinned(node, context) is not None and wanted not in holders:
        yield Problem(expected=f"a container with label {KEEP_LABEL}={wanted}", found="none")


@check(
    "image.same_tag",
    "one tag means one image on all nodes",
    severity=Severity.WARNING,
    scope=Scope.FLEET,
    phases=HOST,
    remedy="load the pinned image on every node; never start by tag",
    cases=("IMG-12",),
)
def same_tag(context: Context) -> Iterator[Problem]:
    """A rebuild under the same tag leaves nodes with different images and one name.

    Layers stand in for a config digest that a store does not tell.
    """
    tags: dict[str, list[tuple[str, Image]]] = {}
    for name, docker in context.known("docker"):
        for image in docker.images:
            for tag in image.tags:
                tags.setdefault(tag, []).append((name, image))
    for tag, holders in tags.items():
        for what, identity in (
            ("image", {name: image.config_digest for name, image in holders}),
            ("set of layers", {name: _layers_digest(image) for name, image in holders}),
        ):
            owners: dict[str, list[str]] = {}
            for name, digest in identity.items():
                if digest is not None:
                    owners.setdefault(digest, []).append(name)
            if len(owners) > 1:
                listing = "; ".join(
                    f"{digest[7:19]} on {', '.join(names)}" for digest, names in owners.items()
                )
                yield Problem(expected=f"one {what} behind {tag}", found=listing)
                break


def _layers_digest(image: Image) -> str:
    return "sha256:" + hashlib.sha256("\n".join(image.layers).encode()).hexdigest()


@check(
    "weights.complete",
    "the weights are on the node and complete",
    scope=Scope.NODE,
    phases=STAGED,
    repaired_by="weights",
    remedy="run playbooks/weights.yml; what is verified is not fetched again",
    cases=("WGT-01", "WGT-02", "WGT-03"),
)
def weights(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """Shards are compared with the index of the checkpoint; digests are the weights role's."""
    path = context.site.weights_dir
    found = node.weights.get(path)
    if found is None:
        yield Problem(expected=f"an observation of {path}", found="the module was not asked for it")
        return
    if not found.exists:
        yield Problem(expected=f"directory {path}", found="nothing there")
        return
    if not found.config or found.shards == 0:
        yield Problem(
            expected=f"config.json and safetensors files in {path}",
            found=f"{found.shards} shards, {'a' if found.config else 'no'} config.json",
        )
    elif not found.indexed and (found.numbered or found.shards > 1):
        yield Problem(
            expected=f"model.safetensors.index.json in {path}, which lists the shards",
            found=f"{found.shards} shards and no index",
        )
    for label, names in (
        (f"all {found.shards_listed or 0} shards that the index lists", found.missing),
        ("no unfinished download", found.incomplete),
        ("no empty shard", found.empty),
    ):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            yield Problem(expected=label, found=", ".join(names[:3]) + more)
    # A link's own size says nothing of its target's, and a missing shard is told above.
    complete = not found.missing and not found.links
    if complete and found.tensor_bytes is not None and found.shard_bytes < found.tensor_bytes:
        yield Problem(
            expected=f"at least {format_size(found.tensor_bytes)} in shards",
            found=format_size(found.shard_bytes),
        )


@check(
    "weights.same",
    "all nodes hold the same weights",
    scope=Scope.FLEET,
    phases=STAGED,
    repaired_by="weights",
    remedy="run playbooks/weights.yml",
    cases=("WGT-01",),
)
def weights_same(context: Context) -> Iterator[Problem]:
    """A rank with other weights than its peers fails late, or answers nonsense."""
    path = context.site.weights_dir
    sizes = {
        name: (directory.shards, directory.shard_bytes)
        for name, weights in context.known("weights")
        if (directory := weights.get(path)) is not None and directory.exists
    }
    if len(set(sizes.values())) > 1:
        listing = ", ".join(
            f"{name} {shards} shards, {size:,} B" for name, (shards, size) in sizes.items()
        )
        yield Problem(expected=f"the same shards in {path}", found=listing)
