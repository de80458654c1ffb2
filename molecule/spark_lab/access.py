"""What a user of the lab holds: a key, the nodes' host keys, an API key, an inventory."""

from __future__ import annotations

import secrets
import shutil

from spark_lab.nodes import host_key
from spark_lab.process import run
from spark_lab.spec import DEFAULT_NAME, NODES, RELEASE_NUMBER, RELEASE_PORT, REPOSITORY, Lab

KEY = "id_ed25519"


def public_key(lab: Lab) -> str:
    """Return the lab user's public key, made on first use."""
    lab.state.mkdir(parents=True, exist_ok=True)
    key = lab.state / KEY
    if not key.exists():
        comment = f"ops@{lab.name}"
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(key)])
    return key.with_suffix(".pub").read_text(encoding="ascii").strip()


def write_access(lab: Lab) -> None:
    """Write known hosts, the API key and, for a lab beside the default one, its inventory."""
    lines = [f"{lab.management(node.number)} {host_key(lab, node.name)}\n" for node in NODES]
    (lab.state / "known_hosts").write_text("".join(lines), encoding="ascii")
    api_key = lab.state / "api_key"
    if not api_key.exists():
        api_key.touch(mode=0o600)
        api_key.write_text(secrets.token_urlsafe(32), encoding="ascii")
    if lab.name != DEFAULT_NAME:
        _write_inventory(lab)


def _write_inventory(lab: Lab) -> None:
    """Write the default lab's inventory again with this lab's addresses."""
    shutil.copytree(REPOSITORY / "inventories/lab", lab.inventory, dirs_exist_ok=True)
    (lab.inventory / "group_vars/all/lab.yml").write_text(
        'appliance_root: "{{ inventory_dir | dirname | dirname | dirname }}"\n'
        'lab_state: "{{ inventory_dir | dirname }}"\n'
        f"lab_release: {lab.management(RELEASE_NUMBER)}:{RELEASE_PORT}\n",
        encoding="ascii",
    )
    (lab.inventory / "hosts.yml").write_text(host_entries(lab), encoding="ascii")


def host_entries(lab: Lab) -> str:
    """Return the hosts file of a lab: addresses in the order of ranks, nothing else."""
    head, *workers = [_host_lines(lab, node.name, node.number) for node in NODES]
    groups = f"    head:\n      hosts:\n{head}    workers:\n      hosts:\n{''.join(workers)}"
    return f"spark:\n  children:\n{groups}"


def _host_lines(lab: Lab, name: str, number: int) -> str:
    return (
        f"        {name}:\n"
        f"          ansible_host: {lab.management(number)}\n"
        f"          spark_rail_a: {lab.rail('a', number)}/24\n"
        f"          spark_rail_b: {lab.rail('b', number)}/24\n"
    )
