# SPDX-License-Identifier: Apache-2.0
"""What a judgement of memory says: per node, per profile, and what would fix it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.kv_pool import KvPool
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.need import Need
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.node import NodeMemory
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.terms import (
    Term,
    total,
    weakest,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import Finding
from ansible_collections.spark.appliance.plugins.plugin_utils.receipt import Grade


class Verdict(StrEnum):
    """What the envelope says of a profile; only ``REFUSED`` stops, ``UNMEASURED`` asks."""

    MEASURED = "fits, measured"
    PROJECTED = "fits, projected"
    UNMEASURED = "unmeasured"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class NodeEnvelope:
    """The envelope of one node.

    Parameters:
        memory: the node as observed or as given.
        floor_bytes: the role's floor under the profile.
        floor_source: where the floor comes from.
        stack: what takes the node's memory under the profile, in bytes that are not negative.
        chain: signed terms whose sum is the expected least ``MemAvailable``; empty if unmeasured.
        admission_bytes: what must be free when the engine starts, None where it does not ask.
        counts_from_now: whether the chain starts at what the node has now, instead of at what the
            nodes of a reference run went down to.
        required_bytes: ``MemAvailable`` that must be there before the start, for the admission
            check and for what the engine takes above the floor: the measured demand, or the least
            that is known of it.
    """

    memory: NodeMemory
    floor_bytes: int
    floor_source: str
    stack: tuple[Term, ...]
    chain: tuple[Term, ...]
    admission_bytes: int | None
    required_bytes: int
    counts_from_now: bool

    @property
    def expected_bytes(self) -> int | None:
        """Expected least ``MemAvailable``; None when the profile is unmeasured."""
        return total(self.chain) if self.chain else None

    @property
    def margin_bytes(self) -> int | None:
        """Expected least ``MemAvailable`` over the floor; negative refuses."""
        expected = self.expected_bytes
        return None if expected is None else expected - self.floor_bytes

    @property
    def grade(self) -> Grade | None:
        """How well the expectation is known: measured, or projected by anything beside that."""
        if not self.chain:
            return None
        return Grade.MEASURED if weakest(self.chain) is Grade.MEASURED else Grade.PROJECTED


@dataclass(frozen=True, slots=True)
class Fix:
    """One change that would make the profile pass.

    Parameters:
        what: the change in words.
        change_bytes: signed bytes of the change, per rank or on the node that ``what`` names.
        kv_cache_bytes: the KV budget after the change, where that is what changes.
        context_tokens: the largest context that then passes.
    """

    what: str
    change_bytes: int
    kv_cache_bytes: int | None = None
    context_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Envelope:
    """The memory of a profile on given nodes.

    Parameters:
        need: the profile.
        pool: its KV pool; None when it cannot exist.
        nodes: one envelope for each node.
        verdict: see :class:`Verdict`.
        fixes: changes that would make a refused profile pass.
        findings: everything that did not come out clean.
    """

    need: Need
    pool: KvPool | None
    nodes: tuple[NodeEnvelope, ...]
    verdict: Verdict
    fixes: tuple[Fix, ...]
    findings: tuple[Finding, ...]
