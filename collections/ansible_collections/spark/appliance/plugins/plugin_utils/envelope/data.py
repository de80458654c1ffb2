# SPDX-License-Identifier: Apache-2.0
"""An envelope as JSON data, for receipts; sizes are whole bytes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.kv_pool import KvPool
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.result import (
    Envelope,
    NodeEnvelope,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.terms import Term
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import ordered


def _terms(terms: tuple[Term, ...]) -> list[dict[str, Any]]:
    return [asdict(term) | {"grade": str(term.grade)} for term in terms]


def _pool(pool: KvPool) -> dict[str, Any]:
    return {
        "block_bytes": pool.geometry.block_bytes,
        "blocks": pool.blocks,
        "blocks_per_request": pool.blocks_per_request,
        "allocated_bytes": pool.allocated_bytes,
        "advertised_tokens": pool.advertised_tokens,
        "usable_tokens": pool.usable_tokens,
        "concurrency": round(float(pool.concurrency), 6),
        "bytes_per_token": float(pool.geometry.slope(pool.dcp)),
    }


def _node(node: NodeEnvelope) -> dict[str, Any]:
    memory = node.memory
    return {
        "node": memory.node,
        "role": str(memory.role),
        "total_bytes": memory.total_bytes,
        "available_bytes": memory.available_bytes,
        "before_start_bytes": memory.before_start_bytes,
        "free_bytes": memory.free_bytes,
        "cache_bytes": memory.cache_bytes,
        "swap_bytes": memory.swap_bytes,
        "floor_bytes": node.floor_bytes,
        "floor_source": node.floor_source,
        "admission_bytes": node.admission_bytes,
        "required_bytes": node.required_bytes,
        "expected_bytes": node.expected_bytes,
        "margin_bytes": node.margin_bytes,
        "grade": None if node.grade is None else str(node.grade),
        "stack": _terms(node.stack),
        "chain": _terms(node.chain),
        "returns": _terms(memory.returns),
        "tenants": _terms(memory.tenants),
    }


def as_data(envelope: Envelope) -> dict[str, Any]:
    """Return an envelope as data that ``json.dumps`` takes, without loss."""
    need = envelope.need
    return {
        "schema": 1,
        "profile": need.profile,
        "context_tokens": need.context_tokens,
        "kv_cache_bytes": need.kv_cache_bytes,
        "dcp": need.dcp,
        "max_seqs": need.max_seqs,
        "shapes": need.shapes,
        "utilization": None if need.utilization is None else str(need.utilization),
        "pool": None if envelope.pool is None else _pool(envelope.pool),
        "nodes": [_node(node) for node in envelope.nodes],
        "verdict": str(envelope.verdict),
        "fixes": [asdict(fix) for fix in envelope.fixes],
        "findings": [finding.as_dict() for finding in ordered(envelope.findings)],
    }
