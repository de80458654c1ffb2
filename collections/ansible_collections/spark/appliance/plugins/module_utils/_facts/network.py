# SPDX-License-Identifier: Apache-2.0
"""Interfaces, addresses, routes, what makes them last, and the host firewall."""

from __future__ import annotations

import ipaddress
import re
from typing import Any

from ansible_collections.spark.appliance.plugins.module_utils._facts.host import (
    Command,
    Host,
    Json,
    Unknown,
    concurrently,
)

ADDR = Command("ip-addr", ("ip", "-json", "-details", "addr", "show"))
ROUTE = Command("ip-route", ("ip", "-json", "route", "show"), empty_ok=True)
NETPLAN = Command("netplan-get", ("netplan", "get"), timeout_s=12.0, empty_ok=True)
NETPLAN_FOLDERS = ("/etc/netplan", "/run/netplan", "/lib/netplan")
PROFILE_FOLDERS = (
    "/etc/NetworkManager/system-connections",
    "/run/NetworkManager/system-connections",
)
# Netplan may hold Wi-Fi keys and hardware addresses; only these keys leave the node.
_NETPLAN_KEYS = frozenset(
    {"version", "renderer", "ethernets", "bridges", "bonds", "vlans", "addresses", "dhcp4", "dhcp6",
     "accept-ra", "mtu", "link-local", "optional", "ignore-carrier", "interfaces", "routes", "to",
     "via", "metric", "table", "gateway4", "gateway6", "activation-mode", "critical"}
)  # fmt: skip
_NAMED = frozenset({"ethernets", "bridges", "bonds", "vlans"})
_USB_NAME = re.compile(r"\benx[0-9a-f]{12}\b")
_NO_SPEED = frozenset({-1, 0, 2**32 - 1})


def public_name(name: str) -> str:
    """Return an interface name without the hardware address that USB adapters carry in it."""
    return _USB_NAME.sub("enx-usb", name)


def public_address(address: str) -> str:
    """Return an address; an IPv6 one derived from a hardware address loses its lower half."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError as error:
        raise Unknown(f"not an IP address: {address[:60]!r}") from error
    if parsed.version == 4:
        return str(parsed)
    if parsed.is_link_local or parsed.packed[11:13] == b"\xff\xfe":
        return str(ipaddress.IPv6Address(parsed.packed[:8] + bytes(8)))
    return str(parsed)


def _speed(host: Host, path: str) -> int | None:
    text = host.attribute(path)
    if text is None:
        return None
    if not re.fullmatch(r"-?\d+", text):
        raise Unknown(f"{path}: no number: {text[:60]!r}")
    return int(text)


def parse_addresses(items: Json) -> list[dict[str, Any]]:
    """Return interfaces and their addresses from ``ip -json -details addr``.

    Raises:
        Unknown: the JSON is not a list of named interfaces.
    """
    if not isinstance(items, list) or not items:
        raise Unknown("ip: no interface in its answer")
    interfaces = []
    for item in items:
        # Some releases print empty objects for links that other filters left out.
        if item == {}:
            continue
        try:
            addresses = [
                {
                    "address": public_address(entry["local"]),
                    "prefix": int(entry["prefixlen"]),
                    "family": entry["family"],
                    "scope": entry["scope"],
                    "dynamic": bool(entry.get("dynamic", False)),
                }
                for entry in item["addr_info"]
                if "local" in entry
            ]
            interfaces.append(
                {
                    "name": public_name(item["ifname"]),
                    "mtu": int(item["mtu"]),
                    "max_mtu": item.get("max_mtu") or None,
                    "operstate": item["operstate"],
                    "carrier": "LOWER_UP" in item["flags"],
                    "kind": item.get("linkinfo", {}).get("info_kind"),
                    "pci": item.get("parentdev") if item.get("parentbus") == "pci" else None,
                    "addresses": addresses,
                }
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Unknown(f"ip: an interface is not as expected: {error!r}") from error
    return interfaces


def redact_netplan(value: Json, key: str = "network") -> Json:
    """Return a merged netplan tree with only the keys that a judgement needs."""
    if isinstance(value, dict):
        kept = value if key in _NAMED else {k: v for k, v in value.items() if k in _NETPLAN_KEYS}
        names = {k: public_name(str(k)) for k in kept}
        return {
            names[k]: redact_netplan(v, "interface" if key in _NAMED else str(k))
            for k, v in kept.items()
        }
    if isinstance(value, list):
        return [redact_netplan(item, key) for item in value]
    return value


def parse_netplan(text: str) -> dict[str, Any]:
    """Return the ``network`` tree that ``netplan get`` printed, redacted.

    Raises:
        Unknown: no YAML parser on the node, or no YAML mapping printed.
    """
    try:
        # netplan.io itself depends on python3-yaml, so that it is present wherever this is needed.
        import yaml  # noqa: PLC0415 -- only here, so that a node without netplan does without it
    except ImportError as error:
        raise Unknown("netplan: python3-yaml is not installed") from error
    try:
        tree = yaml.safe_load(text) if text.strip() else {}
    except yaml.YAMLError as error:
        raise Unknown("netplan: did not print YAML") from error
    if not isinstance(tree, dict) or not isinstance(tree.get("network", {}), dict):
        raise Unknown("netplan: did not print a mapping")
    redacted: dict[str, Any] = redact_netplan(tree.get("network", {}))
    return redacted


def parse_profile(text: str) -> dict[str, Any] | None:
    """Return what a NetworkManager keyfile says of a wired connection; None for other kinds."""
    sections: dict[str, dict[str, str]] = {}
    section = ""
    for raw in text.splitlines():
        line = raw.strip()
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        elif "=" in line and not line.startswith(("#", ";")):
            key, _, value = line.partition("=")
            sections.setdefault(section, {})[key.strip()] = value.strip()
    connection = sections.get("connection", {})
    if connection.get("type") not in {"ethernet", "802-3-ethernet"}:
        return None
    return {
        "id": public_name(connection.get("id", "")),
        "interface": public_name(connection.get("interface-name", "")),
        "autoconnect": connection.get("autoconnect", "true") != "false",
        "ipv4_method": sections.get("ipv4", {}).get("method", "auto"),
    }


def _profiles(host: Host) -> list[dict[str, Any]]:
    found = []
    for folder in PROFILE_FOLDERS:
        for name in host.names(folder) or []:
            profile = parse_profile(host.text(f"{folder}/{name}") or "")
            if profile is not None:
                found.append({**profile, "persistent": folder.startswith("/etc/")})
    return found


def _netplan(host: Host) -> dict[str, Any]:
    files = []
    for folder in NETPLAN_FOLDERS:
        for name in host.names(folder) or []:
            entry = host.entry(f"{folder}/{name}")
            if entry is not None and name.endswith(".yaml"):
                digest = host.sha256(f"{folder}/{name}")
                mode = f"{entry.mode:04o}"
                files.append({"path": f"{folder}/{name}", "mode": mode, "sha256": digest})
    tool = any(host.entry(f"{folder}/netplan") for folder in ("/usr/sbin", "/sbin", "/usr/bin"))
    if not tool:
        return {"present": False, "files": files, "merged": None, "renderer": None, "reason": ""}
    # A netplan that fails hides only the merged view; the live addresses are still known.
    try:
        merged = parse_netplan(host.ask(NETPLAN))
    except Unknown as error:
        return {
            "present": True,
            "files": files,
            "merged": None,
            "renderer": None,
            "reason": str(error),
        }
    renderer = merged.get("renderer")
    return {"present": True, "files": files, "merged": merged, "renderer": renderer, "reason": ""}


def control_interface(
    interfaces: list[dict[str, Any]], connection: str, routes: list[dict[str, Any]]
) -> str | None:
    """Return the interface that carries the control session.

    Parameters:
        interfaces: as :func:`parse_addresses` returns them.
        connection: the value of ``SSH_CONNECTION``, empty without ssh.
        routes: as ``ip -json route`` prints them, used when there is no ssh session.

    Raises:
        Unknown: ``connection`` is not two addresses with their ports.
    """
    fields = connection.split()
    if fields and len(fields) != 4:
        raise Unknown(f"SSH_CONNECTION: not as expected: {connection[:60]!r}")
    if fields:
        # A link-local address names its interface itself, and others can have the same one.
        text, _, zone = fields[2].partition("%")
        own = public_address(text)
        for interface in interfaces:
            if zone in {"", interface["name"]} and any(
                entry["address"] == own for entry in interface["addresses"]
            ):
                return str(interface["name"])
        return None
    default = next((route for route in routes if route.get("dst") == "default"), None)
    return public_name(str(default["dev"])) if default and "dev" in default else None


def observe_network(host: Host) -> dict[str, Any]:
    """Return the ``network`` section."""
    printed, routed, netplan = concurrently(
        [lambda: host.ask_json(ADDR), lambda: host.ask_json(ROUTE), lambda: _netplan(host)]
    )
    for result in (printed, routed, netplan):
        if isinstance(result, Unknown):
            raise result
    interfaces = parse_addresses(printed)
    for interface in interfaces:
        folder = f"/sys/class/net/{interface['name']}"
        speed = None
        if interface["carrier"] and "enx-usb" not in interface["name"]:
            speed = _speed(host, f"{folder}/speed")
        interface["speed_mbps"] = None if speed in _NO_SPEED else speed
        driver = host.link(f"{folder}/device/driver")
        interface["driver"] = driver.rpartition("/")[2] if driver else None
    routes = [
        {key: public_name(str(route[key])) for key in ("dst", "gateway", "dev") if key in route}
        for route in routed
        if isinstance(route, dict)
    ]
    connection = host.session_connection()
    return {
        "interfaces": interfaces,
        "control_interface": control_interface(interfaces, connection, routes),
        "netplan": netplan,
        "profiles": _profiles(host),
        "routes": routes,
    }


def parse_ufw(conf: str, defaults: str, rules: str) -> dict[str, Any]:
    """Return the state of ufw from its files.

    ``rules`` are the tuples that ufw keeps as comments in user.rules:
    action, protocol, port, destination and source, and the interface where one is named.

    Raises:
        Unknown: it is not said whether ufw is on, or what it does with what no rule names.
    """
    enabled = re.search(r"^ENABLED=\"?(\w+)", conf, re.MULTILINE)
    policy = re.search(r'^DEFAULT_INPUT_POLICY="?(\w+)"?', defaults, re.MULTILINE)
    if enabled is None or enabled.group(1) not in {"yes", "no"}:
        raise Unknown("/etc/ufw/ufw.conf: no ENABLED=yes or ENABLED=no in it")
    if policy is None and enabled.group(1) == "yes":
        raise Unknown("/etc/default/ufw: no DEFAULT_INPUT_POLICY in it")
    found = []
    for line in rules.splitlines():
        if not line.startswith("### tuple ###"):
            continue
        fields = line.removeprefix("### tuple ###").split()
        if len(fields) < 6:
            continue
        direction = fields[-1]
        found.append(
            {
                "action": fields[0],
                "protocol": fields[1],
                "port": fields[2],
                "destination": fields[3],
                "source": fields[5],
                "interface": direction.removeprefix("in_") if direction.startswith("in_") else "",
            }
        )
    return {
        "enabled": enabled.group(1) == "yes",
        "input_policy": policy.group(1).lower() if policy else "",
        "rules": found,
    }


def observe_firewall(host: Host) -> dict[str, Any]:
    """Return the ``firewall`` section, from ufw's files."""
    conf = host.text("/etc/ufw/ufw.conf")
    if conf is None:
        return {"installed": False, "enabled": False, "input_policy": "", "rules": []}
    defaults = host.text("/etc/default/ufw") or ""
    rules = host.text("/etc/ufw/user.rules") or ""
    return {"installed": True, **parse_ufw(conf, defaults, rules)}
