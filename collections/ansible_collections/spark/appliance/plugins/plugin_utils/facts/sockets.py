# SPDX-License-Identifier: Apache-2.0
"""Who may reach the node, who listens and who is connected."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FirewallRule:
    """One rule of ufw."""

    action: str
    protocol: str
    port: str
    destination: str
    source: str
    interface: str


@dataclass(frozen=True, slots=True)
class Firewall:
    """The state of ufw, from its files."""

    installed: bool
    enabled: bool
    input_policy: str
    rules: tuple[FirewallRule, ...]


@dataclass(frozen=True, slots=True)
class Listener:
    """One listening TCP socket."""

    address: str
    port: int
    process: str | None
    pid: int | None

    @property
    def wildcard(self) -> bool:
        """Whether the socket takes connections on every address."""
        return self.address in {"0.0.0.0", "::"}  # noqa: S104 -- compared with, not bound to


@dataclass(frozen=True, slots=True)
class Peer:
    """The remote end of an established connection."""

    address: str
    port: int
