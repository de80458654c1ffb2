# SPDX-License-Identifier: Apache-2.0
"""System, kernel, driver and packages: what an upgrade changed, and what the next boot will."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ansible_collections.spark.appliance.plugins.plugin_utils.checks.context import Context
from ansible_collections.spark.appliance.plugins.plugin_utils.checks.registry import (
    HOST,
    Phase,
    Problem,
    Scope,
    check,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.facts import NodeFacts
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import Severity

# Kernels that are known to keep memory from the GPU driver; compared whole, so that
# 7.0.0-10190 is not taken for 7.0.0-1019.
HELD_OFF_KERNELS = frozenset({"7.0.0-1019"})
# The branch that DGX OS 7 ships and supports.
SUPPORTED_BRANCH = "580"
# Modules without which a node does not come back as a rank; the rest is judged where it is used.
BOOT_MODULES = ("nvidia", "mlx5_core")
WIFI_DRIVER, WIFI_INTERFACE = "mt7925e", "wlP9s9"


def kernel_release(version: str) -> str:
    """Return a kernel version without its flavour: ``7.0.0-1019`` of ``7.0.0-1019-nvidia``."""
    match = re.match(r"\d+\.\d+\.\d+-\d+(?!\d)", version)
    return match.group() if match else version


@check(
    "upgrade.kernel_held_off",
    "no kernel on the hold-off list runs or comes next",
    scope=Scope.NODE,
    phases=HOST,
    own_kernel=True,
    remedy="boot an older kernel and hold it until a fixed one is out",
    cases=("UPG-05", "MEM-06"),
)
def kernel_held_off(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """The kernel that would come up after the next boot counts like the one that runs."""
    del context
    kernel = node.identity.kernel
    versions = {"running": kernel.running}
    if kernel.next and kernel.next != kernel.running:
        versions["next"] = kernel.next
    for when, version in versions.items():
        if kernel_release(version) in HELD_OFF_KERNELS:
            yield Problem(expected="a kernel off the list", found=f"{when}: {version}")


@check(
    "upgrade.next_boot",
    "the next kernel can start the node",
    scope=Scope.NODE,
    phases=frozenset({Phase.GATE, Phase.VERIFY}),
    own_kernel=True,
    remedy="finish the kernel's installation (dpkg --configure -a, update-initramfs -c -k VERSION) "
    "before any reboot",
    cases=("UPG-09", "UPG-16"),
)
def next_boot(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """An upgrade can leave the default entry without initrd or without modules."""
    del context
    boot = node.boot
    kernel = next((entry for entry in boot.kernels if entry.version == boot.next), None)
    if kernel is None:
        yield Problem(
            expected="the next kernel in /boot", found=f"{boot.next or 'none'} is not there"
        )
        return
    if not kernel.initrd:
        yield Problem(expected=f"/boot/initrd.img-{kernel.version}", found="missing")
    if not kernel.modules_dir:
        yield Problem(expected=f"modules of {kernel.version}", found="no /lib/modules folder")
        return
    missing = [name for name in BOOT_MODULES if not kernel.modules.get(name)]
    if missing:
        yield Problem(expected=f"modules for {kernel.version}", found=f"no {', '.join(missing)}")
    if node.network.control_interface == WIFI_INTERFACE and not kernel.modules.get(WIFI_DRIVER):
        yield Problem(
            expected=f"{WIFI_DRIVER} for {kernel.version}, since the node is managed over Wi-Fi",
            found="missing",
        )


@check(
    "upgrade.gpu",
    "the driver finds its GPU",
    scope=Scope.NODE,
    phases=HOST,
    remedy="complete the system update (dashboard or dist-upgrade, never a plain apt upgrade) so "
    "that driver and firmware match, then reboot",
    cases=("UPG-01",),
)
def gpu(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """A driver newer than the GPU's firmware lists no device, or runs into GSP timeouts."""
    del context
    if node.gpu.count < 1:
        yield Problem(expected="one GPU", found="nvidia-smi lists none")


@check(
    "upgrade.gsp",
    "the GPU's firmware answers",
    scope=Scope.NODE,
    phases=HOST,
    own_kernel=True,
    remedy="complete the system update and reboot; keep the peers on the old version until then",
    cases=("UPG-01",),
)
def gsp(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """Xid 119 is the driver waiting for firmware that no longer answers."""
    del context
    marker = node.kernel_log.marker("gpu-xid")
    if marker is not None and marker.detail == "119":
        yield Problem(expected="no Xid 119", found=f"{marker.count} Xid lines in this boot")


@check(
    "upgrade.reboot_pending",
    "no reboot is pending",
    severity=Severity.WARNING,
    scope=Scope.NODE,
    phases=HOST,
    own_kernel=True,
    remedy="reboot all nodes as a group before a new profile is started",
    cases=("UPG-04",),
)
def reboot_pending(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """A loaded driver that differs from the installed one, or another kernel next, wait for it."""
    del context
    installed, loaded = node.packages.driver_installed, node.gpu.loaded_driver_version
    if installed and loaded and installed != loaded:
        yield Problem(
            expected=f"driver {installed} loaded, as installed",
            found=f"{loaded} loaded",
            severity=Severity.ERROR,
        )
    kernel = node.identity.kernel
    if kernel.next and kernel.next != kernel.running:
        yield Problem(expected=f"kernel {kernel.next} running, as it comes next",
                      found=kernel.running)  # fmt: skip
    elif node.boot.reboot_required:
        yield Problem(
            expected="no /run/reboot-required",
            found=", ".join(node.boot.reboot_packages) or "the marker, naming no package",
        )


@check(
    "upgrade.driver_branch",
    "one supported driver branch is installed",
    severity=Severity.WARNING,
    scope=Scope.NODE,
    phases=HOST,
    remedy="pin the CUDA repository below the system's own for nvidia-driver-*, not for "
    "nvidia-container-toolkit",
    cases=("UPG-07", "UPG-14"),
)
def driver_branch(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """Another branch, server packages or an unpinned CUDA repository break the next update."""
    branch = context.needs.driver_branch or SUPPORTED_BRANCH
    foreign = [
        name for name in node.packages.driver_packages
        if not name.startswith(f"nvidia-driver-{branch}") or "-server" in name
    ]  # fmt: skip
    foreign += [name for name in node.packages.versions if _server_only(name)]
    if foreign:
        yield Problem(
            expected=f"driver packages of branch {branch} only", found=", ".join(sorted(foreign))
        )
    pinned = " ".join(node.packages.sources.pinned)
    if node.packages.sources.cuda_repository and "nvidia-driver" not in pinned:
        yield Problem(
            expected="a pin that keeps the CUDA repository from replacing the driver",
            found="the CUDA repository without one",
            # What apt would choose is not asked, so this is a possibility and no fault yet.
            severity=Severity.INFO,
        )


def _server_only(name: str) -> bool:
    return name.startswith("nvidia-fabricmanager") or name.endswith("-server")


@check(
    "upgrade.options_package",
    "the vendor's Docker options are installed",
    severity=Severity.WARNING,
    scope=Scope.NODE,
    phases=HOST,
    own_kernel=True,
    remedy="apt-get install nv-docker-options",
    cases=("DKR-05",),
)
def options_package(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """An update can drop the package that limits Docker's resource options on DGX OS."""
    del context
    versions = node.packages.versions
    vendor_docker = node.identity.dgx.present and "nv-docker-gpus" in versions
    if vendor_docker and "nv-docker-options" not in versions:
        yield Problem(expected="nv-docker-options beside nv-docker-gpus", found="missing")


@check(
    "upgrade.sources",
    "every package source is one",
    scope=Scope.NODE,
    phases=HOST,
    remedy="remove the file and fetch the repository's list again",
    cases=("UPG-12",),
)
def sources(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """A web page saved as a list stops every later installation."""
    del context
    for source in node.packages.sources.broken:
        yield Problem(
            expected=f"deb or Types: at the start of {source.path}", found=source.first_line
        )


@check(
    "upgrade.package_manager",
    "no package manager is at work",
    severity=Severity.WARNING,
    scope=Scope.NODE,
    phases=frozenset({Phase.PREFLIGHT, Phase.GATE}),
    remedy="wait until it is done; the first boot can seed snaps for hours",
    cases=("UPG-17",),
)
def package_manager(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """An upgrade under way restarts services and changes what was just judged."""
    del context
    if node.packages.manager_running:
        names = ", ".join(node.packages.manager_running)
        yield Problem(expected="no apt or dpkg process", found=names)


@check(
    "upgrade.mixed",
    "all nodes run one software stack",
    scope=Scope.FLEET,
    phases=HOST,
    remedy="bring the nodes that lag behind to the same update, or allow a mixed stack explicitly",
    cases=("UPG-15", "DKR-04", "WGT-03"),
)
def mixed(context: Context) -> Iterator[Problem]:
    """The node that was forgotten in an update is found by comparing all of them."""
    if context.site.allow_mixed_stack:
        return
    rows: dict[str, dict[str, str]] = {}
    for name, identity in context.known("identity"):
        rows.setdefault("system update", {})[name] = identity.dgx.version or identity.os.get(
            "version_id", ""
        )
        rows.setdefault("kernel", {})[name] = identity.kernel.running
    for name, gpu_facts in context.known("gpu"):
        if gpu_facts.driver_version:
            rows.setdefault("driver", {})[name] = gpu_facts.driver_version
    for name, docker in context.known("docker"):
        rows.setdefault("Docker", {})[name] = docker.server_version
    for name, packages in context.known("packages"):
        rows.setdefault("container toolkit", {})[name] = packages.versions.get(
            "nvidia-container-toolkit", "not installed"
        )
    for what, versions in rows.items():
        if len(set(versions.values())) > 1:
            listing = ", ".join(f"{name} {version}" for name, version in versions.items())
            yield Problem(
                expected=f"one {what} on all nodes",
                found=listing,
                variable="appliance_allow_mixed_stack",
            )


@check(
    "power.previous_run",
    "the previous run ended in order",
    severity=Severity.WARNING,
    scope=Scope.NODE,
    phases=frozenset({Phase.VERIFY}),
    own_kernel=True,
    remedy="look for power loss; a clock cap (nvidia-smi -lgc 300,2200) as a unit has helped",
    cases=("PWR-02", "MEM-14"),
)
def previous_run(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """A boot without a shutdown before it was a power cut, a hard reset or a wedged kernel."""
    del context
    if node.power.previous_run == "unclean":
        records = node.power.pstore_records
        yield Problem(
            expected="a shutdown record before this boot",
            found=f"none, {records} crash records in pstore",
        )
    elif node.power.previous_run != "clean":
        yield Problem(
            expected="a record of how the previous run ended",
            found="the record begins with this boot",
            severity=Severity.INFO,
            remedy="nothing, if the machine is new or its record (/var/log/wtmp) was rotated",
        )


@check(
    "power.clock_cap",
    "all nodes have the same GPU clock limit",
    severity=Severity.WARNING,
    scope=Scope.FLEET,
    phases=HOST,
    remedy="enable or disable the clock cap's unit on all nodes",
    cases=("PWR-03",),
)
def clock_cap(context: Context) -> Iterator[Problem]:
    """One capped node slows all of them."""
    caps: dict[str, str] = {}
    for name, gpu_facts in context.known("gpu"):
        if gpu_facts.count:
            caps[name] = f"{gpu_facts.max_sm_mhz} MHz" if gpu_facts.max_sm_mhz else "unknown clock"
    for name, units in context.known("units"):
        unit = units.get("gb10-clock-cap.service")
        if unit is not None and unit.active == "active" and name in caps:
            caps[name] += " with gb10-clock-cap.service"
    if len(set(caps.values())) > 1:
        listing = ", ".join(f"{name} {cap}" for name, cap in caps.items())
        yield Problem(expected="one clock limit", found=listing)


# Idle clocks say nothing; from here on the GPU is at work.
BUSY_PERCENT = 50


@check(
    "power.clock_under_load",
    "the GPU does not crawl under load",
    severity=Severity.WARNING,
    scope=Scope.NODE,
    phases=frozenset({Phase.VERIFY}),
    own_kernel=True,
    remedy="take the power supply off the node for a minute and use the one that came with it; "
    "look for heat",
    cases=("PWR-03",),
)
def clock_under_load(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """Half of the highest clock is below every deliberate cap, and slows all ranks."""
    del context
    clocks = node.clocks
    busy = clocks.utilization_percent >= BUSY_PERCENT
    if busy and clocks.sm_mhz * 2 < clocks.max_sm_mhz:
        yield Problem(
            expected=f"at least {clocks.max_sm_mhz // 2} MHz of {clocks.max_sm_mhz} MHz under load",
            found=f"{clocks.sm_mhz} MHz at {clocks.utilization_percent} % load",
        )


# TLS and apt fail with clocks days apart; a minute leaves room for a slow first connection.
WORST_SKEW_S = 60.0


@check(
    "time.skew",
    "the clock agrees with the control node's",
    scope=Scope.NODE,
    phases=HOST,
    remedy="enable NTP (timedatectl set-ntp true) and wait for it; do not set the date by hand",
    cases=("TIME-01",),
)
def skew(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """A clock that is behind fails certificates and package lists as not valid yet."""
    del context
    off = node.time.skew_s
    if off is None:
        yield Problem(
            expected="a comparison with the control node's clock",
            found="the module was not asked for it",
        )
    elif abs(off) > WORST_SKEW_S:
        yield Problem(expected=f"within {WORST_SKEW_S:g} s", found=f"{off:+.0f} s")


@check(
    "time.synchronized",
    "the clock is synchronized",
    severity=Severity.WARNING,
    scope=Scope.NODE,
    phases=HOST,
    own_kernel=True,
    remedy="enable NTP (timedatectl set-ntp true)",
    cases=("TIME-01",),
)
def synchronized(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """An unsynchronized clock drifts until logs of two nodes no longer compare."""
    del context
    if not node.time.synchronized:
        yield Problem(expected="NTPSynchronized=yes", found="no")


@check(
    "identity.machine",
    "the node is a machine that the appliance knows",
    severity=Severity.WARNING,
    scope=Scope.NODE,
    phases=frozenset({Phase.PREFLIGHT}),
    own_kernel=True,
    remedy="check that the inventory's address is the right machine's",
    cases=("UPG-13",),
)
def machine(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """DGX OS names itself in /etc/dgx-release, in the dialect of each vendor."""
    del context
    identity = node.identity
    if not identity.dgx.present or identity.machine != "aarch64":
        what = identity.dgx.pretty_name or identity.os.get("pretty_name", "")
        yield Problem(expected="DGX OS on aarch64", found=f"{what} on {identity.machine}")


@check(
    "fleet.size",
    "the inventory has as many nodes as the recipe needs",
    scope=Scope.INVENTORY,
    phases=frozenset({Phase.INVENTORY, Phase.PREFLIGHT, Phase.GATE, Phase.VERIFY}),
    remedy="list exactly the nodes of the recipe's topology, the head first",
    cases=("RAY-03",),
)
def size(context: Context) -> Iterator[Problem]:
    """The number of ranks is the recipe's, not the inventory's."""
    have, need = len(context.site.nodes), context.needs.nodes
    if have != need:
        yield Problem(expected=f"{need} nodes", found=str(have), variable="topology.nodes")
