# SPDX-License-Identifier: Apache-2.0
"""Every section at once, each of them known or unknown with a reason."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from ansible_collections.spark.appliance.plugins.module_utils._facts.clock import (
    observe_power,
    observe_time,
)
from ansible_collections.spark.appliance.plugins.module_utils._facts.docker import observe_docker
from ansible_collections.spark.appliance.plugins.module_utils._facts.gpu import (
    observe_clocks,
    observe_gpu,
)
from ansible_collections.spark.appliance.plugins.module_utils._facts.guards import observe_guards
from ansible_collections.spark.appliance.plugins.module_utils._facts.holders import (
    observe_holders,
)
from ansible_collections.spark.appliance.plugins.module_utils._facts.host import (
    Host,
    Json,
    Unknown,
    excerpt,
)
from ansible_collections.spark.appliance.plugins.module_utils._facts.identity import (
    observe_boot,
    observe_identity,
)
from ansible_collections.spark.appliance.plugins.module_utils._facts.kernel_log import (
    observe_kernel_log,
)
from ansible_collections.spark.appliance.plugins.module_utils._facts.listeners import (
    observe_connections,
    observe_listeners,
)
from ansible_collections.spark.appliance.plugins.module_utils._facts.memory import observe_memory
from ansible_collections.spark.appliance.plugins.module_utils._facts.network import (
    observe_firewall,
    observe_network,
)
from ansible_collections.spark.appliance.plugins.module_utils._facts.packages import (
    observe_packages,
)
from ansible_collections.spark.appliance.plugins.module_utils._facts.rdma import observe_rdma
from ansible_collections.spark.appliance.plugins.module_utils._facts.reach import observe_reach
from ansible_collections.spark.appliance.plugins.module_utils._facts.storage import (
    observe_disk,
    observe_files,
    observe_launch,
    observe_weights,
)
from ansible_collections.spark.appliance.plugins.module_utils._facts.systemd import (
    Request,
    observe_avahi,
    observe_display,
    units,
)

SCHEMA = 1
# Longer than any single command may take, so that a command's own reason comes first.
DEADLINE_S = 30.0

SECTIONS: dict[str, Callable[[Host, Request], Any]] = {
    "identity": lambda host, _: observe_identity(host),
    "boot": lambda host, _: observe_boot(host),
    "memory": observe_memory,
    "holders": lambda host, _: observe_holders(host),
    "guards": lambda host, _: observe_guards(host),
    "display": observe_display,
    "avahi": observe_avahi,
    "network": lambda host, _: observe_network(host),
    "firewall": lambda host, _: observe_firewall(host),
    "rdma": lambda host, _: observe_rdma(host),
    "gpu": lambda host, _: observe_gpu(host),
    "clocks": lambda host, _: observe_clocks(host),
    "docker": lambda host, _: observe_docker(host),
    "units": units,
    "files": lambda host, request: observe_files(host, request.paths),
    "disk": lambda host, _: observe_disk(host),
    "launch": lambda host, _: observe_launch(host),
    "weights": lambda host, request: observe_weights(host, request.weights),
    "listeners": lambda host, _: observe_listeners(host),
    "connections": lambda host, _: observe_connections(host),
    "time": lambda host, request: observe_time(host, request.reference_epoch_s),
    "power": lambda host, _: observe_power(host),
    "packages": lambda host, _: observe_packages(host),
    "kernel_log": lambda host, _: observe_kernel_log(host),
}


def whole(value: Json) -> Json:
    """Return JSON data with halves of surrogate pairs replaced, which Ansible refuses to pass on.

    They come from file names that are not UTF-8 and from escapes in a tool's JSON.
    """
    if isinstance(value, str):
        return (
            value
            if value.isascii()
            else value.encode(errors="surrogatepass").decode(errors="replace")
        )
    if isinstance(value, dict):
        return {whole(key): whole(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [whole(inner) for inner in value]
    return value


def _observe(host: Host, request: Request, section: Callable[[Host, Request], Any]) -> Json:
    try:
        return {"ok": True, "data": whole(section(host, request))}
    except Unknown as reason:
        return {"ok": False, "reason": whole(str(reason))}
    except Exception as error:  # noqa: BLE001 -- one broken section must not hide the others
        return {"ok": False, "reason": f"{type(error).__name__}: {excerpt(str(error))}"}


def gather(host: Host, request: Request, deadline_s: float = DEADLINE_S) -> dict[str, Any]:
    """Return the facts of one node.

    Parameters:
        host: the door to the node.
        request: what is asked beyond the fixed sections.
        deadline_s: seconds after which a section that has not answered is unknown.

    Returns:
        ``schema``, ``elapsed_s`` and ``sections``: for every name in :data:`SECTIONS`, and for
        ``reach`` where it was asked for, either ``ok`` true with ``data`` or ``ok`` false with
        ``reason``.
    """
    started = time.monotonic()
    wanted = dict(SECTIONS)
    if (reach := request.reach) is not None:
        wanted["reach"] = lambda host, _: observe_reach(host, reach)
    results: dict[str, Any] = {}

    def work(name: str) -> None:
        results[name] = _observe(host, request, wanted[name])

    # Daemon threads: a read that the kernel never answers must not keep the module from replying.
    threads = {
        name: threading.Thread(target=work, args=(name,), name=name, daemon=True) for name in wanted
    }
    for thread in threads.values():
        thread.start()
    for thread in threads.values():
        thread.join(max(0.0, started + deadline_s - time.monotonic()))
    late = {"ok": False, "reason": f"not finished after {deadline_s:g} s"}
    sections = {name: results.get(name, late) for name in wanted}
    elapsed_s = round(time.monotonic() - started, 3)
    return {"schema": SCHEMA, "elapsed_s": elapsed_s, "sections": sections}
