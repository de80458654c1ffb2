# SPDX-License-Identifier: Apache-2.0
"""The facts of one node as types, one module a subject."""

from __future__ import annotations

from ansible_collections.spark.appliance.plugins.plugin_utils.facts.clock import (
    Power,
    Time,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.facts.docker import (
    Container,
    Docker,
    Image,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.facts.gpu import (
    Clocks,
    Gpu,
    Tenant,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.facts.identity import (
    Boot,
    Dgx,
    Identity,
    InstalledKernel,
    Kernel,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.facts.kernel_log import (
    KernelLog,
    Marker,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.facts.memory import (
    FstabSwap,
    Memory,
    Swap,
    SwapUnit,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.facts.network import (
    Address,
    Interface,
    Kept,
    Netplan,
    NetplanFile,
    Network,
    Profile,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.facts.node import (
    SCHEMA,
    NodeFacts,
    SectionUnknownError,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.facts.packages import (
    BrokenSource,
    Packages,
    Sources,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.facts.rdma import (
    Gid,
    Rdma,
    RdmaDevice,
    RdmaPort,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.facts.sockets import (
    Firewall,
    FirewallRule,
    Listener,
    Peer,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.facts.storage import (
    Disk,
    File,
    Launch,
    WeightDirectory,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.facts.systemd import (
    Avahi,
    Display,
    Process,
    Unit,
)

__all__ = [
    "SCHEMA",
    "Address",
    "Avahi",
    "Boot",
    "BrokenSource",
    "Clocks",
    "Container",
    "Dgx",
    "Disk",
    "Display",
    "Docker",
    "File",
    "Firewall",
    "FirewallRule",
    "FstabSwap",
    "Gid",
    "Gpu",
    "Identity",
    "Image",
    "InstalledKernel",
    "Interface",
    "Kept",
    "Kernel",
    "KernelLog",
    "Launch",
    "Listener",
    "Marker",
    "Memory",
    "Netplan",
    "NetplanFile",
    "Network",
    "NodeFacts",
    "Packages",
    "Peer",
    "Power",
    "Process",
    "Profile",
    "Rdma",
    "RdmaDevice",
    "RdmaPort",
    "SectionUnknownError",
    "Sources",
    "Swap",
    "SwapUnit",
    "Tenant",
    "Time",
    "Unit",
    "WeightDirectory",
]
