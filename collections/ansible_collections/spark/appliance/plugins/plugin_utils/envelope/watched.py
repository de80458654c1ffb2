# SPDX-License-Identifier: Apache-2.0
"""What a node's watch has written → what gates and the ledger take."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Literal

from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.gates import Watched
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.kv_pool import KvPool
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.ledger import LedgerEntry
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.need import Need
from ansible_collections.spark.appliance.plugins.plugin_utils.recipe_memory import Role


class WatchError(ValueError):
    """A node without a watch, or one whose watch saw nothing of this launch."""


def _watch(node: str, result: Mapping[str, Any]) -> Mapping[str, Any]:
    watch = result.get("watch")
    if not isinstance(watch, Mapping) or not watch.get("samples") or not watch.get("before"):
        raise WatchError(f"{node}: its memory watch has seen nothing")
    return watch


def as_watched(node: str, result: Mapping[str, Any], launch: str) -> Watched:
    """Return a watch for the gate after the start.

    Parameters:
        node: inventory name.
        result: what module ``memory_watch`` returned.
        launch: id of the launch that is judged.

    Raises:
        WatchError: nothing was seen, or it was another launch.
    """
    watch = _watch(node, result)
    if watch["launch"] != launch:
        raise WatchError(f"{node}: its memory watch is of launch {watch['launch']}, not {launch}")
    return Watched(
        min_available_bytes=int(watch["min_available"]["bytes"]),
        min_free_bytes=int(watch["min_free"]["bytes"]),
        samples=int(watch["samples"]),
        active=bool(result.get("active")),
    )


def as_entry(
    need: Need,
    pool: KvPool,
    roles: Mapping[str, Role],
    results: Mapping[str, Mapping[str, Any]],
    *,
    launch: str,
    recipe_digest: str,
    image: str,
    now: datetime,
    outcome: Literal["served", "killed"],
) -> LedgerEntry:
    """Return the ledger's entry of a launch.

    Parameters:
        need: the profile that was served.
        pool: its KV pool.
        roles: role of every node, in rank order.
        results: what module ``memory_watch`` returned, by node.
        launch: id of the launch.
        recipe_digest: digest of the parsed recipe.
        image: config digest of the image.
        now: the control node's clock, with a zone.
        outcome: whether it served until the watch ended.

    Raises:
        WatchError: a node's watch saw nothing, or was of another launch.
    """
    nodes = []
    shares: list[float] = []
    seconds = 0.0
    for node, role in roles.items():
        result = results.get(node, {})
        as_watched(node, result, launch)
        watch = _watch(node, result)
        seconds = max(seconds, float(watch["watched_s"]))
        if watch["peak_kv_share"] is not None:
            shares.append(float(watch["peak_kv_share"]))
        nodes.append(
            {
                "name": node,
                "role": role,
                "available_before": f"{watch['before']['available_bytes']} B",
                "min_available": f"{watch['min_available']['bytes']} B",
                "min_available_at_seconds": watch["min_available"]["at_s"],
                "min_available_kv_share": watch["min_available"]["kv_share"],
                "min_free": f"{watch['min_free']['bytes']} B",
                "min_free_at_seconds": watch["min_free"]["at_s"],
                "samples": watch["samples"],
                "watched_seconds": watch["watched_s"],
            }
        )
    return LedgerEntry.model_validate(
        {
            "launch": launch,
            "recipe_digest": recipe_digest,
            "image": image,
            "profile": need.profile,
            "context_tokens": need.context_tokens,
            "kv_cache_bytes": need.kv_cache_bytes,
            "dcp": need.dcp,
            "max_seqs": need.max_seqs,
            "shapes": need.shapes,
            "started": now - timedelta(seconds=seconds),
            "peak_kv_share": max(shares, default=None),
            "usable_tokens": pool.usable_tokens,
            "outcome": outcome,
            "nodes": nodes,
        }
    )
