# SPDX-License-Identifier: Apache-2.0
"""Which machine, system and kernel this is, now and after the next boot."""

from __future__ import annotations

import re
from typing import Any

from ansible_collections.spark.appliance.plugins.module_utils._facts.host import (
    Command,
    Host,
    Unknown,
    excerpt,
)

UNAME = Command("uname", ("uname", "-m"))
_ASSIGNMENT = re.compile(r'^([A-Z][A-Z0-9_]*)=(?:"(.*)"|\'(.*)\'|(.*?))\s*$')
# Modules whose absence takes the GPU, the fabric or the way in off the node after a reboot.
BOOT_MODULES = ("nvidia", "mlx5_core", "r8127", "mt7925e")


def parse_assignments(text: str) -> list[tuple[str, str]]:
    """Return ``KEY=value`` lines in order, quotes optional, as os-release(5) writes them."""
    pairs: list[tuple[str, str]] = []
    for line in text.splitlines():
        match = _ASSIGNMENT.match(line.strip())
        if match:
            quoted, single, bare = match.group(2), match.group(3), match.group(4)
            value = next((part for part in (quoted, single, bare) if part is not None), "")
            pairs.append((match.group(1), value.strip()))
    return pairs


def parse_dgx_release(text: str) -> dict[str, Any]:
    """Return what /etc/dgx-release says, without its serial number.

    An update appends its version, so that the last ``DGX_OTA_VERSION`` is the one that runs and
    ``DGX_SWBUILD_VERSION`` stays at the factory's value.

    Raises:
        Unknown: the file has no ``DGX_NAME`` or ``DGX_SWBUILD_VERSION``.
    """
    values = dict(parse_assignments(text))
    if not {"DGX_NAME", "DGX_SWBUILD_VERSION"} & values.keys():
        raise Unknown("/etc/dgx-release: no DGX_NAME and no DGX_SWBUILD_VERSION in it")
    return {
        "present": True,
        "name": values.get("DGX_NAME", ""),
        "pretty_name": values.get("DGX_PRETTY_NAME", ""),
        "swbuild_version": values.get("DGX_SWBUILD_VERSION", ""),
        "ota_version": values.get("DGX_OTA_VERSION") or None,
        "platform": values.get("DGX_PLATFORM", ""),
    }


def version_key(version: str) -> tuple[tuple[int, int | str], ...]:
    """Return a key that sorts versions by their numbers: 6.17.0-1008 before 6.17.0-1026."""
    parts = re.findall(r"\d+|[a-z]+", version.lower())
    return tuple((1, int(part)) if part.isdigit() else (0, part) for part in parts)


def _next_kernel(host: Host, installed: list[str]) -> str | None:
    for link in ("/boot/vmlinuz", "/vmlinuz"):
        target = host.link(link)
        if target and (match := re.search(r"vmlinuz-(\S+)$", target)):
            return match.group(1)
    return installed[-1] if installed else None


def installed_kernels(host: Host) -> list[str]:
    """Return the kernel versions in /boot, oldest first."""
    found = [
        name.removeprefix("vmlinuz-")
        for name in host.names("/boot") or []
        if name.startswith("vmlinuz-") and not name.endswith((".old", ".efi.signed"))
    ]
    return sorted(found, key=version_key)


def _container(host: Host) -> str | None:
    declared = (host.text("/run/systemd/container") or "").strip()
    # Checks of the kernel are left out on a container, so nothing else may pass for its manager.
    if declared and not re.fullmatch(r"[a-z][a-z0-9-]*", declared):
        raise Unknown(f"/run/systemd/container: names no manager: {excerpt(declared, 60)}")
    if declared:
        return declared
    return "docker" if host.entry("/.dockerenv") else None


def observe_identity(host: Host) -> dict[str, Any]:
    """Return the ``identity`` section.

    ``container`` names the container manager when this node is one: its kernel, swap and kernel
    log then belong to another machine.
    """
    release = host.text("/etc/dgx-release")
    system = dict(parse_assignments(host.need("/etc/os-release")))
    if "ID" not in system:
        raise Unknown("/etc/os-release: no ID in it")
    fastos = dict(parse_assignments(host.text("/etc/fastos-release") or ""))
    cpus = re.findall(r"^processor\s*:", host.need("/proc/cpuinfo"), re.MULTILINE)
    if not cpus:
        raise Unknown("/proc/cpuinfo: lists no processor")
    machine = host.ask(UNAME).strip()
    if not re.fullmatch(r"[a-z0-9_]+", machine):
        raise Unknown(f"uname: no machine name: {excerpt(machine)}")
    hostname = host.need("/proc/sys/kernel/hostname").strip()
    if not re.fullmatch(r"[\w.-]+", hostname, re.ASCII):
        raise Unknown(f"/proc/sys/kernel/hostname: no host name: {excerpt(hostname, 60)}")
    boot_id = host.need("/proc/sys/kernel/random/boot_id").strip()
    if not re.fullmatch(r"[0-9a-f-]{36}", boot_id):
        raise Unknown(f"/proc/sys/kernel/random/boot_id: no id: {excerpt(boot_id, 60)}")
    dmi = {
        key: host.attribute(f"/sys/class/dmi/id/{name}")
        for key, name in (
            ("vendor", "sys_vendor"),
            ("product", "product_name"),
            ("board", "board_name"),
            ("bios", "bios_version"),
        )
    }
    return {
        "hostname": hostname,
        "machine": machine,
        "container": _container(host),
        "dgx": parse_dgx_release(release) if release is not None else {"present": False},
        "fastos_version": fastos.get("VERSION"),
        "os": {
            "id": system["ID"],
            "version_id": system.get("VERSION_ID", ""),
            "pretty_name": system.get("PRETTY_NAME", ""),
        },
        "kernel": {
            "running": host.need("/proc/sys/kernel/osrelease").strip(),
            "next": _next_kernel(host, installed_kernels(host)),
        },
        "dmi": dmi,
        "cpu_count": len(cpus),
        "boot_id": boot_id,
        "uptime_s": float(host.need("/proc/uptime").split()[0]),
    }


def observe_boot(host: Host) -> dict[str, Any]:
    """Return the ``boot`` section: what each installed kernel would find when it starts.

    ``modules`` says for each name in :data:`BOOT_MODULES` whether ``modules.dep`` lists it.
    """
    installed = installed_kernels(host)
    names = set(host.names("/boot") or [])
    kernels = []
    for version in installed:
        dependencies = host.text(f"/lib/modules/{version}/modules.dep", 16 << 20)
        listed = set(re.findall(r"^\S*?([^/\s]+)\.ko", dependencies or "", re.MULTILINE))
        listed |= {
            re.sub(r"\.ko$", "", line.rpartition("/")[2])
            for line in (host.text(f"/lib/modules/{version}/modules.builtin") or "").splitlines()
        }
        kernels.append(
            {
                "version": version,
                "initrd": f"initrd.img-{version}" in names,
                "modules_dir": dependencies is not None,
                "modules": {name: name in listed for name in BOOT_MODULES},
            }
        )
    required = host.entry("/run/reboot-required") or host.entry("/var/run/reboot-required")
    packages = host.text("/run/reboot-required.pkgs") or ""
    return {
        "running": host.need("/proc/sys/kernel/osrelease").strip(),
        "next": _next_kernel(host, installed),
        "kernels": kernels,
        "reboot_required": required is not None,
        "reboot_packages": sorted(set(packages.split())),
    }
